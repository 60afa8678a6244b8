"""Arrays from what users give: one rule for their type of numbers, one clear error for each kind of bad input.

Values are checked on the host, when they are known. Inside `jit` and `grad` an array has no value yet, so only its shape is checked.
What is small and known is computed by NumPy, because JAX compiles a program for every operation on its own.
"""

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attnflow._check import instance, refusal, warn
from attnflow._types import ArrayLike, DType, Scalar

# The arrays of a formula that serves both: those of JAX, and those of NumPy where the values are known.
if TYPE_CHECKING:
    Numbers = Array
else:
    Numbers = Array | np.ndarray

_P = ParamSpec("_P")
_T = TypeVar("_T")

_PRECISION_WARNING = (
    "float64 input becomes float32, because JAX runs in 32-bit mode. For double precision call "
    'jax.config.update("jax_enable_x64", True) first; for single precision pass float32 arrays.'
)
_warned: set[str] = set()


def known(*values: object) -> bool:
    """Whether no array in these pytrees is being traced, so that each has its values now."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


def array(value: ArrayLike, dtype: DType | None = None) -> Array:
    """`value` as a JAX array; nothing is compiled for numbers that are on the host, and inside `jit` they stay known."""
    if isinstance(value, jax.Array):
        return value if dtype is None or value.dtype == dtype else on_host(lambda a: a.astype(dtype), value)
    with jax.ensure_compile_time_eval():
        return jax.device_put(np.asarray(value, dtype))


def on_host(function: Callable[..., Any], *arrays: Array | None) -> Any:
    """`function(*arrays)` for a function that uses only operators and methods which arrays of NumPy and of JAX share: by NumPy when the
    values are known, so that nothing is compiled; as part of the program when they are being traced."""
    if not known(*arrays) or any(a.dtype not in (np.float32, np.float64) for a in arrays if a is not None):
        return function(*arrays)
    return jax.tree.map(array, function(*(None if a is None else np.asarray(a) for a in arrays)))


def one_program(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """`function`, compiled as a whole when it is called with values; part of the program when its arguments are being traced.

    Its arguments are pytrees; what is not an array is static, so it must be hashable and must not change from call to call.
    """
    # At its first call: `filter_jit` of every such function would be a tenth of the import.
    compiled = functools.cache(lambda: eqx.filter_jit(function))

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        return compiled()(*args, **kwargs) if known(args, kwargs) else function(*args, **kwargs)

    return call


def floats(name: str, value: ArrayLike, shape: str) -> Array:
    """`value` as a finite floating-point array with the axes that `shape` names, such as "n d".

    Integers become the default float; float64 under 32-bit JAX warns once. Half precision is refused: its round-off is above every
    tolerance.
    """
    if getattr(value, "dtype", None) == np.float64 and not jax.config.read("jax_enable_x64") and "x64" not in _warned:
        _warned.add("x64")
        warn(_PRECISION_WARNING)
    axes = shape.split()
    expected = f"an array of numbers of shape [{', '.join(axes)}]" if axes else "a number"
    try:
        found = _array_of(value)
    except (TypeError, ValueError):
        raise ValueError(refusal(name, expected, value)) from None
    if not jnp.issubdtype(found.dtype, jnp.floating):
        if not jnp.issubdtype(found.dtype, jnp.integer):
            raise ValueError(f"{name} must hold real numbers, got dtype {found.dtype}")
        found = found.astype(jnp.result_type(float))
    if found.dtype not in (np.float32, np.float64):
        raise ValueError(f"{name} must be float32 or float64, got {found.dtype}; convert it with .astype('float32')")
    if found.ndim != len(axes):
        raise ValueError(f"{name} must have shape [{', '.join(axes)}], got {list(found.shape)}" if axes else refusal(name, expected, value))
    if 0 in found.shape:
        raise ValueError(f"{name} must not be empty, got shape {list(found.shape)}")
    if known(found):
        bad = ~np.isfinite(np.asarray(found))
        if bad.any():
            where = [int(i) for i in np.argwhere(bad)[0]]
            raise ValueError(f"{name} must be finite, got {np.asarray(found)[tuple(where)]} at {where}")
    return array(found)


def _array_of(value: ArrayLike) -> Array | np.ndarray:
    """An array: of NumPy if the values are known and not in an array of JAX yet. A list may hold values that are being traced."""
    if isinstance(value, jax.Array):
        return value
    if not known(value):
        return jnp.asarray(value)
    host = np.asarray(value)
    if host.dtype.kind in "OSU":
        return jnp.asarray(value)
    # Numbers without a type of their own, and float64 under 32-bit JAX, get the default type of JAX.
    return host.astype(jnp.result_type(float)) if host.dtype == np.float64 else host


def shares(name: str, value: ArrayLike, dtype: DType | None = None) -> Array:
    """Nonnegative numbers `[n]` divided by their sum. They are scaled to be of size one first, so that the sum neither overflows nor
    vanishes; by a power of two where they are known, which changes no digit."""
    if not isinstance(value, jax.Array) and known(value):
        value = _scaled_if_valid(value)
    weights = floats(name, value, "n")
    if not known(weights):
        # In two steps: XLA makes one quotient of two, whose divisor would overflow.
        root = jax.lax.stop_gradient(jax.lax.rsqrt(weights.max()))
        weights = (weights * root) * root
        return array(weights / weights.sum(), dtype)
    host = np.asarray(weights)
    if host.min() < 0:
        raise ValueError(f"{name} must not be negative, got {host.min()} at [{host.argmin()}]")
    if host.max() == 0:
        raise ValueError(f"{name} must have positive total mass, got 0")
    host = _scaled(host)
    return array(host / host.sum(), dtype)


def _scaled_if_valid(value: ArrayLike) -> ArrayLike:
    """Numbers on the host scaled to be of size one, before they are rounded to the precision of JAX; unchanged if they are not nonnegative
    numbers, which the checks that follow refuse."""
    try:
        host = np.asarray(value)
        wide = host.astype(np.float64)
    except (TypeError, ValueError):
        return value
    if host.dtype.kind not in "iuf" or host.ndim != 1 or not host.size or not (np.isfinite(wide).all() and wide.min() >= 0 < wide.max()):
        return value
    given = host.dtype if hasattr(value, "dtype") and host.dtype.kind == "f" else jnp.result_type(float)
    return _scaled(wide).astype(given)


def _scaled(numbers: np.ndarray) -> np.ndarray:
    """Numbers times a power of two, so that the largest is in [1/2, 1)."""
    return np.ldexp(numbers, -np.frexp(numbers.max())[1])


def positive(name: str, value: Scalar) -> Array:
    """A positive finite number as a 0-d array, so that changing it does not recompile."""
    number = floats(name, value, "")
    if known(number) and not float(number) > 0:
        raise ValueError(f"{name} must be positive, got {float(number)}")
    return number


def constant(name: str, value: Scalar) -> float:
    """A positive finite number as a Python number, with all its digits: for the static fields of a space, which must be known."""
    if type(value) is float and 0 < value < math.inf:
        return value
    if not known(positive(name, value)):
        raise ValueError(
            f"{name} must be a number that is known when a program is compiled, got one that is traced; make the space outside"
        )
    return float(value)


def square(name: str, value: ArrayLike) -> Array:
    """A square matrix [d, d]."""
    matrix = floats(name, value, "d d")
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name} must be square [d, d], got {list(matrix.shape)}")
    return matrix


def check_array(name: str, value: object, shape: str) -> Array | np.ndarray:
    """`value` as it is, refused unless it is a finite array with these axes."""
    found = instance(name, value, (jax.Array, np.ndarray), "an array", f"give {name}=jnp.asarray(...)")
    floats(name, found, shape)
    return found


def rows(name: str, value: ArrayLike, dim: int | None = None) -> Array:
    """Rows of points in R^dim, such as the queries of a velocity."""
    found = floats(name, value, "m d")
    if dim is not None and found.shape[1] != dim:
        raise ValueError(f"{name} must have rows in R^{dim}, got {list(found.shape)}")
    return found


def cast(tree: _T, dtype: DType) -> _T:
    """A pytree with its floating-point arrays in the given precision: a law takes that of the measure it acts on."""

    def one(leaf: Any) -> Any:
        return leaf.astype(dtype) if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(one, tree)
