"""The study of self-bridges at a small size: that its checks can fail, and its terms by hand."""

import dataclasses

import numpy as np

from attnflow.studies import bridges as study


def test_every_check_is_evidence_for_a_claim(result):
    assert all(check.claim for check in study.checks(result))


def test_every_claim_can_fail(result):
    wrong = dataclasses.replace(
        result,
        slopes=result.slopes + 0.01,
        pulls={kind: 2 * pulls for kind, pulls in result.pulls.items()},
        layer=0.1,
        variances={cost: 2 * variances for cost, variances in result.variances.items()},
    )
    assert {check.claim for check in study.checks(wrong) if not check.ok} == set(study.CLAIMS)


def test_the_terms_by_hand_are_those_of_the_mixture():
    x = np.linspace(-3, 3, 13)
    score, second = study.exact(x)
    np.testing.assert_allclose(np.asarray(study.mixture().score(x[:, None]))[:, 0], score, atol=1e-12)
    # The potential 1/8 U'' + 1/16 U'^2 by central differences.
    h = 1e-4
    u = lambda x: study.exact(x)[0]  # noqa: E731
    potential = lambda x: (u(x + h) - u(x - h)) / (16 * h) + u(x) ** 2 / 16  # noqa: E731
    np.testing.assert_allclose((potential(x + h) - potential(x - h)) / (2 * h), second, atol=1e-5)
