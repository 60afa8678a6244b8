"""Reductions over keys, for rows with `l_ij = <q_i, k_j> + b_j + a_i`, or with a sharpness s, `l_ij = b_j - s/2 |q_i - k_j|^2 + a_i`. A
tiled engine folds each of them over tiles of keys."""

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow.sums import native
from attnflow.sums.engines.base import Kernel
from attnflow.sums.logits.quadratic import squares
from attnflow.sums.mask import Mask, Sight, lowest
from attnflow.sums.rows import Rows

if TYPE_CHECKING:
    from attnflow.sums.engines.tiled import Tiled
else:
    Tiled = Any

# Queries or keys: rows `[n, p]` for scalar products, or for differences a column `[n]` per coordinate.
Side: TypeAlias = Array | tuple[Array, ...]


def _logits(q: Side, k: Side, b: Float[Array, " n"], s: Float[Array, ""] | None, seen: Sight | None) -> Float[Array, "m n"]:
    """`<q_i, k_j> + b_j` or `b_j - s/2 |q_i - k_j|^2`, under the mask.

    The bias is one more coordinate of a matrix product, which saves a pass over all pairs. A key without mass (b = -inf) gets a finite bias
    far below every other logit, so that products with zero stay zero.
    """
    bias = jnp.maximum(b, lowest(b.dtype))
    if s is not None:
        logits = bias[None] - 0.5 * s * squares(q, k)
    else:
        assert isinstance(q, Array)
        assert isinstance(k, Array)
        logits = jnp.concatenate([q, jnp.ones((len(q), 1), q.dtype)], axis=1) @ jnp.concatenate([k, bias[:, None]], axis=1).T
    return logits if seen is None else seen.apply(logits)


def _weighted_logits(q: Side, k: Side, b: Float[Array, " n"], s: Float[Array, ""] | None, seen: Sight | None) -> Float[Array, "m n"]:
    """The logits plus the logarithm of the part of each key that is seen."""
    logits, share = _logits(q, k, b, s, seen), None if seen is None else seen.share()
    return logits if share is None else logits + jnp.log(jnp.where(share > 0, share, 1)).astype(logits.dtype)


def logits(given: Rows) -> Float[Array, "m n"]:
    """The matrix of logits, dense; those of keys that are not seen are lower than any other."""
    q, k, b, a, _, sight, s = given
    queries, keys, _ = _pairs_of(q, k, s)
    found = _logits(queries, keys, b, s, sight)
    return found if a is None else found + a[:, None]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _softmax(engine: Tiled, given: Rows, v: Float[Array, "n e"]) -> tuple[Float[Array, " m"], Float[Array, "m e"]]:
    """`log sum_j e^{l_ij}` and `sum_j p_ij v_j` with `p_ij = e^{l_ij} / sum`, with a running maximum, for rows with their weights in b. `v`
    may have no columns. A query that sees no key has log-sum minus infinity and mean zero.
    """
    q, k, b, _, _, sight, s = given
    if _is_native(engine, sight, q, k, b, v):
        return _native_softmax(q, k, b, v, sight, s)

    def step(value, queries, keys, seen):
        largest, total, mean = value
        key, bias, values = keys
        logits = _weighted_logits(queries, key, bias, s, seen)
        new = jnp.maximum(largest, jnp.max(logits, axis=1))
        decay = jnp.exp(largest - new)
        p = jnp.exp(logits - new[:, None])
        return new, total * decay + jnp.sum(p, axis=1), mean * decay[:, None] + p @ values

    def start(queries):
        m = _count(queries)
        return jnp.full(m, -jnp.inf, q.dtype), jnp.zeros(m, q.dtype), jnp.zeros((m, v.shape[1]), q.dtype)

    queries, keys, empty = _pairs_of(q, k, s)
    largest, total, mean = engine.fold(step, start, queries, (keys, b, v), (empty, -jnp.inf, 0), sight)
    if sight is None:
        return largest + jnp.log(total), mean / total[:, None]
    some = largest > lowest(q.dtype) / 2
    return jnp.where(some, largest + jnp.log(jnp.where(some, total, 1)), -jnp.inf), jnp.where(some, 1 / total, 0)[:, None] * mean


def _pairs_of(q: Array, k: Array, s: Array | None) -> tuple[Side, Side, int | tuple[int, ...]]:
    """Queries and keys as a fold takes them, and what pads the keys: rows for scalar products, columns for differences, each an array of
    its own, because a tile reads neighboring coordinates slowly."""
    if s is None:
        return q, k, 0
    return tuple(q.T), tuple(k.T), (0,) * k.shape[1]


def _count(queries: Any) -> int:
    """The number of rows of a pytree."""
    return len(jax.tree.leaves(queries)[0])


def _is_native(engine: Tiled, sight: Sight | None, *arrays: Array) -> bool:
    """Whether the compiled kernel is wanted and serves such sums."""
    plain = sight is None or sight.mask.causal
    return getattr(engine, "native", False) is True and plain and all(a.dtype == arrays[0].dtype in native.DTYPES for a in arrays)


