"""The study of equiangular tokens: its checks at a small size, that they can fail, its figure, and bad input."""

import dataclasses

import numpy as np
import pytest

from attnflow.studies import equiangular as study


@pytest.fixture(scope="module")
def result():
    return study.run(study.FAST)


def test_every_check_holds_and_every_claim_has_one(result):
    checks = study.checks(result)
    assert [check for check in checks if not check.ok] == []
    assert {check.claim for check in checks} == set(study.CLAIMS)
    assert len(study.figure(result).axes) == 3
    assert study.measured(result)


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


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"n": 1}, "n must be at least 2"),
        ({"betas": (-1.0,)}, "betas must be from 0 to 6"),
        ({"gap": 1e-12}, "gap must be from 1e-10"),
        ({"beta": 0.0}, "beta and t1 must be positive"),
    ],
)
def test_bad_input(bad, message):
    with pytest.raises(ValueError, match=message):
        study.Spec(**bad)
