"""The Gaussian picture against quadrature clouds, algebra, and sampled tokens (GT 14, 15)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af
from attnflow.measures.gaussians.base import hermite


def matrices(rng, d, size=0.5):
    return tuple(size * rng.normal(size=(3, d, d)) / np.sqrt(d))


def random_cov(rng, d, rank):
    factor = rng.normal(size=(d, rank)) / np.sqrt(rank)
    return factor @ factor.T


def quadrature_cloud(g):
    """Weighted tokens that integrate polynomials and exponentials like the Gaussian does, to many digits."""
    nodes, weights = hermite(g.dim)
    root = np.linalg.cholesky(np.asarray(g.cov) + 1e-300 * np.eye(g.dim)) if np.linalg.matrix_rank(g.cov) == g.dim else None
    if root is None:
        values, vectors = np.linalg.eigh(g.cov)
        root = vectors * np.sqrt(np.maximum(values, 0))
    return af.Particles(np.asarray(g.mean) + nodes @ root.T, weights)


LOGITS = {"dot": af.dot_product, "distance": af.squared_distance}


LAWS = {
    "softmax": ("dot", af.Softmax()),
    "L2": ("distance", af.Softmax()),
    "sinkhorn": ("dot", af.Sinkhorn()),
    "sinkhorn distance": ("distance", af.Sinkhorn()),
    "linear": ("dot", af.Linear()),
}
# The quadrature cloud in d = 5 has 16,807 tokens: too many for Sinkhorn, which the algebra below tests there.
CASES = [(d, s, law) for d in (1, 2, 5) for s in ("nothing", "A", "S")[: 1 if d == 1 else 3] for law in LAWS if d < 5 or "sink" not in law]


@pytest.mark.parametrize(("d", "singular", "name"), CASES)
def test_affine_map_is_the_velocity_of_a_quadrature_cloud(rng, d, singular, name):
    logit, normalize = LAWS[name]
    Q, K, V = matrices(rng, d, 0.45)
    if singular == "A":
        Q[-1] = 0
        K[-1] = 0
    g = af.Gaussian(rng.normal(size=d), 0.5 * random_cov(rng, d, d - 1 if singular == "S" else d))
    law = af.Attention(LOGITS[logit](Q, K), V, normalize)
    cloud = quadrature_cloud(g)
    x = jnp.asarray(g.mean)[None] + jnp.asarray(0.7 * rng.normal(size=(9, d)))
    tolerance = {1: 1e-9, 2: 1e-8, 5: 2e-4}[d]
    np.testing.assert_allclose(law.at(g)(x), law.at(cloud)(x), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("d", [1, 2, 5])
def test_softmax_against_the_tilted_precision(rng, d):
    Q, K, V = matrices(rng, d, 1.5)
    m, S = rng.normal(size=d), random_cov(rng, d, d)
    logit = af.squared_distance(Q, K, 0.8)
    velocity = af.Attention(logit, V).at(af.Gaussian(m, S))
    precision = np.linalg.inv(S) + 2 * K.T @ K / 0.8
    x = rng.normal(size=(4, d))
    expected = np.linalg.solve(precision, np.linalg.solve(S, m)[:, None] + 2 * K.T @ Q @ x.T / 0.8).T @ V.T
    np.testing.assert_allclose(velocity(jnp.asarray(x)), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("singular", ["nothing", "A", "S", "both"])
def test_sinkhorn_pair_is_the_bridge(rng, d, singular):
    """The pair (x, y) with y = m + M(x - m) + noise of covariance W must have marginal S twice and interact by <y, A x> only."""
    rank = max(d - 1, 1)
    A = rng.normal(size=(d, d)) * 2
    if singular in ("A", "both"):
        A = rng.normal(size=(d, rank)) @ rng.normal(size=(rank, d))
    S = random_cov(rng, d, rank if singular in ("S", "both") else d)
    m = rng.normal(size=d)
    M = np.asarray(af.Attention(af.Quadratic(jnp.asarray(A)), np.eye(d), af.Sinkhorn()).at(af.Gaussian(m, S)).matrix)
    W = S - M @ S @ M.T  # what is left of the variance of y given x
    assert np.linalg.eigvalsh((W + W.T) / 2)[0] > -1e-12
    np.testing.assert_allclose(W @ A, M, atol=1e-10)  # the interaction W^-1 M is A
    np.testing.assert_allclose(W + W @ A @ S @ A.T @ W, S, atol=1e-10)


def test_sinkhorn_of_a_standard_bridge():
    """GT 19: the self-bridge of N(0, s^2) at temperature eps, E[y|x] = x (sqrt(s^4 + eps^2/4) - eps/2) / s^2."""
    s, eps = 1.7, 0.6
    law = af.Attention(af.dot_product([[1.0]], [[1.0]], eps), [[1.0]], af.Sinkhorn())
    slope = law.at(af.Gaussian([0.0], [[s**2]])).matrix[0, 0]
    np.testing.assert_allclose(slope, (np.sqrt(s**4 + eps**2 / 4) - eps / 2) / s**2, rtol=1e-14)


def test_heads_average_in_both_pictures(rng):
    laws = [
        af.Attention(LOGITS[name](*matrices(rng, 2)[:2]), rng.normal(size=(2, 2)), n)
        for name, n in [("dot", af.Softmax()), ("distance", af.Sinkhorn())]
    ]
    g = af.Gaussian(rng.normal(size=2), random_cov(rng, 2, 2))
    both = af.MultiHead(laws).at(g)
    np.testing.assert_allclose(both.matrix, (laws[0].at(g).matrix + laws[1].at(g).matrix) / 2)
    np.testing.assert_allclose(both.offset, (laws[0].at(g).offset + laws[1].at(g).offset) / 2)


@pytest.mark.long
def test_gradients_through_square_roots_at_the_identity(rng):
    A, direction = jnp.asarray(rng.normal(size=(3, 3))), jnp.asarray(random_cov(rng, 3, 3))

    def loss(h):
        law = af.Attention(af.Quadratic(A), jnp.eye(3), af.Sinkhorn())
        return jnp.sum(jnp.sin(law.at(af.Gaussian(jnp.ones(3), jnp.eye(3) + h * direction)).matrix))

    h = 1e-6
    np.testing.assert_allclose(jax.grad(loss)(0.0), (loss(h) - loss(-h)) / (2 * h), rtol=1e-8)


@pytest.mark.parametrize("normalize", [af.Unnormalized(), af.Hardmax(), af.Sigmoid(), af.Sinkhorn(half_steps=3)])
def test_laws_without_a_gaussian_picture_say_so(normalize):
    with pytest.raises(ValueError, match=r"does not keep a Gaussian|has no Gaussian picture"):
        af.simple_attention(1.0, 2, normalize).at(af.Gaussian([0.0, 0.0], np.eye(2)))


def test_linear_attention_with_a_distance_logit_says_so():
    law = af.Attention(af.squared_distance(np.eye(2), np.eye(2)), np.eye(2), af.Linear())
    with pytest.raises(ValueError, match="quadratic in x"):
        law.at(af.Gaussian([0.0, 0.0], np.eye(2)))


@pytest.mark.parametrize("normalize", [af.Softmax(), af.Sinkhorn()])
@pytest.mark.long
def test_closure_residual_falls_with_n_and_sees_what_is_not_gaussian(normalize):
    law = af.simple_attention(0.3, 2, normalize)
    sizes, draws = np.array([100, 400, 1600]), 6
    mean = [
        np.mean([float(af.closure_residual(law, af.samplers.normal(int(n), 2, key=jax.random.key(100 * k)))) for k in range(draws)])
        for n in sizes
    ]
    slope = np.polyfit(np.log(sizes), np.log(mean), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.15)
    two_clusters = af.samplers.mixture(1600, [1, 1], [[-3.0, 0.0], [3.0, 0.0]], 0.01 * np.stack([np.eye(2)] * 2), key=jax.random.key(0))
    assert float(af.closure_residual(law, two_clusters)) > 5 * mean[-1]
