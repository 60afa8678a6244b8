"""The flow of a residual network at a small size: numbers, movie, that the checks can fail, and closed forms."""

import dataclasses

import numpy as np
import pytest

from attnflow.studies import resnet


def test_the_numbers(result):
    assert resnet.measured(result)["determinants"][0] > 0


def test_the_movie(result, tmp_path):
    short = dataclasses.replace(result.path, ts=result.path.ts[:3], states=result.path.states[:3])
    resnet.movie(dataclasses.replace(result, path=short), tmp_path / "resnet.mp4")
    assert (tmp_path / "resnet.mp4").stat().st_size > 0


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        (lambda r: {"by_hand": r.by_hand + 1e-5}, ""),
        (lambda r: {"errors": r.errors**2}, "order"),
        (lambda r: {"back": r.back + 1e-5}, "inverse"),
        (lambda r: {"determinants": 1.01 * r.determinants}, "liouville"),
        (lambda r: {"differences": -r.differences}, "liouville"),
        (lambda r: {"area": 1.1 * r.area}, "liouville"),
    ],
)
def test_checks_can_fail(result, change, claim):
    failed = {check.claim for check in resnet.checks(dataclasses.replace(result, **change(result))) if not check.ok}
    assert claim in failed


def test_the_quadrature_of_the_disc():
    """The area, and the integral of x^2 y^2, which is pi/24."""
    points, weights = resnet.quadrature()
    assert weights.sum() == pytest.approx(np.pi, rel=1e-13)
    assert weights @ (points[:, 0] ** 2 * points[:, 1] ** 2) == pytest.approx(np.pi / 24, rel=1e-13)


def test_determinants_of_a_linear_flow_in_small():
    """Near the origin tanh is the identity: with W diagonal and no turning, det = e^{T trace W} for sin alone."""
    first, second, bias = np.zeros((2, 2)), np.diag([0.3, 0.5]), np.zeros(2)
    _, logarithms = resnet.follow(1e-6 * np.ones((1, 2)), (0.0, 1.0), (np.stack([first, second]), bias))
    np.testing.assert_allclose(logarithms, 0.8 * (1 - np.cos(1.0)), rtol=1e-9)
