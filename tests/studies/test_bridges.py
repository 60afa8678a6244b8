"""The study of self-bridges: its checks at a small size, that they can fail, its figure, and bad input."""

import dataclasses

import numpy as np
import pytest

from attnflow.studies import bridges as study


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


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"deviations": (0.0,)}, "deviations must be positive"),
        ({"eps": (0.1, 0.2, 0.3)}, "eps must be at least three numbers"),
        ({"nodes": 10}, "nodes, steps and step must be at least 100"),
    ],
)
def test_bad_input(bad, message):
    with pytest.raises(ValueError, match=message):
        study.Spec(**bad)
