"""Mixtures against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

import attnflow as af


@pytest.fixture
def mixture(rng):
    factors = rng.normal(size=(3, 2, 2))
    return af.GaussianMixture([1.0, 2.0, 3.0], rng.normal(size=(3, 2)), factors @ factors.transpose(0, 2, 1) + 0.1 * np.eye(2))


def test_density_against_scipy(mixture, rng):
    x = rng.normal(size=(50, 2)) * 2
    expected = sum(w * multivariate_normal(m, s).pdf(x) for w, m, s in zip(mixture.weights, mixture.means, mixture.covs, strict=True))
    np.testing.assert_allclose(mixture.density(jnp.asarray(x)), expected, rtol=1e-11)


def test_score_is_the_gradient_of_scipys_log_density(mixture, rng):
    x, h = rng.normal(size=(20, 2)), 1e-5
    parts = [(float(w), multivariate_normal(m, s)) for w, m, s in zip(mixture.weights, mixture.means, mixture.covs, strict=True)]

    def log_density(points):
        return np.log(sum(w * part.pdf(points) for w, part in parts))

    numeric = np.stack([(log_density(x + h * e) - log_density(x - h * e)) / (2 * h) for e in np.eye(2)], axis=1)
    np.testing.assert_allclose(mixture.score(jnp.asarray(x)), numeric, rtol=1e-6, atol=1e-7)


@pytest.mark.long
def test_score_far_away_is_finite(mixture):
    far = jnp.array([[1e4, -1e4]])
    exact = jax.grad(lambda y: mixture.log_density(y[None])[0])(far[0])
    np.testing.assert_allclose(mixture.score(far)[0], exact, rtol=1e-9)


@pytest.mark.long
def test_moments_by_quadrature_and_by_sample(mixture, key):
    np.testing.assert_allclose(mixture.integrate(lambda y: y), mixture.mean, atol=1e-12)
    centered = mixture.integrate(lambda y: (y - mixture.mean[None])[:, :, None] * (y - mixture.mean[None])[:, None, :])
    np.testing.assert_allclose(centered, mixture.cov, atol=1e-11)
    cloud = mixture.sample(200_000, key=key)
    np.testing.assert_allclose(cloud.mean, mixture.mean, atol=0.02)
    np.testing.assert_allclose(cloud.cov, mixture.cov, atol=0.05)


@pytest.mark.parametrize(
    ("weights", "means", "covs", "message"),
    [
        ([1.0, 1.0], [[0.0]], [[[1.0]]], r"must agree, got \[2\], \[1, 1\] and \[1, 1, 1\]"),
        ([-1.0, 2.0], [[0.0], [1.0]], [[[1.0]], [[1.0]]], r"weights must not be negative, got -1.0 at \[0\]"),
        ([1.0], [[0.0]], [[[0.0]]], r"covs must be positive definite, got smallest eigenvalue 0 in \[0\]"),
        ([1.0], [[0.0]], [[[-1.0]]], r"covs\[0\] must be positive semidefinite, got smallest eigenvalue -1"),
    ],
)
def test_bad_input_is_named(weights, means, covs, message):
    with pytest.raises(ValueError, match=message):
        af.GaussianMixture(weights, means, covs)
