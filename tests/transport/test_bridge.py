"""Bridges, scores and heat against closed forms: Gaussians, mixtures, and the order of the schemes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.stats import norm

import attnflow as af


def quantiles(n, s=1.0):
    """Tokens at the middles of n equal masses of N(0, s^2): no sampling noise."""
    return af.Particles(s * norm.ppf((np.arange(n) + 0.5) / n)[:, None])


def test_gaussian_bridge_by_eigenvalues(rng):
    """B = x (sqrt(s^4 + eps^2/4) - eps/2) / s^2 in every eigendirection, singular ones included."""
    eps, s2 = 0.7, np.array([2.0, 0.3, 0.0])
    U, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    g = af.Gaussian([1.0, -2.0, 0.5], (U * s2) @ U.T)
    factors = np.array([(np.sqrt(s**2 + eps**2 / 4) - eps / 2) / s if s else 0.0 for s in s2])
    x = rng.normal(size=(5, 3))
    expected = np.asarray(g.mean) + ((x - np.asarray(g.mean)) @ U * factors) @ U.T
    np.testing.assert_allclose(af.self_bridge(g, eps).barycentric(x), expected, atol=1e-12)


def test_tokens_follow_the_gaussian_bridge():
    eps, mu = 0.5, quantiles(2000)
    bridge = af.self_bridge(mu, eps)
    inside = np.linspace(-2, 2, 9)[:, None]
    np.testing.assert_allclose(bridge.barycentric(inside), inside * (np.sqrt(1 + eps**2 / 4) - eps / 2), atol=2e-3)
    assert bridge.converged
    assert bridge.error <= 1e-10
    assert bridge.stats["sinkhorn"]["iterations"] == bridge.iterations


@pytest.mark.long
def test_plan_potential_and_cost(rng):
    """Both marginals, the plan from the potential, and the cost from the plan: three formulas, one bridge."""
    points, weights, eps = rng.normal(size=(40, 2)) + 3.0, rng.uniform(size=40), 0.3
    weights[7] = 0.0
    mu = af.Particles(points, weights=weights)
    bridge = af.self_bridge(mu, eps)
    w, plan = weights / weights.sum(), np.asarray(bridge.plan())
    np.testing.assert_allclose(plan.sum(axis=0), w, atol=1e-11)
    np.testing.assert_allclose(plan.sum(axis=1), w, atol=1e-11)
    C, phi = 0.5 * ((points[:, None] - points[None]) ** 2).sum(axis=2), np.asarray(bridge.potential)
    np.testing.assert_allclose(plan, np.exp((phi[:, None] + phi[None] - C) / eps) * np.outer(w, w), atol=1e-11)
    some = plan > 0
    cost = (C * plan).sum() + eps * (plan[some] * np.log(plan[some] / np.outer(w, w)[some])).sum()
    np.testing.assert_allclose(bridge.cost, cost, rtol=1e-9)


def test_bias_of_the_scores():
    """(B - x)/eps = 1/2 grad log rho + eps [...]: for N(0, 1) at x, -x/2 + eps x/8; the bridge score is twice that."""
    mu, x = quantiles(4000), np.array([[0.5], [1.0]])
    for eps in (0.05, 0.1):
        bias = np.asarray(af.self_bridge(mu, eps).score(x)) + x
        np.testing.assert_allclose(bias, eps * x / 4, rtol=0.1)


@pytest.mark.parametrize("step", ["bridge", "euler"])
@pytest.mark.cases
def test_orders_of_the_heat_schemes_on_a_gaussian(step):
    """x <- 2x - B is of second order for the heat flow, Euler with the true score of first, to time 1 from N(0, 1/4)."""
    errors = []
    for count in (8, 16, 32):
        g, eps = af.Gaussian([0.0], [[0.25]]), 1 / count
        for _ in range(count):
            score = af.Affine(-jnp.linalg.inv(g.cov), jnp.zeros(1))
            g = af.sinkhorn_step(af.Heat(), g, eps) if step == "bridge" else af.euler_step(score, g, eps)
        errors.append(float(af.wasserstein2(g, af.heat_flow(af.Gaussian([0.0], [[0.25]]), 1.0))))
    slope = np.polyfit(np.log([1 / 8, 1 / 16, 1 / 32]), np.log(errors), 1)[0]
    assert slope == pytest.approx(2.0 if step == "bridge" else 1.0, abs=0.2)


def test_one_step_of_both_schemes():
    """W2(Euler, bridge) = eps^2 / (8 s^3) (1 + o(1)) for N(0, s^2)."""
    s, eps = 0.8, 1e-3
    g = af.Gaussian([0.0], [[s**2]])
    euler = af.euler_step(af.Affine(-jnp.linalg.inv(g.cov), jnp.zeros(1)), g, eps)
    assert float(af.wasserstein2(af.sinkhorn_step(af.Heat(), g, eps), euler)) == pytest.approx(eps**2 / (8 * s**3), rel=0.01)


@pytest.mark.long
def test_the_step_is_sinkhorn_attention(rng):
    """A = I/eps, V = -I, one layer of the normalized frame."""
    mu, eps = af.Particles(rng.normal(size=(50, 2))), 0.4
    law = af.Attention(af.dot_product(np.eye(2), np.eye(2), temperature=eps), -np.eye(2), af.Sinkhorn())
    layer = af.layers([af.normalized_update(law)], mu, depth=1).final
    np.testing.assert_allclose(af.sinkhorn_step(af.Heat(), mu, eps).points, layer.points, atol=1e-12)


def test_heat_flow_of_a_mixture_by_characteristics():
    """Tokens moved by -1/2 score of the exact law stay quantiles of it."""
    mix = af.GaussianMixture([0.5, 0.5], [[-2.0], [2.0]], [[[1.0]], [[1.0]]])
    later = af.heat_flow(mix, 0.5)
    np.testing.assert_allclose(later.covs, 1.5 * np.ones((2, 1, 1)))
    np.testing.assert_allclose(later.mean, mix.mean)
    start = np.linspace(-3, 3, 7)
    move = lambda t, x: -0.5 * np.asarray(af.heat_flow(mix, t).score(jnp.asarray(x)[:, None]))[:, 0]  # noqa: E731
    end = solve_ivp(move, (0, 0.5), start, rtol=1e-6, atol=1e-8).y[:, -1]
    below = lambda x, s: (norm.cdf(x, -2, s) + norm.cdf(x, 2, s)) / 2  # noqa: E731
    np.testing.assert_allclose(below(end, np.sqrt(1.5)), below(start, 1.0), atol=1e-5)
    with pytest.raises(TypeError, match="use sinkhorn_step on tokens"):
        af.heat_flow(quantiles(5), 1.0)


@pytest.mark.long
def test_warm_starts_and_derivatives(rng):
    mu, eps = af.Particles(rng.normal(size=(60, 2))), 0.2
    cold = af.self_bridge(mu, eps)
    moved = af.Particles(mu.points + 1e-3 * rng.normal(size=(60, 2)))
    warm = af.self_bridge(moved, eps, start=cold)
    assert warm.iterations < af.self_bridge(moved, eps).iterations
    np.testing.assert_allclose(warm.barycentric(mu.points), af.self_bridge(moved, eps).barycentric(mu.points), atol=1e-9)
    # The envelope theorem: d cost / d x_i = 2 w_i (x_i - B(x_i)); each token is in both marginals.
    grad = jax.grad(lambda x: af.self_bridge(af.Particles(x), eps).cost)(mu.points)
    np.testing.assert_allclose(grad, 2 / 60 * (mu.points - cold.barycentric(mu.points)), atol=1e-8)


@pytest.mark.long
def test_extremes_of_the_temperature(rng):
    points = np.concatenate([rng.normal(size=(30, 2)), np.ones((3, 2))])
    mu = af.Particles(points)
    size = float(np.trace(mu.cov))
    hot, cold = af.self_bridge(mu, 1e4 * size), af.self_bridge(mu, 1e-4 * size)
    assert hot.converged
    assert cold.converged
    np.testing.assert_allclose(hot.barycentric(points), np.tile(mu.mean, (33, 1)), atol=1e-3)
    np.testing.assert_allclose(cold.barycentric(points), points, atol=1e-2)
    one = af.self_bridge(af.Particles([[1.0, 2.0]]), 1.0)
    np.testing.assert_allclose(one.barycentric([[5.0, 5.0]]), [[1.0, 2.0]])


@pytest.mark.long
def test_bad_input_is_named(rng):
    mu = af.Particles(rng.normal(size=(5, 2)))
    for eps in (0.0, -1.0):
        with pytest.raises(ValueError, match="eps must be positive, got"):
            af.self_bridge(mu, eps)
    with pytest.raises(ValueError, match="eps must be finite, got nan"):
        af.self_bridge(mu, float("nan"))
    with pytest.raises(ValueError, match="start must be a bridge of 5 tokens"):
        af.self_bridge(mu, 1.0, start=af.self_bridge(af.Particles(rng.normal(size=(4, 2))), 1.0))
    with pytest.warns(UserWarning, match="did not converge: error .* after 1 iterations; raise max_iterations"):
        af.self_bridge(mu, 0.3, max_iterations=1)
    with pytest.raises(TypeError, match="the score of a Gaussian is an Affine map"):
        af.euler_step(lambda x: x, af.Gaussian([0.0], [[1.0]]), 0.1)
