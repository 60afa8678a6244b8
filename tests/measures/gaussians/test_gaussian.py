"""Gaussians: quadrature, sampling, affine moves, matrix square roots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.stats

import attnflow as af
from attnflow.numerics.linalg import psd_sqrt


def random_cov(rng, d, rank=None):
    factor = rng.normal(size=(d, rank or d))
    return factor @ factor.T


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.cases
def test_quadrature_is_exact_on_moments(rng, d):
    mean, cov = rng.normal(size=d), random_cov(rng, d)
    g = af.Gaussian(mean, cov)
    np.testing.assert_allclose(g.integrate(lambda y: y), mean, rtol=1e-12, atol=1e-13)
    second = g.integrate(lambda y: y[:, :, None] * y[:, None, :])
    np.testing.assert_allclose(second, cov + np.outer(mean, mean), rtol=1e-11)
    # E exp<a, y> = exp(<a, m> + <a, S a> / 2).
    a = 0.3 * rng.normal(size=d) / np.sqrt(np.trace(cov))
    np.testing.assert_allclose(g.integrate(lambda y: jnp.exp(y @ a)), np.exp(a @ mean + a @ cov @ a / 2), rtol=1e-9)


def test_quadrature_says_where_it_ends():
    with pytest.raises(ValueError, match="up to dimension 6, got 7"):
        af.Gaussian(np.zeros(7), np.eye(7)).integrate(lambda y: y)


def test_sample_has_the_moments_also_when_singular(rng, key):
    cov = random_cov(rng, 3, rank=2)
    mu = af.Gaussian([1.0, 2.0, 3.0], cov).sample(200_000, key=key)
    np.testing.assert_allclose(mu.mean, [1, 2, 3], atol=0.02)
    np.testing.assert_allclose(mu.cov, cov, atol=0.05)
    assert np.linalg.eigvalsh(mu.cov)[0] < 1e-12


def test_rate_is_the_derivative_of_push(rng):
    g = af.Gaussian(rng.normal(size=3), random_cov(rng, 3))
    velocity = af.Affine(jnp.asarray(rng.normal(size=(3, 3))), jnp.asarray(rng.normal(size=3)))
    h = 1e-6
    ahead, back = g.push(velocity.step(h)), g.push(velocity.step(-h))
    mean_rate, cov_rate = g.rate(velocity)
    np.testing.assert_allclose((ahead.mean - back.mean) / (2 * h), mean_rate, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose((ahead.cov - back.cov) / (2 * h), cov_rate, rtol=1e-8, atol=1e-8)


def test_push_is_the_law_of_the_mapped_sample(rng, key):
    g = af.Gaussian(rng.normal(size=2), random_cov(rng, 2))
    map = af.Affine(jnp.asarray(rng.normal(size=(2, 2))), jnp.asarray(rng.normal(size=2)))
    cloud = g.sample(50, key=key)
    exact = af.Gaussian.matching(cloud).push(map)
    np.testing.assert_allclose(exact.mean, cloud.push(map).mean, atol=1e-13)
    np.testing.assert_allclose(exact.cov, cloud.push(map).cov, atol=1e-13)


def test_only_affine_velocities_move_a_gaussian():
    with pytest.raises(TypeError, match="a Gaussian stays one only under an Affine map, got the function"):
        af.Gaussian([0.0], [[1.0]]).rate(lambda x: x)


@pytest.mark.parametrize("rank", [1, 4])
def test_square_root_against_scipy(rng, rank):
    cov = random_cov(rng, 4, rank)
    root = psd_sqrt(jnp.asarray(cov))
    np.testing.assert_allclose(root @ root, cov, atol=1e-12)
    if rank == 4:
        np.testing.assert_allclose(root, scipy.linalg.sqrtm(cov).real, atol=1e-10)


def test_square_root_differentiates_at_repeated_eigenvalues(rng):
    direction = jnp.asarray(random_cov(rng, 3) - random_cov(rng, 3))
    root, change = jax.jvp(psd_sqrt, (jnp.eye(3),), (direction,))
    np.testing.assert_allclose(root, np.eye(3), atol=1e-15)
    # (I + h D)^1/2 = I + h D / 2 + O(h^2).
    np.testing.assert_allclose(change, direction / 2, atol=1e-14)
    gradient = jax.grad(lambda s: jnp.sum(psd_sqrt(s) * direction))(jnp.eye(3))
    np.testing.assert_allclose(gradient, direction / 2, atol=1e-14)
    second = jax.jvp(lambda s: jax.jvp(psd_sqrt, (s,), (direction,))[1], (jnp.eye(3),), (direction,))[1]
    np.testing.assert_allclose(second, -direction @ direction / 4, atol=1e-12)


@pytest.mark.parametrize(
    ("mean", "cov", "message"),
    [
        ([0.0, 0.0], [[1.0, 0.0], [0.0, -0.5]], "cov must be positive semidefinite, got smallest eigenvalue -0.5"),
        ([0.0, 0.0], [[1.0, 0.3], [0.0, 1.0]], r"cov must be symmetric, got 0.3 at \[0, 1\] but 0.0 at \[1, 0\]"),
        ([0.0], np.eye(2), r"mean and cov must agree in dimension, got \[1\] and \[2, 2\]"),
        ([0.0], np.ones((1, 2)), r"cov must be square \[d, d\], got \[1, 2\]"),
        ([np.nan], np.eye(1), r"mean must be finite, got nan at \[0\]"),
        (0.0, np.eye(1), r"mean must have shape \[d\], got \[\]"),
    ],
)
def test_bad_input_is_named(mean, cov, message):
    with pytest.raises(ValueError, match=message):
        af.Gaussian(mean, cov)


@pytest.mark.parametrize("d", [1, 3])
def test_density_and_score_against_scipy(rng, d):
    mean, cov, x, h = rng.normal(size=d), random_cov(rng, d), rng.normal(size=(7, d)), 1e-5
    mu, peer = af.Gaussian(mean, cov), scipy.stats.multivariate_normal(mean, cov)
    np.testing.assert_allclose(mu.log_density(x), np.reshape(peer.logpdf(x), -1), rtol=1e-10)
    np.testing.assert_allclose(mu.density(x), np.reshape(peer.pdf(x), -1), rtol=1e-9)
    slopes = [(np.reshape(peer.logpdf(x + h * e) - peer.logpdf(x - h * e), -1)) / (2 * h) for e in np.eye(d)]
    np.testing.assert_allclose(mu.score(x), np.stack(slopes, axis=1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mu.score_map()(jnp.asarray(x)), mu.score(x), rtol=1e-9)
    np.testing.assert_allclose(mu.entropy(), peer.entropy(), rtol=1e-12)
    np.testing.assert_allclose(af.entropy(mu), peer.entropy(), rtol=1e-12)
    np.testing.assert_allclose(af.log_density(mu, x), mu.log_density(x), rtol=1e-14)


def test_heat_is_a_convolution_with_a_normal_law(rng):
    mean, cov, x = rng.normal(size=2), random_cov(rng, 2), rng.normal(size=(5, 2))
    mu, t = af.Gaussian(mean, cov), 0.7
    expected = scipy.stats.multivariate_normal(mean, cov + t * np.eye(2)).pdf(x)
    np.testing.assert_allclose(mu.heat(t).density(x), expected, rtol=1e-12)
    one = af.GaussianMixture([1.0], mean[None], cov[None])
    np.testing.assert_allclose(one.heat(t).density(x), expected, rtol=1e-12)
    # d_t rho = 1/2 Laplace rho.
    rate = jax.grad(lambda t: mu.heat(t).density(x[:1])[0])(t)
    hessian = jax.hessian(lambda y: mu.heat(t).density(y[None])[0])(jnp.asarray(x[0]))
    np.testing.assert_allclose(rate, np.trace(hessian) / 2, rtol=1e-9)


def test_a_singular_law_has_no_density():
    mu = af.Gaussian([0.0, 0.0], [[1.0, 0.0], [0.0, 0.0]])
    for ask in (mu.density, mu.log_density, mu.score):
        with pytest.raises(ValueError, match="if its covariance has full rank, got smallest eigenvalue 0"):
            ask(np.zeros((1, 2)))
    with pytest.raises(ValueError, match="t must not be negative, got -1"):
        mu.heat(-1.0)
