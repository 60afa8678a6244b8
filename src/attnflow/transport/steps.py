"""One step of a flow of measures: by a bridge, or by Euler with a score; and the heat flow where it is known exactly."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from attnflow._arrays import floats, positive
from attnflow.measures import Affine, FlowingMeasure, Gaussian, GaussianMixture, Measure
from attnflow.transport.bridge import GaussianBridge, self_bridge


def sinkhorn_step(mu: FlowingMeasure, eps: Any, **options: Any) -> FlowingMeasure:
    """`x <- 2x - B(x)` with the barycentric map B of the self-bridge: the heat flow `d_t rho = 1/2 Laplace rho` for time eps.

    Sinkhorn attention with `A = I / eps`, `V = -I` in the normalised frame makes the same step. Options are those of `self_bridge`.
    """
    bridge = self_bridge(mu, eps, **options)
    if isinstance(bridge, GaussianBridge):
        eye = jnp.eye(bridge.measure.dim, dtype=bridge.measure.dtype)
        return mu.push(Affine(2 * eye - bridge.map.matrix, -bridge.map.offset))
    return mu.push(lambda x: 2 * x - bridge.barycentric(x))


def euler_step(mu: FlowingMeasure, score: Callable, eps: Any) -> FlowingMeasure:
    """`x <- x - eps/2 score(x)`: explicit Euler for the characteristics of the heat flow. `score` is grad log density, and nothing else;
    for a Gaussian it is an `Affine` map."""
    eps = positive("eps", eps).astype(mu.dtype)
    if isinstance(mu, Gaussian):
        if not isinstance(score, Affine):
            raise TypeError(f"the score of a Gaussian is an Affine map, got {type(score).__name__}")
        return mu.push(score.step(-eps / 2))
    return mu.push(lambda x: x - eps / 2 * score(x))


def heat_flow(mu: Measure, t: Any) -> Gaussian | GaussianMixture:
    """The exact solution at time t of `d_t rho = 1/2 Laplace rho`: every covariance gains `t I`."""
    t = floats("t", t, "")
    if not isinstance(mu, Gaussian | GaussianMixture):
        raise TypeError(f"the heat flow is known for Gaussian and GaussianMixture, got {type(mu).__name__}; use sinkhorn_step on tokens")
    if float(t) < 0:
        raise ValueError(f"t must not be negative, got {float(t)}")
    spread = t.astype(mu.mean.dtype) * jnp.eye(mu.dim, dtype=mu.mean.dtype)
    if isinstance(mu, Gaussian):
        return Gaussian(mu.mean, mu.cov + spread)
    return GaussianMixture(mu.weights, mu.means, mu.covs + spread[None])
