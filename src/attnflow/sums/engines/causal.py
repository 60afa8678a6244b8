"""Causal sums on the circle in O(n K): running sums of the K Fourier modes, in the order of the tokens."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow.sums.engines.circle import DEGREE, angles, coefficients, powers, rings
from attnflow.sums.engines.spectral import Transform, least_share
from attnflow.sums.mask import Sight

# Tokens per chunk: its modes, a few hundred kilobytes, stay in the cache.
CHUNK = 512


@partial(jax.jit, static_argnums=(0, 5))
def causal_sums(
    plan: Transform, q: Float[Array, "n 2"], k: Float[Array, "n 2"], b: Float[Array, " n"], sight: Sight, with_mean: bool
) -> tuple[Float[Array, " n"], Float[Array, "n 2"] | None, Float[Array, " n"], Float[Array, ""]]:
    """`log sum_{j <= i} e^{l_ij}` and the mean of those keys, for tokens on a circle sorted by distinct orders; the share of each sum in
    what it would be if all its keys had the largest kernel; and how much of the plan is used."""
    # A key without mass has bias -inf, whose derivative carries nothing.
    b = jnp.where(b == -jnp.inf, -jnp.inf, b)
    log_sum, mean, share, fill = _on_circle(plan, with_mean, q, k, b)
    in_order = jnp.all(sight.s == sight.tau) & jnp.all(jnp.diff(sight.tau) > 0)
    bad = jnp.where((fill <= 1) & in_order, 0, jnp.nan).astype(q.dtype)
    return log_sum + bad, None if mean is None else mean + bad, share, fill


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _on_circle(plan: Transform, with_mean: bool, q: Array, k: Array, b: Array) -> tuple[Array, Array | None, Array, Array]:
    """The sums as if all lengths were equal. Derivatives are those of the sums with the actual lengths, exact to second order."""
    return _running(plan, with_mean, 0, q, k, b)


@_on_circle.defjvp
def _on_circle_jvp(plan, with_mean, primals, tangents):
    _, change = jax.jvp(partial(_running, plan, with_mean, DEGREE), primals, tangents)
    return _on_circle(plan, with_mean, *primals), change


def _running(plan: Transform, with_mean: bool, degree: int, q: Array, k: Array, b: Array) -> tuple[Array, Array | None, Array, Array]:
    """The sums to this degree in the distances of tokens from the circle.

    `sum_{j <= i} w_j e^{r (cos(t_i - s_j) - 1)} = sum_m c_m e^{i m t_i} F_m(i)` with `F_m(i) = sum_{j <= i} w_j e^{-i m s_j}` and c the
    scaled Bessel numbers. For the mean the kernel is multiplied by the key, `e^{i s_j}`.
    """
    n, count, ring = len(q), plan.modes[0], rings(q, k, degree)
    r, orders = ring.length * ring.radius, jnp.arange(count) - count // 2
    of_sum, of_mean = (coefficients(r, count, degree, part) for part in (None, np.exp(-1j * angles(count))))
    top = jax.lax.stop_gradient(jnp.max(b))
    weights, room = jnp.exp(b - top), -n % CHUNK
    by_query, by_key = jnp.stack(powers(ring.x, degree)), jnp.stack([weights * by for by in powers(ring.y, degree)])
    chunks = [jnp.pad(rows, (0, room)).reshape(-1, CHUNK) for rows in (ring.targets, ring.sources)]
    chunks += [jnp.moveaxis(jnp.pad(rows, ((0, 0), (0, room))).reshape(degree + 1, -1, CHUNK), 1, 0) for rows in (by_query, by_key)]

    @jax.checkpoint
    def chunk(before: Array, rows: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        target, source, by_query, by_key = rows
        wave = jnp.exp(-1j * source[:, None] * orders[None])
        running = [start[None] + jnp.cumsum(weight[:, None] * wave, axis=0) for start, weight in zip(before, by_key)]
        there = jnp.exp(1j * target[:, None] * orders[None])
        seen = [modes * there for modes in running]

        def summed(parts: dict[tuple[int, int], Array]) -> Array:
            terms = [jnp.sum(seen[j] * jnp.real(c)[None], axis=1) * by_query[i] for (i, j), c in parts.items()]
            return jax.tree.reduce(jnp.add, terms)

        mean = summed(of_mean) * jnp.exp(1j * target) if with_mean else jnp.zeros_like(wave[:, 0])
        return jnp.stack([modes[-1] for modes in running]), (jnp.real(summed(of_sum)), mean)

    start = jnp.zeros((degree + 1, count), jnp.result_type(q.dtype, jnp.complex64))
    _, (total, mean) = jax.lax.scan(chunk, start, tuple(chunks))
    total, mean = total.reshape(-1)[:n], mean.reshape(-1)[:n]
    share = total / jnp.cumsum(weights)
    # A sum that is below the error is NaN.
    positive = share > least_share(plan)
    total = jnp.where(positive, total, 1)
    log_sum = jnp.where(positive, jnp.log(total) + top + r, jnp.nan)
    fill = ring.fill(plan.tolerance, plan.delta, jnp.abs(of_sum[0, 0][-1]))
    if not with_mean:
        return log_sum, None, share, fill
    point = ring.radius * jnp.where(positive, mean / total, jnp.nan)
    return log_sum, jnp.stack([jnp.real(point), jnp.imag(point)], axis=1), share, fill
