"""Consensus-based optimisation as attention, at a small size: the checks, that they can fail, the figure, and bad input."""

import dataclasses

import numpy as np
import pytest

from attnflow.studies import consensus


@pytest.fixture(scope="module")
def result() -> consensus.Result:
    return consensus.run(consensus.FAST)


def test_every_check_holds_and_the_figure_is_drawn(result):
    checks = consensus.checks(result)
    assert [check for check in checks if not check.ok] == []
    assert {check.claim for check in checks} == {*consensus.CLAIMS, ""}
    assert len(consensus.figure(result).axes) == 3
    assert consensus.measured(result)["agreement"]["exponent"] > consensus.measured(result)["consensus point"]["exponent"]


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        (lambda r: {"drift": r.drift + 1e-6}, "drift"),
        (lambda r: {"points": r.points + 1e-6}, "laplace"),
        (lambda r: {"agreed": r.agreed + 1e-3}, "agreement"),
        (lambda r: {"spread": 0.1}, "agreement"),
        (lambda r: {"by_hand": {name: x + 1e-3 for name, x in r.by_hand.items()}}, ""),
        (lambda r: {"paths": {"polarised": r.paths["plain"], "plain": r.paths["plain"]}}, "polarised"),
        (lambda r: {"paths": {"polarised": r.paths["polarised"], "plain": r.paths["polarised"]}}, "polarised"),
    ],
)
def test_checks_can_fail(result, change, claim):
    failed = {check.claim for check in consensus.checks(dataclasses.replace(result, **change(result))) if not check.ok}
    assert claim in failed


def test_the_agreement_of_a_line_of_values():
    """Along an eigenvector of H the closed form is that of one dimension, (1 + beta h)^{-1/2}."""
    values, vectors = np.linalg.eigh(consensus._H)
    for beta in (0.0, 3.0, 50.0):
        left = vectors.T @ (consensus.agreement(beta) - consensus._C)
        np.testing.assert_allclose(left, (1 + beta * values) ** -0.5 * (vectors.T @ (consensus._M - consensus._C)), rtol=1e-12)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"n": 2}, "n must be at least 8"),
        ({"betas": (1.0, 10.0, 20.0)}, "betas must be at least three positive numbers that rise to between 100 and 3000"),
        ({"beta": 0.0}, "beta must be positive and t1 from 8 to 100"),
    ],
)
def test_bad_input(bad, message):
    with pytest.raises(ValueError, match=message):
        consensus.Spec(**bad)


@pytest.mark.slow
def test_full_size():
    assert [check for check in consensus.checks(consensus.run()) if not check.ok] == []
