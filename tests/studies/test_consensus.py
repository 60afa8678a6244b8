"""Consensus-based optimization as attention, at a small size: numbers, that the checks can fail, and the closed form."""

import dataclasses

import numpy as np
import pytest
import scipy.integrate

from attnflow.studies import consensus


def test_the_numbers(result):
    assert consensus.measured(result)["agreement"]["exponent"] > consensus.measured(result)["consensus point"]["exponent"]


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        (lambda r: {"drift": r.drift + 1e-6}, "drift"),
        (lambda r: {"points": r.points + 1e-6}, "laplace"),
        (lambda r: {"agreed": r.agreed + 1e-8}, "agreement"),
        (lambda r: {"spread": 0.1}, "agreement"),
        (lambda r: {"by_hand": {name: x + 1e-3 for name, x in r.by_hand.items()}}, ""),
        (lambda r: {"paths": {"polarized": r.paths["plain"], "plain": r.paths["plain"]}}, "polarized"),
        (lambda r: {"paths": {"polarized": r.paths["polarized"], "plain": r.paths["polarized"]}}, "polarized"),
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


def test_the_mean_on_the_way_to_the_agreement():
    """The closed form at finite times against SciPy, with the consensus point of a Gaussian and S = e^{-2t} I."""
    beta = 30.0

    def rate(t, m):
        return np.linalg.solve(np.eye(2) + beta * np.exp(-2 * t) * consensus._H, m - consensus._C) - (m - consensus._C)

    found = scipy.integrate.solve_ivp(rate, (0, 4), consensus._M, method="DOP853", t_eval=[0.0, 1.0, 4.0], rtol=1e-11, atol=1e-13).y.T
    np.testing.assert_allclose(found, [consensus.agreement(beta, t) for t in (0.0, 1.0, 4.0)], rtol=1e-9)
