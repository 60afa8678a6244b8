"""A compiled kernel for the softmax sum on the processor. `python -m attnflow.sums.native` builds it; without it XLA's tiles serve.

Both give the same sum to rounding. The environment variable `ATTNFLOW_NATIVE=0` turns the kernel off.
"""

import ctypes
import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from attnflow.sums.native.build import built, name

DTYPES = ("float32", "float64")


def available() -> bool:
    """Whether the kernel can be called: it is built, it loads, it is not turned off, and JAX computes on the processor."""
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
    call = jax.ffi.ffi_call(_target(str(dtype)), result, vmap_method="sequential")
    log_sum, mean = call(q, k, b, v, jnp.zeros(0, jnp.int32) if seen is None else seen, threads=np.int64(threads))
    return log_sum, mean


def _loaded() -> bool:
    file = built()
    return file is not None and _load(str(file))


@functools.cache
def _load(file: str) -> bool:
    """Load the kernel and tell XLA of it, once."""
    try:
        library = ctypes.CDLL(file)
        for dtype in DTYPES:
            function = getattr(library, f"attnflow_softmax_{dtype}")
            jax.ffi.register_ffi_target(_target(dtype), jax.ffi.pycapsule(function), platform="cpu")
    except (OSError, AttributeError, RuntimeError):
        return False
    return True


def _target(dtype: str) -> str:
    """XLA's name for the kernel. It tells versions of it apart, also in programs that were compiled earlier and kept on disk."""
    return f"attnflow_{name()}_{dtype}"
