"""Turning user input into arrays: one dtype rule, one clear error for each kind of bad input.

Values are checked on the host, when they are known. Inside `jit` and `grad` an array has no value yet, so only its shape is checked.
"""

import warnings
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

_PRECISION_WARNING = (
    "float64 input becomes float32, because JAX runs in 32-bit mode. For double precision call "
    'jax.config.update("jax_enable_x64", True) first; for single precision pass float32 arrays.'
)
_warned: set[str] = set()


def known(*values: Any) -> bool:
    """Whether every array leaf has a value now (is not being traced)."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


def floats(name: str, value: Any, shape: str) -> Array:
    """`value` as a finite floating-point array with the axes that `shape` names, such as "n d".

    Integers become the default float; float64 under 32-bit JAX warns once.
    """
    if getattr(value, "dtype", None) == np.float64 and not jax.config.read("jax_enable_x64") and "x64" not in _warned:
        _warned.add("x64")
        warnings.warn(_PRECISION_WARNING, stacklevel=4)
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be an array of numbers of shape [{', '.join(shape.split())}], got {value!r}") from error
    if not jnp.issubdtype(array.dtype, jnp.floating):
        if not jnp.issubdtype(array.dtype, jnp.integer):
            raise ValueError(f"{name} must hold real numbers, got dtype {array.dtype}")
        array = array.astype(jnp.result_type(float))
    axes = shape.split()
    if array.ndim != len(axes):
        raise ValueError(f"{name} must have shape [{', '.join(axes)}], got {list(array.shape)}")
    if 0 in array.shape:
        raise ValueError(f"{name} must not be empty, got shape {list(array.shape)}")
    if known(array):
        bad = ~np.isfinite(np.asarray(array))
        if bad.any():
            where = [int(i) for i in np.argwhere(bad)[0]]
            raise ValueError(f"{name} must be finite, got {np.asarray(array)[tuple(where)]} at {where}")
    return array


def positive(name: str, value: Any) -> Array:
    """A positive finite number as a 0-d array, so that changing it does not recompile."""
    number = floats(name, value, "")
    if known(number) and not float(number) > 0:
        raise ValueError(f"{name} must be positive, got {float(number)}")
    return number


def square(name: str, value: Any) -> Array:
    """A square matrix [d, d]."""
    matrix = floats(name, value, "d d")
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name} must be square [d, d], got {list(matrix.shape)}")
    return matrix


def cast(tree: Any, dtype: Any) -> Any:
    """The floating arrays of a pytree in the given dtype: a law follows the precision of the measure it acts on."""

    def one(leaf: Any) -> Any:
        return leaf.astype(dtype) if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(one, tree)
