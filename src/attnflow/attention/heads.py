"""Heads: the mean of several fields."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow.attention.field import Combined, combine, union
from attnflow.attention.law import Law
from attnflow.measures import Affine, FlowingMeasure, Particles
from attnflow.sums import Engine


class MultiHead(Law):
    r"""$\Gamma = \frac1H \sum_h \Gamma^{(h)}$: the mean of the heads, each a law of its own, or a law with its own perceptron after it."""

    heads: tuple[Any, ...]

    def __init__(self, heads: Sequence[Any]):
        if not heads:
            raise ValueError("MultiHead needs at least one law, got none")
        self.heads = tuple(heads)

    def at(self, mu: FlowingMeasure, t: Any = 0.0, sums: Engine | None = None) -> Affine | Combined:
        return combine([head.at(mu, t, sums) for head in self.heads], 1 / len(self.heads))

    def weights(self, x: Float[Array, "m d"], mu: Particles, order: Float[Array, " m"] | None = None) -> Float[Array, "heads m n"]:
        """One attention matrix a head."""
        return jnp.stack([head.weights(x, mu, order) for head in self.heads])

    @property
    def jumps(self) -> Float[Array, " k"] | None:
        return union(self.heads)
