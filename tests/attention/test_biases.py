"""Logits with biases, `<Qx + a, Ky + b> / T`, under every normalization and in both pictures."""

import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af


@pytest.fixture
def case(rng):
    """A law's parts, a weighted cloud off the origin, queries, and their logits written out."""
    Q, K, V = rng.normal(size=(2, 3)), rng.normal(size=(2, 3)), rng.normal(size=(3, 3))
    a, b, T = rng.normal(size=2), rng.normal(size=2), 1.7
    y, w, x = rng.normal(np.array([1.0, 0.0, -2.0]), size=(11, 3)), rng.random(11), rng.normal(size=(5, 3))
    mu = af.Particles(y, w)
    logits = lambda x: (x @ Q.T + a) @ (y @ K.T + b).T / T  # noqa: E731
    return af.dot_product(Q, K, T, query_bias=a, key_bias=b), V, mu, x, logits, af.dot_product(Q, K, T)


def kernel(name, logits, w):
    if name in ("softmax", "unnormalized"):
        p = np.exp(logits) * w
        return p / p.sum(1, keepdims=True) if name == "softmax" else p
    if name == "hardmax":
        return (logits == logits.max(1, keepdims=True)).astype(float)
    return logits * w if name == "linear" else w / (1 + np.exp(-logits))


@pytest.mark.parametrize("name", ["softmax", "unnormalized", "hardmax", "sigmoid", "linear"])
@pytest.mark.cases
def test_velocity_against_numpy(case, name):
    logit, V, mu, x, logits, _ = case
    makers = {"softmax": af.Softmax, "unnormalized": af.Unnormalized, "hardmax": af.Hardmax, "sigmoid": af.Sigmoid, "linear": af.Linear}
    law = af.Attention(logit, V, makers[name]())
    expected = kernel(name, logits(x), np.asarray(mu.weights))
    np.testing.assert_allclose(law.weights(jnp.asarray(x), mu), expected, rtol=1e-12, atol=1e-13)
    for sums in (af.Dense(), af.Streamed(4, 4)):
        np.testing.assert_allclose(law.at(mu, sums=sums)(jnp.asarray(x)), expected @ mu.points @ V.T, rtol=1e-12, atol=1e-12)


def test_converged_sinkhorn_does_not_see_biases(case):
    logit, V, mu, x, _, plain = case
    with_bias, without = (af.Attention(each, V, af.Sinkhorn(tolerance=1e-13)).at(mu)(jnp.asarray(x)) for each in (logit, plain))
    np.testing.assert_allclose(with_bias, without, atol=1e-12)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_cut_sinkhorn_starts_from_the_biased_logits(case, count):
    logit, V, mu, _, logits, plain = case
    y, w = np.asarray(mu.points), np.asarray(mu.weights)
    p = np.exp(logits(y))
    for k in range(count):
        p = p / (p @ w)[:, None] if k % 2 == 0 else p / (w @ p)[None]
    law = af.Attention(logit, V, af.Sinkhorn(half_steps=count))
    np.testing.assert_allclose(law.weights(mu.points, mu), p * w, rtol=1e-11)
    np.testing.assert_allclose(law.at(mu)(mu.points), (p * w) @ y @ V.T, rtol=1e-11, atol=1e-12)
    assert not np.allclose(p * w, af.Attention(plain, V, af.Sinkhorn(half_steps=count)).weights(mu.points, mu), rtol=1e-2)


def gauss_hermite(m, S, k=40):
    """Weighted tokens that integrate like N(m, S) on R^2."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(k)
    u = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    return af.Particles(m + u @ np.linalg.cholesky(S).T, np.outer(weights, weights).ravel())


@pytest.mark.parametrize("normalize", [af.Softmax(), af.Linear(), af.Sinkhorn()], ids=["softmax", "linear", "sinkhorn"])
@pytest.mark.cases
def test_gaussian_picture_is_that_of_a_quadrature_cloud(rng, normalize):
    Q, K, V = 0.5 * rng.normal(size=(3, 2, 2))
    m, S = rng.normal(size=2), np.array([[0.6, 0.2], [0.2, 0.3]])
    a, b = rng.normal(size=(2, 2))
    law = af.Attention(af.dot_product(Q, K, 0.8, query_bias=a, key_bias=b), V, normalize)
    x = jnp.asarray(rng.normal(size=(6, 2)))
    np.testing.assert_allclose(law.at(af.Gaussian(m, S))(x), law.at(gauss_hermite(m, S))(x), rtol=1e-9, atol=1e-9)


def test_gaussian_softmax_with_every_term(rng):
    """E[y|x] = (S^-1 + P)^-1 (S^-1 m + A x + p)."""
    A, F, G, V = rng.normal(size=(4, 2, 2))
    P, S, m, p, r = F @ F.T, G @ G.T + 0.1 * np.eye(2), rng.normal(size=2), rng.normal(size=2), rng.normal(size=2)
    logit = af.Quadratic(jnp.asarray(A), jnp.asarray(P), jnp.eye(2), jnp.asarray(p), jnp.asarray(r), jnp.asarray(0.3))
    x = rng.normal(size=(4, 2))
    mean = np.linalg.solve(np.linalg.inv(S) + P, (np.linalg.solve(S, m) + p)[:, None] + A @ x.T).T
    np.testing.assert_allclose(af.Attention(logit, V).at(af.Gaussian(m, S))(jnp.asarray(x)), mean @ V.T, rtol=1e-10)
