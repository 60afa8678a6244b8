"""Products over the coordinates of rows. Few coordinates are added one by one: a reduction of short rows is up to ten times as slow."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._arrays import one_program

_FEW = 8


@one_program
def dot(x: Float[Array, "*n d"], y: Float[Array, "*n d"]) -> Float[Array, "*n"]:
    """`<x_i, y_i>` along the last axis."""
    if not 1 <= x.shape[-1] <= _FEW:
        return jnp.sum(x * y, axis=-1)
    total = x[..., 0] * y[..., 0]
    for a in range(1, x.shape[-1]):
        total = total + x[..., a] * y[..., a]
    return total


@one_program
def times(x: Float[Array, "n d"], matrix: Float[Array, "e d"]) -> Float[Array, "n e"]:
    """`matrix x_i` for every row."""
    if not 1 <= x.shape[-1] <= _FEW // 2:
        return x @ matrix.T
    total = x[:, :1] * matrix[None, :, 0]
    for a in range(1, x.shape[-1]):
        total = total + x[:, a : a + 1] * matrix[None, :, a]
    return total
