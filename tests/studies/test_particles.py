"""Particles step by step at a small size: numbers, movie, that the checks can fail, and the matrix by hand."""

import dataclasses

import numpy as np
import pytest

from attnflow.studies import particles


def test_the_numbers(result):
    assert particles.measured(result)["Sinkhorn"]["spread"][0] == pytest.approx(result.spread("softmax")[0])


def test_the_movie(result, tmp_path):
    short = dataclasses.replace(result.slow, ts=result.slow.ts[:4], states=result.slow.states[:4])
    particles.movie(dataclasses.replace(result, slow=short), tmp_path / "particles.mp4")
    assert (tmp_path / "particles.mp4").stat().st_size > 0


@pytest.mark.parametrize(
    ("change", "claims"),
    [
        (lambda r: {"raw": {name: 1.001 * x for name, x in r.raw.items()}}, {"", "mean"}),
        (lambda r: {"normalized": {name: x + 0.01 for name, x in r.normalized.items()}}, {"", "mean"}),
        (lambda r: {"normalized": dict.fromkeys(r.normalized, r.normalized["Sinkhorn"])}, {"", "mean"}),
        (lambda r: {"second": 0.5 * r.second}, {"consensus"}),
        (
            lambda r: {
                "normalized": {name: x[:3] for name, x in r.normalized_by_hand.items()},
                "spec": particles.Spec(24, steps=2, long=2),
            },
            None,
        ),
    ],
)
def test_checks_can_fail(result, change, claims):
    broken = dataclasses.replace(result, **change(result))
    if claims is None:
        # The cloud is not a point after two steps.
        cut = {name: x[:3] for name, x in result.raw.items()}
        broken = dataclasses.replace(broken, raw=cut, raw_by_hand=cut, normalized_by_hand=broken.normalized, second=result.second[:2])
        claims = {"consensus"}
    assert {check.claim for check in particles.checks(broken) if not check.ok} == claims


def test_the_matrix_by_hand_is_doubly_stochastic():
    matrix = particles.matrix(particles.start(particles.FAST), "Sinkhorn", particles.FAST)
    np.testing.assert_allclose(matrix.sum(axis=0), 1, rtol=1e-11)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=1e-11)
