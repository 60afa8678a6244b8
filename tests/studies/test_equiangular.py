"""The study of equiangular tokens at a small size: that its checks can fail, and the time without temperature."""

import dataclasses

import numpy as np

from attnflow.studies import equiangular as study


def test_every_check_is_evidence_for_a_claim(result):
    assert all(check.claim for check in study.checks(result))


def test_every_claim_can_fail(result):
    wrong = dataclasses.replace(
        result,
        found={kind: found**1.1 for kind, found in result.found.items()},
        simplex=dict.fromkeys(study.KINDS, 0.1),
        energy={kind: energy[::-1] for kind, energy in result.energy.items()},
        ascent=0.1,
    )
    assert {check.claim for check in study.checks(wrong) if not check.ok} == set(study.CLAIMS)


def test_the_time_at_beta_0_is_known():
    # 1 - g = n / (e^{2t} + n - 1).
    gaps, n = np.geomspace(0.9, 1e-6, 20), 5
    for kind in study.KINDS:
        np.testing.assert_allclose(study.when(kind, 0.0, gaps, n), np.log(n / gaps - n + 1) / 2, rtol=1e-11)
