"""Gaussian flows: closed forms, blow-up, and the tokens that follow them (GT 14, 15)."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import attnflow as af


def random_cov(rng, d, rank=None):
    factor = rng.normal(size=(d, rank or d)) / np.sqrt(d)
    return factor @ factor.T


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.cases
def test_softmax_covariance_in_closed_form(rng, d):
    A = rng.normal(size=(d, d))
    g = af.Gaussian(rng.normal(size=d), random_cov(rng, d) + 0.1 * np.eye(d))
    end = 0.5 * min(float(af.theory.softmax_blow_up_time(g.cov, A)), 2.0)
    path = af.solve(af.Attention(af.Quadratic(jnp.asarray(A)), np.eye(d)), g, t1=end, rtol=1e-11, atol=1e-12)
    exact = np.linalg.inv(np.linalg.inv(g.cov) - (A + A.T) * end)
    np.testing.assert_allclose(path.final.cov, exact, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(path.ts, np.linspace(0, end, 100), atol=1e-14)
    np.testing.assert_array_equal(path[0].cov, g.cov)
    np.testing.assert_allclose(af.theory.softmax_covariance(g.cov, A, end), exact, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("d", [1, 2, 5])
def test_blow_up_is_named_and_timed(rng, d):
    A = rng.normal(size=(d, d)) + np.eye(d)
    g = af.Gaussian(rng.normal(size=d), random_cov(rng, d) + 0.1 * np.eye(d))
    exact = float(1 / np.linalg.eigvals(np.asarray(g.cov) @ (A + A.T)).real.max())
    assert float(af.theory.softmax_blow_up_time(g.cov, A)) == pytest.approx(exact, rel=1e-12)
    path = af.solve(af.Attention(af.Quadratic(jnp.asarray(A)), np.eye(d)), g, t1=3 * exact, rtol=1e-10, atol=1e-10)
    assert path.status.kind == "blow-up"
    assert path.status.time == pytest.approx(exact, rel=1e-7)
    assert "blow-up at t =" in str(path.status)
    assert np.isfinite(path.final.cov).all()
    assert float(jnp.abs(path.final.cov).max()) > 1e6
    assert float(path.ts[-1]) == path.status.time
    # The frames before it are the ones asked for.
    np.testing.assert_allclose(path.ts[:-1], np.linspace(0, 3 * exact, 100)[: len(path) - 1])


def test_no_blow_up_no_time():
    assert af.theory.softmax_blow_up_time(np.eye(2), -np.eye(2)) == np.inf


def covariance_rate(kind, Q, K, V, S):
    """S' as printed for invertible S, in NumPy."""
    if kind == "L2":
        half = 2 * V @ np.linalg.inv(np.linalg.inv(S) + 2 * K.T @ K) @ K.T @ Q @ S
    else:
        A = K.T @ Q
        values, vectors = np.linalg.eigh(S)
        root = vectors @ np.diag(np.sqrt(values)) @ vectors.T
        N = root @ A @ S @ A.T @ root
        ev, eu = np.linalg.eigh(np.eye(len(S)) + 4 * N)
        w = 2 * np.linalg.inv(np.eye(len(S)) + eu @ np.diag(np.sqrt(ev)) @ eu.T)
        half = V @ root @ w @ root @ A @ S
    return half + half.T


@pytest.mark.parametrize("kind", ["L2", "sinkhorn"])
@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.cases
def test_covariance_flow_against_scipy(rng, kind, d):
    Q, K, V = rng.normal(size=(3, d, d)) / np.sqrt(d)
    S, m = random_cov(rng, d) + 0.1 * np.eye(d), rng.normal(size=d)
    expected = solve_ivp(
        lambda t, s: covariance_rate(kind, Q, K, V, s.reshape(d, d)).ravel(),
        (0, 1.0),
        S.ravel(),
        method="DOP853",
        rtol=1e-11,
        atol=1e-12,
    ).y[:, -1]
    law = af.Attention(af.squared_distance(Q, K), V) if kind == "L2" else af.Attention(af.dot_product(Q, K), V, af.Sinkhorn())
    path = af.solve(law, af.Gaussian(m, S), t1=1.0, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(path.final.cov, expected.reshape(d, d), rtol=1e-7, atol=1e-9)
    if kind == "sinkhorn":
        # m' = V m.
        values, vectors = np.linalg.eig(V)
        np.testing.assert_allclose(path.final.mean, (vectors @ np.diag(np.exp(values)) @ np.linalg.inv(vectors)).real @ m, rtol=1e-7)


@pytest.mark.parametrize("kind", ["softmax", "L2", "sinkhorn"])
@pytest.mark.cases
def test_rank_is_kept(rng, kind):
    """GT 17: a singular covariance stays singular, with the same rank."""
    Q, K, V = rng.normal(size=(3, 4, 4)) / 2
    law = {"softmax": af.Attention(af.dot_product(Q, K), V), "L2": af.Attention(af.squared_distance(Q, K), V)}.get(
        kind, af.Attention(af.dot_product(Q, K), V, af.Sinkhorn())
    )
    path = af.solve(law, af.Gaussian(rng.normal(size=4), 0.2 * random_cov(rng, 4, 2)), t1=0.5, rtol=1e-11, atol=1e-13)
    values = np.linalg.eigvalsh(path.final.cov)
    assert path.status.kind == "reached"
    assert values[1] < 1e-10 < 1e-3 < values[2]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["softmax", "L2", "sinkhorn"])
def test_tokens_follow_the_gaussian_at_rate_one_half(kind):
    """The error of the covariance of n tokens falls like n^(-1/2)."""
    rng = np.random.default_rng(1)
    Q, K, V = 0.5 * rng.normal(size=(3, 2, 2))
    logit = af.squared_distance(Q, K) if kind == "L2" else af.dot_product(Q, K)
    law = af.Attention(logit, V, af.Sinkhorn(tolerance=1e-6) if kind == "sinkhorn" else af.Softmax())
    g = af.Gaussian([0.5, -0.3], [[1.0, 0.3], [0.3, 0.6]])
    # Both pictures take the same steps, so that only the number of tokens differs.
    steps = {"t1": 0.4, "save_at": 1, "solver": diffrax.Heun(), "step": 0.1}
    exact = af.solve(law, g, **steps).final
    sizes, errors = [50, 200, 800], []
    for n in sizes:
        finals = [af.solve(law, g.sample(n, key=jax.random.key(k)), **steps).final for k in range(12)]
        errors.append(np.sqrt(np.mean([np.sum((f.cov - exact.cov) ** 2) + np.sum((f.mean - exact.mean) ** 2) for f in finals])))
    assert np.polyfit(np.log(sizes), np.log(errors), 1)[0] == pytest.approx(-0.5, abs=0.12)
    assert errors[-1] < 0.2


@pytest.mark.long
def test_gradient_of_a_covariance_flow_at_the_identity():
    """The default start S = I has repeated eigenvalues all along."""

    def loss(a):
        law = af.Attention(af.dot_product(a * jnp.eye(3), jnp.eye(3)), -jnp.eye(3), af.Sinkhorn())
        return jnp.trace(af.solve(law, af.Gaussian(jnp.zeros(3), jnp.eye(3)), t1=1.0, save_at=1, rtol=1e-10, atol=1e-12).final.cov)

    h = 1e-5
    np.testing.assert_allclose(jax.grad(loss)(0.7), (loss(0.7 + h) - loss(0.7 - h)) / (2 * h), rtol=1e-6)
