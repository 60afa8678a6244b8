"""From the masses of cells to tokens."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from attnflow._arrays import one_program
from attnflow.measures.axes import Axis


@one_program
def quantiles(axis: Axis, weights: Float[Array, " c"], n: int) -> Float[Array, "n d"]:
    r"""The points at the quantiles $(i + \frac12)/n$ of the masses along an axis."""
    levels = jnp.concatenate([jnp.zeros(1, weights.dtype), jnp.cumsum(weights)])
    where = (jnp.arange(n, dtype=weights.dtype) + 0.5) / n
    return axis.chart(jnp.interp(where, levels / levels[-1], jnp.asarray(axis.edges, weights.dtype)))


@one_program
def sampled(axes: tuple[Axis, ...], weights: Float[Array, " c"], n: int, key: PRNGKeyArray) -> tuple[Array, Array | None]:
    """`n` points, each in a cell that is chosen by its mass, and their order if there is an axis of it."""
    pick, place, turn = jax.random.split(key, 3)
    cells = jnp.unravel_index(jax.random.choice(pick, len(weights), (n,), p=weights), tuple(axis.cells for axis in axes))
    parts = jax.random.uniform(place, (len(axes), n), weights.dtype)
    found = list(zip(axes, cells, parts, [turn] if len(axes) == 1 else jax.random.split(turn, len(axes)), strict=True))
    points = jnp.concatenate([axis.sample(cell, part, key) for axis, cell, part, key in found if axis.moves], axis=1)
    order = [axis.within(cell, part) for axis, cell, part, _ in found if not axis.moves]
    return points, order[0] if order else None
