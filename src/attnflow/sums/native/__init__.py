"""Compiled kernels for softmax sums on the CPU. Where there are none, XLA evaluates the same sums in tiles, with the same result up to
round-off.

They are compiled once, when a run first needs them: sums over more than 2^21 pairs, `Streamed` ones, and sweeps on the circle need them, a
few hundred tokens do not. That run waits for about ten seconds, and a line on stderr says so. XLA does not evaluate the sums meanwhile,
because then the first run and the second would differ in their last digits. `python -m attnflow.sums.native` compiles the kernels
beforehand, `attnflow version` says whether they are in use or why not, and `path.stats` which sums ran. The environment variable
`ATTNFLOW_NATIVE=0` turns them off. Within a process the answer never changes.
"""

import ctypes
import os
import pathlib
import sys
import threading
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from attnflow.sums.native import build

DTYPES = ("float32", "float64")
KERNELS = ("softmax", "planar")


class Kernel(NamedTuple):
    """The file of the kernels that are in use, or in one line why there is none and the cure. They are `pending` if the first run that
    needs them will compile them."""

    file: pathlib.Path | None
    why: str = ""
    pending: bool = False

    @property
    def on(self) -> bool:
        return self.file is not None


def available() -> bool:
    """Whether the kernels can be called. If they can be compiled and were not yet, they are now."""
    return _turned_off() is None and _find(compiling=True).on


def status() -> Kernel:
    """Whether the kernels are in use. Nothing is compiled."""
    off = _turned_off()
    return Kernel(None, off) if off else _find(compiling=False)


def softmax(
    q: Float[Array, "m d"],
    k: Float[Array, "n d"],
    b: Float[Array, " n"],
    v: Float[Array, "n e"],
    seen: Int32[Array, " m"] | None = None,
    sharpness: Float[Array, ""] | None = None,
    threads: int = 0,
) -> tuple[Float[Array, " m"], Float[Array, "m e"]]:
    """`log sum_j e^{l_ij}` and `sum_j e^{l_ij} v_j / sum_j e^{l_ij}` for `l_ij = <q_i, k_j> + b_j`; with a sharpness s, for
    `l_ij = b_j - s/2 |q_i - k_j|^2`.

    A key without mass has `b = -inf`. With `seen`, query i sees the first `seen_i` keys only; keys that no query of a block sees cost
    nothing, so that queries should be sorted. Without any key the log-sum is minus infinity and the mean zero. `v` may have no columns.
    Results are bitwise the same for any number of threads. The reductions have the derivatives.

    **Arguments:** `q [m, d]`, `k [n, d]`, `b [n]`, `v [n, e]`, all float32 or all float64; `seen [m]`; `threads`, 0 for as many as XLA has.
    """
    (m, _), (_, e), dtype = q.shape, v.shape, q.dtype
    result = jax.ShapeDtypeStruct((m,), dtype), jax.ShapeDtypeStruct((m, e), dtype)
    call = jax.ffi.ffi_call(_target("softmax", dtype), result, vmap_method="sequential")
    half = jnp.zeros(0, dtype) if sharpness is None else (sharpness / 2).reshape(1)
    log_sum, mean = call(q, k, b, v, jnp.zeros(0, jnp.int32) if seen is None else seen, half, threads=np.int64(threads))
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


def make() -> Kernel:
    """Compile the kernels, even if there were some before, and load them. A line on stderr says so, and how it ended."""
    if build.compiler() is None:
        return Kernel(None, build.NO_COMPILER)
    begun, outcome = time.monotonic(), "interrupted"
    print("attnflow: compiling its kernel, once ...", end="", file=sys.stderr, flush=True)
    try:
        file = build.build()
        if error := _load(file):
            raise build.give_up(f"{file} does not load ({error}); set CXX to another compiler and run {build.COMMAND}")
        outcome = f"{time.monotonic() - begun:.0f} seconds"
        return Kernel(file)
    except build.NotBuilt as error:
        outcome = f"not done, XLA's tiles serve: {error}"
        return Kernel(None, str(error))
    finally:
        print(f" {outcome}", file=sys.stderr, flush=True)


def _turned_off() -> str | None:
    """Why the kernels are not to be used; `None` if they are."""
    if os.environ.get("ATTNFLOW_NATIVE") == "0":
        return "the environment variable ATTNFLOW_NATIVE=0 turns it off; unset it"
    if (backend := jax.default_backend()) != "cpu":
        return f"JAX computes on {backend}, and the kernel is for the CPU; set JAX_PLATFORMS=cpu"
    return None


_lock = threading.Lock()
_found: Kernel | None = None


def _find(compiling: bool) -> Kernel:
    """The kernels that exist; if there are none, new ones if `compiling`. What was found or tried once holds for the whole process."""
    global _found
    with _lock:
        if _found is not None:
            return _found
        if file := next((file for file in build.built() if not _load(file)), None):
            _found = Kernel(file)
        elif compiling:
            why = build.in_vain()
            _found = Kernel(None, why) if why else make()
        obstacle = build.in_vain() or build.unwritable()
        return _found or Kernel(None, obstacle or build.later(), pending=obstacle is None)


def _load(file: pathlib.Path) -> str | None:
    """Load the kernels and register them with XLA. What is wrong with the file; `None` if nothing is."""
    try:
        library = ctypes.CDLL(str(file))
        functions = {_target(kernel, dtype): getattr(library, f"attnflow_{kernel}_{dtype}") for kernel in KERNELS for dtype in DTYPES}
        for target, function in functions.items():
            jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(function), platform="cpu")
    except (OSError, AttributeError, RuntimeError) as error:
        return " ".join(str(error).split())
    return None


def _target(kernel: str, dtype: np.dtype | str) -> str:
    """The name of a kernel in XLA. It differs between versions of the kernel, because compiled programs are kept on disk."""
    return f"attnflow_{kernel}_{build.key()}_{dtype}"
