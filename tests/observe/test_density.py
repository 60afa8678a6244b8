"""Kernel densities and entropies against Gaussians, whose smoothing is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import gaussian_kde, multivariate_normal

import attnflow as af


@pytest.mark.long
def test_density_against_scipy(rng):
    points, weights = rng.normal(size=(50, 2)), rng.uniform(size=50)
    mu, x = af.Particles(points, weights=weights), rng.normal(size=(7, 2))
    cov = np.cov(points.T, aweights=weights)
    # SciPy's kernel has the covariance of the data: whiten them, and take its determinant back.
    root = np.linalg.cholesky(cov)
    peer = gaussian_kde(points.T, bw_method=0.4, weights=weights)
    white = af.Particles(np.linalg.solve(root, points.T).T, weights=weights)
    found = af.log_density(white, np.linalg.solve(root, x.T).T, 0.4) - np.log(np.linalg.det(root))
    np.testing.assert_allclose(found, peer.logpdf(x.T), rtol=1e-10)
    one = af.Particles(points[:1])
    np.testing.assert_allclose(af.log_density(one, x, 0.5), multivariate_normal(points[0], 0.25 * np.eye(2)).logpdf(x), rtol=1e-12)
    np.testing.assert_allclose(af.log_density(mu, x, 0.5, sums=af.Spectral(1e-10)), af.log_density(mu, x, 0.5), atol=1e-9)


@pytest.mark.long
def test_entropy_of_a_gaussian(key):
    """`- E log N(x; 0, S + h^2 I)` for x from N(0, S), up to n^{-1/2}; the self term is 1/(n h^d) of it."""
    S, h, n = np.array([2.0, 0.5]), 0.3, 20_000
    mu = af.Particles(jax.random.normal(key, (n, 2)) * jnp.sqrt(S)[None])
    expected = 0.5 * np.sum(np.log(2 * np.pi * (S + h**2)) + S / (S + h**2))
    plan = af.Spectral(1e-8)
    assert abs(af.entropy(mu, h, sums=plan) - expected) < 0.03
    # Its gradient moves tokens apart: entropy grows along the score.
    grad = jax.grad(lambda x: af.entropy(af.Particles(x), h))(mu.points[:200])
    assert jnp.vdot(grad, mu.points[:200]) > 0


def test_bad_input_is_named(rng):
    mu = af.Particles(rng.normal(size=(5, 2)))
    with pytest.raises(ValueError, match="bandwidth must be positive, got 0"):
        af.entropy(mu, 0.0)
    with pytest.raises(ValueError, match=r"rows in R\^2, got \[3, 4\]"):
        af.log_density(mu, np.ones((3, 4)), 1.0)
    with pytest.raises(TypeError, match=r"for tokens in R\^d, got Particles on the Sphere"):
        af.entropy(af.samplers.sphere(4, 3, key=jax.random.key(0)), 1.0)