def _native_softmax(q: Array, k: Array, b: Array, v: Array, sight: Sight | None, s: Array | None) -> tuple[Array, Array]:
    if sight is None:
        return native.softmax(q, k, b, v, sharpness=s)
    # Sorted by order, a query sees the keys up to some place.
    queries, keys = jnp.argsort(sight.s), jnp.argsort(sight.tau)
    seen = jnp.searchsorted(sight.tau[keys], sight.s[queries], side="right").astype(jnp.int32)
    log_sum, mean = native.softmax(q[queries], k[keys], b[keys], v[keys], seen, s)
    back = jnp.argsort(queries)
    return log_sum[back], mean[back]


@_softmax.defjvp
def _softmax_jvp(engine, primals, tangents):
    """Once the log-sums are known, one pass gives the derivative:
    `d log sum = sum_j p_ij dl_ij`, `d mean = sum_j p_ij (dl_ij (v_j - mean_i) + dv_j)`."""
    (q, k, b, _, _, sight, s), v = primals
    log_sum, mean = _softmax(engine, *primals)
    (dq, dk, db, _, _, d_sight, ds), dv = tangents

    def step(value, queries, keys, seen):
        d_log, d_mean = value
        query, d_query, log_norm = queries
        key, bias, values, d_key, d_bias, d_values = keys
        p = jnp.exp(_weighted_logits(query, key, bias, s, seen) - log_norm[:, None])
        if s is None:
            dl = d_query @ key.T + query @ d_key.T + d_bias[None]
        else:
            dl = d_bias[None] - 0.5 * ds * squares(query, key) - s * _steps(query, key, d_query, d_key)
        if seen is not None:
            # Orders never change, but what a mask adds to the logit may.
            dl = dl + _penalty_change(seen, d_sight.mask, dl)
        p_dl = p * dl
        return d_log + jnp.sum(p_dl, axis=1), d_mean + p_dl @ values + p @ d_values

    def start(queries):
        m = _count(queries)
        return jnp.zeros(m, q.dtype), jnp.zeros((m, v.shape[1]), q.dtype)

    # A key without mass has bias -inf, whose derivative carries nothing.
    db = jnp.where(jnp.isfinite(b), db, 0)
    log_norm = jnp.where(jnp.isfinite(log_sum), log_sum, 0)
    queries, keys, empty = _pairs_of(q, k, s)
    d_queries, d_keys, _ = _pairs_of(dq, dk, s)
    rows, columns = (queries, d_queries, log_norm), (keys, b, v, d_keys, db, dv)
    d_log, d_mean = engine.fold(step, start, rows, columns, (empty, -jnp.inf, 0, empty, 0, 0), sight)
    return (log_sum, mean), (d_log, d_mean - mean * d_log[:, None])


def _steps(q: Sequence[Array], k: Sequence[Array], dq: Sequence[Array], dk: Sequence[Array]) -> Float[Array, "m n"]:
    """`<q_i - k_j, dq_i - dk_j>`, half the derivative of the squared distance, for columns."""
    columns = zip(q, k, dq, dk, strict=True)
    return functools.reduce(jnp.add, ((a[:, None] - b[None]) * (da[:, None] - db[None]) for a, b, da, db in columns))


def _penalty_change(seen: Sight, d_mask: Mask, like: Float[Array, "m n"]) -> Float[Array, "m n"]:
    """The derivative of the penalty in the direction `d_mask` of the numbers of the mask."""
    s, tau = seen.s[:, None], seen.tau[None, :]
    if seen.mask.penalty(s, tau) is None:
        return jnp.zeros_like(like)
    return jax.jvp(lambda mask: mask.penalty(s, tau), (seen.mask,), (d_mask,))[1].astype(like.dtype)


softmax: Callable[[Tiled, Rows, Array], tuple[Array, Array]] = jax.jit(_softmax, static_argnums=0)


@partial(jax.jit, static_argnums=(0, 1))
def pointwise(engine: Tiled, kernel: Kernel, given: Rows, v: Float[Array, "n e"]) -> Float[Array, "m e"]:
    """`sum_j kernel(l_ij) v_j` over the keys that are seen, `kernel` a named function of the logits."""
    q, k, b, a, _, sight, s = given
    a = jnp.zeros(len(q), q.dtype) if a is None else a

    def step(value, queries, keys, seen):
        query, level = queries
        key, bias, values = keys
        logits = _logits(query, key, bias, s, seen)
        kernels = kernel(logits + level[:, None])
        if seen is not None:
            share = seen.share()
            kernels = jnp.where(logits > lowest(logits.dtype) / 2, kernels if share is None else kernels * share.astype(kernels.dtype), 0)
        return value + kernels @ values

    def start(queries):
        return jnp.zeros((_count(queries), v.shape[1]), q.dtype)

    rows, columns, empty = _pairs_of(q, k, s)
    return engine.fold(step, start, (rows, a), (columns, b, v), (empty, 0, 0), sight)


@partial(jax.jit, static_argnums=0)
def largest(engine: Tiled, given: Rows) -> Float[Array, " m"]:
    """`max_j l_ij` over the keys that are seen, without the term in the query alone."""
    q, k, b, _, _, sight, s = given

    def step(value, query, keys, seen):
        key, bias = keys
        return jnp.maximum(value, jnp.max(_logits(query, key, bias, s, seen), axis=1))

    queries, keys, empty = _pairs_of(q, k, s)
    return engine.fold(step, lambda query: jnp.full(_count(query), -jnp.inf, q.dtype), queries, (keys, b), (empty, -jnp.inf), sight)
