"""Paths of gradient flows against exact laws; what the driver reports, saves by its starts, and refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import attnflow as af
from attnflow.transport.steps import Flow, Step

MIX = af.GaussianMixture([0.5, 0.5], [[-2.0], [2.0]], [[[1.0]], [[1.0]]])


@pytest.fixture(scope="module")
def heat():
    return af.gradient_flow(af.Heat(), af.quadrature(MIX, 400), 0.05, 24, tolerance=1e-6, save_every=15)


@pytest.mark.long
def test_heat_of_a_mixture(heat):
    """Tokens stay at their quantiles of the exact law."""
    assert (str(heat.status), heat.stats["steps"], heat.stats["solver"]) == ("reached at t = 1.2", 24, "Heat")
    np.testing.assert_allclose(heat.ts, [0, 0.75, 1.2])
    seen = np.asarray(heat.measure.weights) > 1e-6
    x = np.asarray(heat.measure.points)[seen, 0]
    levels = (norm.cdf(x, -2, 1) + norm.cdf(x, 2, 1)) / 2
    for t, mu in zip(heat.ts, heat):
        np.testing.assert_allclose(mu.points[seen, 0], af.quantiles(af.heat_flow(MIX, t), levels), atol=5e-4)
        np.testing.assert_allclose(mu.cov, MIX.cov + t, rtol=1e-4)


@pytest.mark.long
def test_extrapolated_starts_save_iterations(heat):
    """At most 0.7 of what cold bridges of the same clouds take, at the same tolerance, and the same step."""
    figures = heat.stats["sinkhorn"]
    assert figures["converged"]
    assert figures["error"] <= 1e-6
    assert len(figures["iterations"]) == 24
    dense = af.gradient_flow(af.Heat(), heat.measure, 0.05, 24, tolerance=1e-6)
    np.testing.assert_array_equal(dense.final.points, heat.final.points)
    cold = [int(af.self_bridge(dense[k], 0.05, tolerance=1e-6).iterations) for k in range(24)]
    assert cold[0] == figures["iterations"][0]
    assert sum(figures["iterations"]) <= 0.7 * sum(cold)
    np.testing.assert_allclose(dense[21].points, af.sinkhorn_step(af.Heat(), dense[20], 0.05).points, atol=1e-6)


@pytest.mark.long
def test_gaussians_in_closed_form():
    start, target = af.Gaussian([1.0, 0.0], [[0.5, 0.2], [0.2, 0.4]]), af.Gaussian([0.0, 1.0], [[1.0, 0.0], [0.0, 2.0]])
    paths = [
        (af.heat_flow(start, 1.0), af.gradient_flow(af.Heat(), start, 0.05, 20)),
        (af.ornstein_uhlenbeck(start, target, 1.0), af.gradient_flow(af.FokkerPlanck(target), start, 0.05, 20)),
    ]
    for exact, path in paths:
        np.testing.assert_allclose(path.final.cov, exact.cov, atol=2e-3)
        np.testing.assert_allclose(path.final.mean, exact.mean, atol=2e-3)
        assert path.stats == {"solver": path.stats["solver"], "steps": 20}


@pytest.mark.long
def test_reverse_heat_deblurs_and_says_how_errors_grow():
    """Heat and back: the start returns; `growth` is what a perturbed twin shows, here recomputed by two whole runs."""
    mu = af.quadrature(MIX, 400)
    blurred = af.gradient_flow(af.Heat(), mu, 0.05, 10).final
    back = af.gradient_flow(af.ReverseHeat(), blurred, 0.05, 10)
    seen = np.asarray(mu.weights) > 1e-6
    error = np.abs(back.final.points - mu.points)[seen].max()
    assert error < 0.1 * np.abs(blurred.points - mu.points)[seen].max()
    np.testing.assert_allclose(back.stats["horizon"], blurred.cov[0, 0])
    shake = jax.random.normal(jax.random.key(0), mu.points.shape)
    shake = 1e-7 * shake / jnp.sqrt(mu.weights @ shake[:, 0] ** 2)
    other = af.gradient_flow(af.ReverseHeat(), af.Particles(blurred.points + shake, weights=mu.weights), 0.05, 10)
    apart = jnp.sqrt(mu.weights @ (other.final.points - back.final.points)[:, 0] ** 2)
    np.testing.assert_allclose(back.stats["growth"], apart / 1e-7, rtol=0.02)
    assert back.stats["growth"] > 1
    with pytest.warns(UserWarning, match=r"no solution beyond t = 1, .* is to run to 1\.5"):
        gone = af.gradient_flow(af.ReverseHeat(), af.Gaussian([0.0], [[1.0]]), 0.1, 15).final
    assert 0 < float(gone.cov[0, 0]) < 0.01


@pytest.mark.long
def test_the_surrogate_reports_its_tokens_and_stalls():
    """Towards a target that the cloud outgrows: the path ends before the weights degenerate."""
    mu = af.Particles(af.quantiles(af.Gaussian([0.5], [[0.3]]), (np.arange(400) + 0.5) / 400)[:, None])
    flow = af.KullbackLeibler(af.Gaussian([0.0], [[1.0]]), least=100.0)
    with pytest.warns(UserWarning, match=r"the flow ended after \d+ steps: .* at least 100 effective tokens"):
        path = af.gradient_flow(flow, mu, 0.05, 40, save_every=100)
    assert path.status.kind == "stalled"
    assert 1 < path.stats["steps"] < 40
    np.testing.assert_allclose(path.ts, [0, 0.05 * path.stats["steps"]])
    assert 100 <= path.stats["least_effective_tokens"] < 110
    exact = af.ornstein_uhlenbeck(af.Gaussian([0.5], [[0.3]]), flow.target, path.ts[-1])
    assert float(af.wasserstein2(path.final, exact)) < 0.02
    with pytest.raises(ValueError, match="at least 401 effective tokens"):
        af.gradient_flow(af.KullbackLeibler(flow.target, least=401.0), mu, 0.05, 3)


class Doubling(Flow):
    """Goes to infinity."""

    def step(self, mu, eps, **options):
        return Step(mu.push(lambda x: x * 1e200))


def test_a_blow_up_keeps_what_was_before():
    path = af.gradient_flow(Doubling(), af.Particles([[1.0]]), 0.5, 5, save_every=3)
    assert str(path.status) == "blow-up at t = 0.5"
    np.testing.assert_allclose(path.states[:, 0, 0], [1, 1e200])


@pytest.mark.long
def test_bridges_that_fail_are_counted_once_and_cold_clouds_show(rng):
    mu = af.Particles(rng.normal(size=(400, 1)))
    with pytest.warns(UserWarning, match="3 of 3 bridges did not converge") as caught:
        path = af.gradient_flow(af.Heat(), mu, 1e-7, 3, max_iterations=2)
    assert len(caught) == 1
    assert not path.stats["sinkhorn"]["converged"]
    assert path.stats["sinkhorn"]["self_share"] > 0.9
    path = af.gradient_flow(af.Heat(), mu, 0.1, 2)
    np.testing.assert_allclose(
        path.stats["sinkhorn"]["self_share"], max(np.trace(af.self_bridge(path[k], 0.1).plan()) for k in (0, 1)), rtol=1e-6
    )


def test_bad_input_is_named(rng):
    mu = af.Particles(rng.normal(size=(400, 1)))
    with pytest.raises(TypeError, match="mu must be Particles or a Gaussian, got GaussianMixture; draw tokens"):
        af.gradient_flow(af.Heat(), MIX, 0.1, 2)
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        af.gradient_flow(af.Heat(), mu, 0.1, 0)
    with pytest.raises(TypeError, match=r"save_every must be a whole number, got 0\.5"):
        af.gradient_flow(af.Heat(), mu, 0.1, 2, save_every=0.5)
    with pytest.raises(ValueError, match="eps must be positive"):
        af.gradient_flow(af.Heat(), mu, 0.0, 2)
    with pytest.raises(TypeError, match=r"flow must be a flow such as af.Heat\(\), got"):
        af.gradient_flow(3.0, mu, 0.1, 2)
    with pytest.raises(ValueError, match=r"inside jit and grad call flow\.step"):
        jax.jit(lambda x: af.gradient_flow(af.Heat(), af.Particles(x), 0.1, 2).final.points)(mu.points)
