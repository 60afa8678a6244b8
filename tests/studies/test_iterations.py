"""Cut Sinkhorn iterations at a small size: numbers, that the checks can fail, and the iteration by hand."""

import dataclasses

import numpy as np
import pytest

from attnflow.studies import iterations


def test_the_numbers(result):
    assert all(check.claim for check in iterations.checks(result)), "each is evidence for a claim"
    assert list(iterations.measured(result)) == ["beta = 1", "beta = 5", "beta = 20"]


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        (lambda r: {"errors": 1.001 * r.errors}, "cut"),
        (lambda r: {"errors": r.errors[:, ::-1]}, "cut"),
        (lambda r: {"converged": r.converged + 1e-9}, "limit"),
        (lambda r: {"form": r.form + 1e-6}, "limit"),
        (lambda r: {"second": 1.05 * r.second}, "rate"),
        (lambda r: {"pair": r.pair**1.01}, "causal"),
        (lambda r: {"causal": r.causal**1.5}, "causal"),
        (lambda r: {"refused": False}, "causal"),
    ],
)
def test_checks_can_fail(result, change, claim):
    failed = {check.claim for check in iterations.checks(dataclasses.replace(result, **change(result))) if not check.ok}
    assert claim in failed


def test_the_iteration_by_hand_is_known_for_two_tokens():
    # Rows of [[1, 1], [1, 3]] are normalized, then columns.
    logits = np.log([[1.0, 1.0], [1.0, 3.0]])
    np.testing.assert_allclose(iterations.by_hand(logits, 1), [[0.5, 0.5], [0.25, 0.75]], rtol=1e-14)
    np.testing.assert_allclose(iterations.by_hand(logits, 2), [[2 / 3, 0.4], [1 / 3, 0.6]], rtol=1e-14)
