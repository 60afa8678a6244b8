"""Heads: the mean of several laws."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from attnflow.attention.law import Law
from attnflow.measures import Affine, FlowingMeasure, Particles
from attnflow.sums import Engine


class MultiHead(Law):
    """`Gamma = (1/K) sum_k Gamma^[k]`: the mean of the heads, each a law of its own."""

    heads: tuple[Law, ...]

    def __init__(self, heads: Sequence[Law]):
        if not heads:
            raise ValueError("MultiHead needs at least one law, got none")
        self.heads = tuple(heads)

    def at(self, mu: FlowingMeasure, t: Any = 0.0, sums: Engine | None = None) -> "MultiHeadVelocity | Affine":
        velocities = tuple(head.at(mu, t, sums) for head in self.heads)
        affine = [v for v in velocities if isinstance(v, Affine)]
        if len(affine) == len(velocities):
            return reduce(Affine.__add__, affine).scaled(1 / len(affine))
        return MultiHeadVelocity(velocities)

    def weights(self, x: Float[Array, "m d"], mu: Particles) -> Float[Array, "heads m n"]:
        """One attention matrix a head."""
        return jnp.stack([head.weights(x, mu) for head in self.heads])


class MultiHeadVelocity(eqx.Module):
    """The mean of velocities."""

    velocities: tuple[Any, ...]

    def __call__(self, x: Float[Array, "m d"]) -> Float[Array, "m d"]:
        return jnp.mean(jnp.stack([velocity(x) for velocity in self.velocities]), axis=0)

    @property
    def report(self) -> dict[str, PyTree]:
        """The figures of each head, under its number."""
        return {f"head {i}": v.report for i, v in enumerate(self.velocities) if v.report}
