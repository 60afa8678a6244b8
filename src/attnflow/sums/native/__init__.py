"""Compiled kernels for softmax sums on the processor. `python -m attnflow.sums.native` builds them; without them XLA serves.

Both give the same sums to rounding. The environment variable `ATTNFLOW_NATIVE=0` turns the kernels off.
"""

import ctypes
import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from attnflow.sums.native.build import built, name

DTYPES = ("float32", "float64")


def available() -> bool:
    """Whether the kernels can be called: they are built, they load, they are not turned off, and JAX computes on the processor."""
    return os.environ.get("ATTNFLOW_NATIVE") != "0" and jax.default_backend() == "cpu" and _loaded()


def softmax(
    q: Float[Array, "m d"],
    k: Float[Array, "n d"],
    b: Float[Array, " n"],
    v: Float[Array, "n e"],
    seen: Int32[Array, " m"] | None = None,
    threads: int = 0,
) -> tuple[Float[Array, " m"], Float[Array, "m e"]]:
    """`log sum_j e^{l_ij}` and `sum_j e^{l_ij} v_j / sum_j e^{l_ij}` for `l_ij = <q_i, k_j> + b_j`.

    A key without mass has `b = -inf`. With `seen`, query i sees the first `seen_i` keys only; what a block of neighbours does not see costs
    nothing, so queries should come in order. Without any key the log-sum is minus infinity and the mean zero. `v` may have no columns.
    Results are the same, bit by bit, for any number of threads. No derivatives: the reductions have those.

    **Arguments:** `q [m, d]`, `k [n, d]`, `b [n]`, `v [n, e]`, all float32 or all float64; `seen [m]`; `threads`, 0 for as many as XLA has.
    """
    (m, _), (_, e), dtype = q.shape, v.shape, q.dtype
    result = jax.ShapeDtypeStruct((m,), dtype), jax.ShapeDtypeStruct((m, e), dtype)
    call = jax.ffi.ffi_call(_target("softmax", dtype), result, vmap_method="sequential")
    log_sum, mean = call(q, k, b, v, jnp.zeros(0, jnp.int32) if seen is None else seen, threads=np.int64(threads))
    return log_sum, mean


def planar(
    q: Float[Array, "2 n m"], k: Float[Array, "2 n m"], b: Float[Array, "n m"] | None = None
) -> tuple[Float[Array, "n m"], Float[Array, "n m"], Float[Array, "2 n m"]]:
    """For m small clouds in the plane, side by side: a reference `r_i` about as large as the largest logit, and relative to it
    `sum_j e^{l_ij - r_i}` and `sum_j e^{l_ij - r_i} k_j`, for `l_ij = <q_i, k_j> + b_j`. On the calling thread. No derivatives.

    **Arguments:** `q [2, n, m]`, `k [2, n, m]`, `b [n, m]`, all float32 or all float64.
    """
    (_, n, m), dtype = k.shape, k.dtype
    result = jax.ShapeDtypeStruct((n, m), dtype), jax.ShapeDtypeStruct((n, m), dtype), jax.ShapeDtypeStruct((2, n, m), dtype)
    reference, total, sums = jax.ffi.ffi_call(_target("planar", dtype), result)(q, k, jnp.zeros(0, dtype) if b is None else b)
    return reference, total, sums


def _loaded() -> bool:
    file = built()
    return file is not None and _load(str(file))


@functools.cache
def _load(file: str) -> bool:
    """Load the kernels and tell XLA of them, once."""
    try:
        library = ctypes.CDLL(file)
        for dtype in DTYPES:
            for kernel in ("softmax", "planar"):
                function = getattr(library, f"attnflow_{kernel}_{dtype}")
                jax.ffi.register_ffi_target(_target(kernel, dtype), jax.ffi.pycapsule(function), platform="cpu")
    except (OSError, AttributeError, RuntimeError):
        return False
    return True


def _target(kernel: str, dtype: Any) -> str:
    """XLA's name for a kernel. It tells versions of it apart, also in programs that were compiled earlier and kept on disk."""
    return f"attnflow_{kernel}_{name()}_{dtype}"
