"""Weighted grids against the law that they stand for."""

import numpy as np
import pytest

import attnflow as af


@pytest.mark.long
def test_moments_and_smooth_integrals():
    mix = af.GaussianMixture([0.3, 0.7], [[-2.0, 0.0], [1.0, 1.0]], [np.eye(2), [[0.5, 0.2], [0.2, 0.3]]])
    rule = af.quadrature(mix, 80)
    np.testing.assert_allclose(rule.mean, mix.mean, atol=1e-12)
    np.testing.assert_allclose(rule.cov, mix.cov, atol=1e-12)
    g, a = af.Gaussian([0.5], [[2.0]]), 0.7
    # E cos(a x) of N(m, s^2) is cos(a m) e^{-a^2 s^2 / 2}.
    np.testing.assert_allclose(af.quadrature(g, 64).integrate(lambda x: np.cos(a * x[:, 0])), np.cos(a / 2) * np.exp(-(a**2)), atol=1e-12)


def test_bad_input_is_named(rng):
    with pytest.raises(TypeError, match="for a Gaussian or a GaussianMixture with known values, got Particles"):
        af.quadrature(af.Particles(rng.normal(size=(3, 1))))
    with pytest.raises(ValueError, match="nodes must be at least 2"):
        af.quadrature(af.Gaussian([0.0], [[1.0]]), 1)
    with pytest.raises(ValueError, match=r"got 3000 in R\^2"):
        af.quadrature(af.Gaussian([0.0, 0.0], np.eye(2)), 3000)
