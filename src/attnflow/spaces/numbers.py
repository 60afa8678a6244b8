"""The numbers of a space: Python's, known when a program is compiled."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attnflow.numerics.arrays import known, positive


def length(name: str, value: Any) -> float:
    """A positive number that is known now, with all its digits."""
    if type(value) is float and 0 < value < math.inf:
        return value
    found = positive(name, value)
    if not known(found):
        raise ValueError(
            f"{name} must be a number that is known when a program is compiled, got one that is traced; make the space outside"
        )
    return float(value)


def row(numbers: Any, like: Array) -> Array:
    """One number a coordinate, as a row to be multiplied with rows."""
    return jnp.asarray(numbers, like.dtype).reshape((1,) * (np.ndim(like) - 1) + (-1,))
