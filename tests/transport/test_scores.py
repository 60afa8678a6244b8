"""Scores from tokens against the exact score of the law: their biases, their closed forms, and what passes of a fluctuation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af

MIX = af.GaussianMixture([0.5, 0.5], [[-2.0], [2.0]], [[[1.0]], [[1.0]]])
X = jnp.linspace(-3, 3, 7)[:, None]
EPS = (0.02, 0.01)


def biases():
    """`eps` times what the theory says, from derivatives of log rho alone: of the bridge and of the kernel density."""
    U = lambda x: MIX.log_density(x[None, None])[0]  # noqa: E731
    slope, curve = jax.grad(U), jax.grad(jax.grad(U))
    bridge = jax.grad(lambda x: curve(x) / 4 + slope(x) ** 2 / 8)
    density = lambda x: MIX.density(x[None, None])[0]  # noqa: E731
    kernel = jax.grad(lambda x: jax.grad(jax.grad(density))(x) / density(x) / 2)
    return {af.bridge_score: jax.jit(jax.vmap(bridge))(X[:, 0]), af.kernel_score: jax.jit(jax.vmap(kernel))(X[:, 0])}


def test_the_biases_are_those_of_the_theory():
    """Of first order for bridge and kernel density. The bridge's next is of third order, and so Richardson's falls eight times as eps
    halves."""
    tokens, exact = af.quadrature(MIX, 400), MIX.score(X)[:, 0]
    for score, expected in biases().items():
        off = [
            np.abs((score(tokens, eps)(X)[:, 0] - exact) / eps / np.abs(expected).max() - expected / np.abs(expected).max()) for eps in EPS
        ]
        assert off[1].max() < 0.01
        np.testing.assert_allclose(np.log2(off[0].max() / off[1].max()), 2 if score is af.bridge_score else 1, atol=0.1)
    sizes = [np.abs(af.richardson_score(tokens, eps)(X)[:, 0] - exact).max() for eps in EPS]
    np.testing.assert_allclose(np.log2(sizes[0] / sizes[1]), 3, atol=0.1)


def test_scores_of_a_gaussian_are_affine_and_those_of_its_tokens(rng):
    g, eps = af.Gaussian([0.5], [[0.8]]), 0.3
    tokens, x = af.quadrature(g, 400), jnp.linspace(-1, 2, 7)[:, None]
    for score in (af.bridge_score, af.kernel_score, af.richardson_score):
        exact = score(g, eps)
        assert isinstance(exact, af.Affine)
        np.testing.assert_allclose(score(tokens, eps)(x), exact(x), atol=1e-8)
    # By hand: the kernel density is N(m, s^2 + eps), the bridge B = m + M (x - m).
    factor = (np.sqrt(0.64 + eps**2 / 4) - eps / 2) / 0.8
    np.testing.assert_allclose(af.kernel_score(g, eps)(x), -(x - 0.5) / 1.1, atol=1e-12)
    np.testing.assert_allclose(af.bridge_score(g, eps)(x), 2 * (factor - 1) / eps * (x - 0.5), atol=1e-12)


def test_kernel_scores_of_tokens_are_the_derivative_of_their_density(rng):
    """Against central differences of the log density; weighted tokens in the plane, off the support."""
    points, w, eps, h = rng.normal(size=(30, 2)), rng.uniform(size=30), 0.4, 1e-5
    x = rng.normal(size=(5, 2))
    log_rho = lambda x: np.log(np.exp(-((x[:, None] - points[None]) ** 2).sum(axis=2) / (2 * eps)) @ w)  # noqa: E731
    expected = np.stack([(log_rho(x + h * e) - log_rho(x - h * e)) / (2 * h) for e in np.eye(2)], axis=1)
    np.testing.assert_allclose(af.kernel_score(af.Particles(points, weights=w), eps)(x), expected, atol=1e-8)


def test_scores_of_a_mixture():
    """The kernel density of a mixture is the heat flow of it, exactly."""
    np.testing.assert_allclose(af.kernel_score(MIX, 0.05)(X), af.kernel_score(af.quadrature(MIX, 400), 0.05)(X), atol=1e-8)


@pytest.mark.parametrize(
    ("score", "factor"),
    [
        (af.kernel_score, lambda q: np.exp(-q / 2)),
        (af.bridge_score, lambda q: 1 - np.tanh(q / 4)),
        (af.richardson_score, lambda q: 1 - 2 * np.tanh(q / 8) + np.tanh(q / 4)),
    ],
)
def test_what_passes_of_a_fluctuation(score, factor):
    """Weights `1 + h cos(k x)` on a flat grid: the score is `-h k sin(k x)` times a factor of `q = eps k^2`."""
    eps, h, points = 0.05, 1e-3, np.linspace(-10, 10, 400)
    x = jnp.linspace(-1, 1, 7)[:, None]
    for k in (1.0, 5.0, 9.0):
        mu = af.Particles(points[:, None], weights=1 + h * np.cos(k * points))
        found = np.vdot(score(mu, eps)(x), np.sin(k * x)) / np.vdot(np.sin(k * x), np.sin(k * x))
        np.testing.assert_allclose(-found / (h * k), factor(eps * k**2), atol=2e-3)


def test_bad_input_is_named(rng):
    sphere = af.samplers.sphere(5, 3, key=jax.random.key(0))
    with pytest.raises(TypeError, match="a kernel score is for tokens in R"):
        af.kernel_score(sphere, 0.1)
    for score in (af.bridge_score, af.kernel_score, af.richardson_score):
        with pytest.raises(ValueError, match="eps must be positive, got -1"):
            score(MIX, -1.0)
