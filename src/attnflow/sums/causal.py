"""Causal sums on the circle in O(n K): running sums of the K Fourier modes, in the order of the tokens."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._special import scaled_bessel
from attnflow.sums.mask import Sight

# Tokens a chunk: its modes, a few hundred kilobytes, stay in the cache.
CHUNK = 512


@partial(jax.jit, static_argnums=(0, 5))
def causal_circle(
    plan: Any, q: Float[Array, "n 2"], k: Float[Array, "n 2"], b: Float[Array, " n"], sight: Sight, with_mean: bool
) -> tuple[Float[Array, " n"], Float[Array, "n 2"] | None]:
    """`log sum_{j <= i} e^{l_ij}` and the mean of those keys, for tokens on a circle in their order, which must be distinct.

    `sum_{j <= i} w_j e^{r (cos(t_i - s_j) - 1)} = sum_m c_m e^{i m t_i} F_m(i)` with `F_m(i) = sum_{j <= i} w_j e^{-i m s_j}` and c the
    scaled Bessel numbers. For the mean, whose keys are `e^{i s}`, the modes of the kernel move by one.
    """
    n, half = len(q), plan.modes[0] // 2
    lengths, radii = jnp.linalg.norm(q, axis=1), jnp.linalg.norm(k, axis=1)
    length, radius = jnp.mean(lengths), jnp.mean(radii)
    r = length * radius
    bessel = scaled_bessel(r, plan.modes[0])
    orders = jnp.arange(-half, half)
    here, shifted = bessel[jnp.abs(orders)], bessel[jnp.abs(orders + 1)]
    targets, sources = jnp.arctan2(q[:, 1], q[:, 0]), jnp.arctan2(k[:, 1], k[:, 0])
    top = jax.lax.stop_gradient(jnp.max(b))
    room = -n % CHUNK
    chunks = [jnp.pad(rows, (0, room)).reshape(-1, CHUNK) for rows in (targets, sources, jnp.exp(b - top))]

    @jax.checkpoint
    def chunk(before: Array, rows: Any) -> tuple[Array, tuple[Array, Array]]:
        target, source, weight = rows
        running = before[None] + jnp.cumsum(weight[:, None] * jnp.exp(-1j * source[:, None] * orders[None]), axis=0)
        seen = running * jnp.exp(1j * target[:, None] * orders[None])
        mean = jnp.sum(seen * shifted[None], axis=1) * jnp.exp(1j * target) if with_mean else jnp.zeros_like(seen[:, 0])
        return running[-1], (jnp.real(jnp.sum(seen * here[None], axis=1)), mean)

    start = jnp.zeros(2 * half, jnp.result_type(q.dtype, jnp.complex64))
    _, (total, mean) = jax.lax.scan(chunk, start, tuple(chunks))
    total, mean = total.reshape(-1)[:n], mean.reshape(-1)[:n]
    off = jnp.maximum(jnp.max(jnp.abs(lengths / length - 1)), jnp.max(jnp.abs(radii / radius - 1)))
    in_order = jnp.all(sight.s == sight.tau) & jnp.all(jnp.diff(sight.tau) > 0)
    fits = (bessel[half - 1] <= plan.delta) & (off <= (1e-6 if q.dtype == jnp.float64 else 1e-4)) & in_order
    bad = jnp.where(fits, 0, jnp.nan).astype(q.dtype)
    log_sum = jnp.log(jnp.where(total > 0, total, 1)) + top + r + bad
    log_sum = jnp.where(total > 0, log_sum, jnp.nan)
    if not with_mean:
        return log_sum, None
    point = radius * mean / total
    return log_sum, jnp.stack([jnp.real(point), jnp.imag(point)], axis=1) + bad


def causal_share(log_sum: Float[Array, " n"], q: Float[Array, "n 2"], k: Float[Array, "n 2"], b: Float[Array, " n"]) -> Float[Array, " n"]:
    """What part of the weights seen so far, all at the largest kernel, the sum of each token is."""
    r = jnp.mean(jnp.linalg.norm(q, axis=1)) * jnp.mean(jnp.linalg.norm(k, axis=1))
    top = jnp.max(b)
    return jnp.exp(log_sum - r - top) / jnp.cumsum(jnp.exp(b - top))
