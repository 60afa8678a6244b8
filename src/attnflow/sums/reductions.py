"""The reductions over keys, on rows in the form `l_ij = <q_i, k_j> + b_j`. Each runs on every engine."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow.sums.engine import Engine


def _logits(q: Float[Array, "m d"], k: Float[Array, "n d"], b: Float[Array, " n"]) -> Float[Array, "m n"]:
    """`<q_i, k_j> + b_j` as one matrix product: with the bias as one more coordinate a pass over all pairs is saved.

    A key without mass (b = -inf) gets a finite bias that no other logit comes near, so that products with zero stay zero.
    """
    lowest = -jnp.finfo(b.dtype).max / 8
    ones = jnp.ones((len(q), 1), q.dtype)
    return jnp.concatenate([q, ones], axis=1) @ jnp.concatenate([k, jnp.maximum(b, lowest)[:, None]], axis=1).T


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _softmax(
    engine: Engine, q: Float[Array, "m d"], k: Float[Array, "n d"], b: Float[Array, " n"], v: Float[Array, "n e"]
) -> tuple[Float[Array, " m"], Float[Array, "m e"]]:
    """`log sum_j e^{l_ij}` and `sum_j p_ij v_j` with `p_ij = e^{l_ij} / sum`, with a running maximum. `v` may have no columns."""

    def step(value, queries, keys):
        largest, total, mean = value
        key, bias, values = keys
        logits = _logits(queries, key, bias)
        new = jnp.maximum(largest, jnp.max(logits, axis=1))
        decay = jnp.exp(largest - new)
        p = jnp.exp(logits - new[:, None])
        return new, total * decay + jnp.sum(p, axis=1), mean * decay[:, None] + p @ values

    def start(queries):
        m = len(queries)
        return jnp.full(m, -jnp.inf, q.dtype), jnp.zeros(m, q.dtype), jnp.zeros((m, v.shape[1]), q.dtype)

    largest, total, mean = engine.fold(step, start, q, (k, b, v), (0, -jnp.inf, 0))
    return largest + jnp.log(total), mean / total[:, None]


@_softmax.defjvp
def _softmax_jvp(engine, primals, tangents):
    """With the log-normaliser at hand one pass gives the derivative:
    `d log sum = sum_j p_ij dl_ij`, `d mean = sum_j p_ij (dl_ij (v_j - mean_i) + dv_j)`."""
    q, k, b, v = primals
    log_sum, mean = _softmax(engine, *primals)
    dq, dk, db, dv = tangents

    def step(value, queries, keys):
        d_log, d_mean = value
        query, d_query, log_norm = queries
        key, bias, values, d_key, d_bias, d_values = keys
        p = jnp.exp(_logits(query, key, bias) - log_norm[:, None])
        p_dl = p * (d_query @ key.T + query @ d_key.T + d_bias[None])
        return d_log + jnp.sum(p_dl, axis=1), d_mean + p_dl @ values + p @ d_values

    def start(queries):
        m = len(queries[0])
        return jnp.zeros(m, q.dtype), jnp.zeros((m, v.shape[1]), q.dtype)

    # A key without mass has bias -inf, whose derivative carries nothing.
    db = jnp.where(jnp.isfinite(b), db, 0)
    d_log, d_mean = engine.fold(step, start, (q, dq, log_sum), (k, b, v, dk, db, dv), (0, -jnp.inf, 0, 0, 0, 0))
    return (log_sum, mean), (d_log, d_mean - mean * d_log[:, None])


softmax = jax.jit(_softmax, static_argnums=0)


@partial(jax.jit, static_argnums=(0, 1))
def pointwise(
    engine: Engine,
    kernel: Callable[[Float[Array, "m n"], Float[Array, "m 1"]], Float[Array, "m n"]],
    q: Float[Array, "m d"],
    k: Float[Array, "n d"],
    b: Float[Array, " n"],
    w: Float[Array, " n"],
    v: Float[Array, "n e"],
    row: Float[Array, " m"],
) -> Float[Array, "m e"]:
    """`sum_j w_j kernel(l_ij, row_i) v_j` for a named function `kernel` of the logits and one number a query."""

    def step(value, queries, keys):
        query, at = queries
        key, bias, weight, values = keys
        return value + kernel(_logits(query, key, bias), at[:, None]) @ (weight[:, None] * values)

    def start(queries):
        return jnp.zeros((len(queries[0]), v.shape[1]), q.dtype)

    return engine.fold(step, start, (q, row), (k, b, w, v), (0, 0, 0, 0))


@partial(jax.jit, static_argnums=0)
def largest(engine: Engine, q: Float[Array, "m d"], k: Float[Array, "n d"], b: Float[Array, " n"]) -> Float[Array, " m"]:
    """`max_j l_ij`."""

    def step(value, query, keys):
        key, bias = keys
        return jnp.maximum(value, jnp.max(_logits(query, key, bias), axis=1))

    return engine.fold(step, lambda query: jnp.full(len(query), -jnp.inf, q.dtype), q, (k, b), (0, -jnp.inf))
