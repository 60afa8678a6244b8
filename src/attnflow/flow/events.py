"""When to stop before t1: a condition on the measure, its rate of change and the time, looked at after every step."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from attnflow._arrays import positive
from attnflow.measures import FlowingMeasure, Particles


class Steady(eqx.Module):
    """Stop when nothing moves faster than `speed`: the largest entry of the rate of change of the state."""

    kind = "steady"
    speed: Float[Array, ""]

    def __init__(self, speed: Any = 1e-6):
        self.speed = positive("speed", speed)

    def __call__(self, mu: FlowingMeasure, rate: PyTree, t: Any) -> Bool[Array, ""]:
        entries = jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(rate)])
        return jnp.max(entries) <= self.speed.astype(entries.dtype)


class Consensus(eqx.Module):
    """Stop when every token with mass lies within `radius` of the mean of the tokens."""

    kind = "consensus"
    radius: Float[Array, ""]

    def __init__(self, radius: Any = 1e-3):
        self.radius = positive("radius", radius)

    def __call__(self, mu: Particles, rate: PyTree, t: Any) -> Bool[Array, ""]:
        squares = jnp.sum((mu.points - mu.mean[None]) ** 2, axis=1)
        return jnp.max(jnp.where(jnp.isfinite(mu.log_weights), squares, 0)) <= self.radius.astype(squares.dtype) ** 2
