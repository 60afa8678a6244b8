"""Products over the coordinates of rows. Few coordinates are added one by one: a reduction of short rows is up to ten times as slow."""

from types import ModuleType

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._types import ArrayLike
from attnflow.numerics.arrays import Numbers, one_program
from attnflow.numerics.special import safe_root

_FEW = 8


def array_namespace(array: Numbers) -> ModuleType:
    """NumPy for its arrays, `jax.numpy` for those of JAX: a formula written once serves both, and on the host nothing is compiled."""
    return np if isinstance(array, np.ndarray) else jnp


def dot(x: Float[Numbers, "*n d"], y: Float[Numbers, "*n d"]) -> Float[Numbers, "*n"]:
    """`<x_i, y_i>` along the last axis."""
    return np.sum(x * y, axis=-1) if isinstance(x, np.ndarray) and isinstance(y, np.ndarray) else _dot(x, y)


@one_program
def _dot(x: Float[Array, "*n d"], y: Float[Array, "*n d"]) -> Float[Array, "*n"]:
    if not 1 <= x.shape[-1] <= _FEW:
        return jnp.sum(x * y, axis=-1)
    total = x[..., 0] * y[..., 0]
    for a in range(1, x.shape[-1]):
        total = total + x[..., a] * y[..., a]
    return total


def times(x: Float[Numbers, "n d"], matrix: Float[Numbers, "e d"]) -> Float[Numbers, "n e"]:
    """`matrix x_i` for every row."""
    return x @ matrix.T if isinstance(x, np.ndarray) and isinstance(matrix, np.ndarray) else _times(x, matrix)


@one_program
def _times(x: Float[Array, "n d"], matrix: Float[Array, "e d"]) -> Float[Array, "n e"]:
    if not 1 <= x.shape[-1] <= _FEW // 2:
        return x @ matrix.T
    total = x[:, :1] * matrix[None, :, 0]
    for a in range(1, x.shape[-1]):
        total = total + x[:, a : a + 1] * matrix[None, :, a]
    return total


@one_program
def norm(v: Float[Array, "*n d"]) -> Float[Array, "*n 1"]:
    """`|v|` along the last axis, kept as an axis; its derivative at v = 0 is 0 (a subgradient), not NaN."""
    return safe_root(dot(v, v)[..., None])


def as_row(numbers: ArrayLike, like: Float[Array, "*n d"]) -> Float[Array, "*ones d"]:
    """One number per coordinate, as a row that multiplies the rows `like`, with as many axes."""
    return jnp.asarray(numbers, like.dtype).reshape((1,) * (like.ndim - 1) + (-1,))
