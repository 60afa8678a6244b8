"""Weighted grids against the law that they stand for."""

import warnings

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
    with pytest.raises(TypeError, match="mu must be a Gaussian or a GaussianMixture, got Particles"):
        af.quadrature(af.Particles(rng.normal(size=(3, 1))))
    with pytest.raises(ValueError, match="nodes must be between 2 and 4194304"):
        af.quadrature(af.Gaussian([0.0], [[1.0]]), 1)
    with pytest.raises(ValueError, match=r"between 2 and 2048 per axis in R\^2, got 3000"):
        af.quadrature(af.Gaussian([0.0, 0.0], np.eye(2)), 3000)
    with pytest.raises(ValueError, match=r"R\^1, R\^2 and R\^3, got R\^4; draw tokens"):
        af.quadrature(af.Gaussian(np.zeros(4), np.eye(4)), 12)


def test_a_coarse_rule_warns_with_the_nodes_that_are_needed():
    # The mean of cos(2 pi x / h) under the rule is 1, under the law e^{-2 pi^2 s^2 / h^2}: what the warning says.
    law, reach = af.Gaussian([0.0], [[4.0]]), 8.5
    with pytest.warns(UserWarning, match=r"10 nodes per axis .* off by about 4e-03; use at least 16 nodes"):
        af.quadrature(law, 10)
    h = 2 * reach * 2.0 / 9
    assert f"{np.exp(-2 * np.pi**2 * 4 / h**2):.0e}" == "4e-03"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(af.quadrature(law, 16).cov, [[4.0]], rtol=1e-4)
