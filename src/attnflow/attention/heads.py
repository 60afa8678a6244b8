"""Heads: the mean of several fields."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._check import field, instance
from attnflow._types import ArrayLike, FieldLike, Scalar
from attnflow.attention.law import Law
from attnflow.measures import FlowingMeasure, Velocity, velocity_of
from attnflow.measures.field import check_at, union
from attnflow.measures.velocity import total
from attnflow.sums import Request


class MultiHead(Law):
    r"""$\Gamma = \frac1H \sum_h \Gamma^{(h)}$: the mean of the heads, each a law of its own, or a law with its own perceptron after it."""

    heads: tuple[Any, ...]

    def __init__(self, heads: Sequence[FieldLike]) -> None:
        instance("heads", heads, (list, tuple), "a list of laws")
        if not heads:
            raise ValueError("MultiHead needs at least one law in heads, got none")
        self.heads = tuple(field(f"heads[{i}]", head) for i, head in enumerate(heads))

    def at(self, mu: FlowingMeasure, t: Scalar = 0.0, sums: Request | None = None) -> Velocity:
        """The mean of the velocities of the heads."""
        check_at(mu, t, sums)
        return total([velocity_of(head, mu, t, sums) for head in self.heads]).scaled(1 / len(self.heads))

    def weights(self, x: ArrayLike, mu: FlowingMeasure, order: ArrayLike | None = None) -> Float[Array, "heads m n"]:
        """One attention matrix per head."""
        for i, head in enumerate(self.heads):
            instance(f"heads[{i}]", head, Law, "a law, with an attention matrix, to have weights")
        return jnp.stack([head.weights(x, mu, order) for head in self.heads])

    @property
    def jumps(self) -> Float[Array, " k"] | None:
        """The times at which a head jumps."""
        return union(self.heads)
