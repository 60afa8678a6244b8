"""Lost in the middle at a small size: the closed form, numbers, that the checks can fail, and the tokens."""

import dataclasses

import numpy as np
import pytest
import scipy.linalg
import scipy.special

from attnflow.studies import middle


def test_the_numbers(result):
    assert middle.measured(result)["least heard"]["T = 0.8"] < 0.5


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        (lambda r: {"by_hand": 1.01 * r.by_hand}, ""),
        (lambda r: {"exact": r.exact + 1e-5}, ""),
        (lambda r: {"predicted": [1.1 * x for x in r.predicted]}, "response"),
        (lambda r: {"rollout": 1.2 * r.rollout}, "rollout"),
        (lambda r: {"first": 0.9}, "rollout"),
        (lambda r: {"rollout": r.rollout[::-1]}, "shape"),
    ],
)
def test_checks_can_fail(result, change, claim):
    failed = {check.claim for check in middle.checks(dataclasses.replace(result, **change(result))) if not check.ok}
    assert claim in failed


def test_the_closed_form_is_the_limit_of_matrix_exponentials():
    """Midpoints in order, a half of the token itself: second order in 1/n away from the beginning."""
    errors = []
    for n in (100, 200, 400):
        s = (np.arange(n) + 0.5) / n
        A = np.tril(np.exp(-3.0 * (s[:, None] - s[None]))) - 0.5 * np.eye(n)
        row = n * scipy.linalg.expm(1.3 * A / A.sum(axis=1, keepdims=True))[-1]
        L = np.log(np.expm1(3.0 * s[-1]) / np.expm1(3.0 * s))
        scale = np.expm1(3.0) / np.expm1(3.0 * s[-1])
        root = np.sqrt(1.3 * np.maximum(L, 1e-300))
        exact = scale * 3.0 * np.exp(3.0 * s) / np.expm1(3.0) * 1.3 * scipy.special.iv(1, 2 * root) / root
        errors.append(np.abs(row / exact - 1)[n // 4 : -1].max())
    assert errors[2] < 0.3 * errors[0]
    assert errors[2] < 0.02


def test_every_beginning_of_the_tokens_is_nearly_uniform():
    angles = middle.angles_of(200)
    for n in (10, 50, 200):
        gaps = np.diff(np.sort(angles[:n]), append=2 * np.pi + np.sort(angles[:n])[0])
        assert gaps.max() < 3 * 2 * np.pi / n
