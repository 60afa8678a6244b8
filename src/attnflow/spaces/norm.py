"""The Euclidean norm of rows, with a derivative at zero."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._arrays import one_program
from attnflow._rows import dot


@one_program
def norm(v: Float[Array, "*n d"]) -> Float[Array, "*n 1"]:
    """`|v|` along the last axis, kept as an axis; its derivative at v = 0 is 0 (a subgradient), not NaN."""
    square = dot(v, v)[..., None]
    nonzero = square > 0
    return jnp.where(nonzero, jnp.sqrt(jnp.where(nonzero, square, 1)), 0)
