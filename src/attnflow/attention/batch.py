"""Pytrees of one structure as a batch: evaluated at once or one after the other, with what they share kept once."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array


class Batch(eqx.Module):
    """Pytrees of one structure: `many` has the arrays in which they differ, with a leading axis of `count`, `one` has everything else."""

    many: Any
    one: Any
    count: int = eqx.field(static=True)

    def each(self, function: Callable[[Any], Any], at_once: bool) -> Any:
        """The arrays that a function makes of each, on a new leading axis."""

        def call(some: Any) -> Any:
            return function(eqx.combine(some, self.one))

        return jax.vmap(call)(self.many) if at_once else jax.lax.map(call, self.many)

    def summed(self, function: Callable[[Any], Array], at_once: bool) -> Array:
        """The sum of what a function makes of each."""
        if at_once:
            return jnp.sum(self.each(function, True), axis=0)
        shape = jax.eval_shape(lambda: function(self.first))

        def add(so_far: Array, some: Any) -> tuple[Array, None]:
            return so_far + function(eqx.combine(some, self.one)), None

        return jax.lax.scan(add, jnp.zeros(shape.shape, shape.dtype), self.many)[0]

    def map(self, function: Callable[[Any], Any], at_once: bool) -> "Batch":
        """The pytrees that a function makes of each. Arrays that it makes of `one` alone, such as the tokens, are not repeated."""
        found = eqx.filter_eval_shape(function, self.first)
        shapes, rest = eqx.partition(found, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

        def leaves(member: Any) -> list[Array]:
            return jax.tree.leaves(eqx.filter(function(member), eqx.is_array))

        differ = _dependent(lambda some: leaves(eqx.combine(some, self.one)), jax.tree.map(lambda leaf: leaf[0], self.many))

        def some_of(member: Any, which: bool) -> Any:
            chosen = [leaf if d == which else None for leaf, d in zip(leaves(member), differ, strict=True)]
            return jax.tree.unflatten(jax.tree.structure(shapes), chosen)

        return Batch(self.each(lambda member: some_of(member, True), at_once), eqx.combine(some_of(self.first, False), rest), self.count)

    @property
    def first(self) -> Any:
        """The first of them."""
        return eqx.combine(jax.tree.map(lambda leaf: leaf[0], self.many), self.one)


def _dependent(function: Callable[[Any], list[Array]], argument: Any) -> list[bool]:
    """Which of the arrays that a function makes depend on its argument."""
    program = jax.make_jaxpr(function)(argument).jaxpr
    reached = {id(var) for var in program.invars}
    for equation in program.eqns:
        if any(id(var) in reached for var in equation.invars):
            reached |= {id(var) for var in equation.outvars}
    return [id(var) in reached for var in program.outvars]
