"""Rows and columns normalized in turn (Sinkhorn and Knopp 1967; Cuturi 2013, arXiv:1306.0895), made fast and robust.

- The iteration begins at a temperature at which it is easy, and goes down to the one asked for, taking `g / temperature` along.
- There it is accelerated: see `anderson`.
- The dual `D(g) = integral f dmu + integral g dnu`, f with exact rows for g, is concave and rises in every plain step. A mixture at
  which it falls is refused, the plain step taken in its place, and the next mixtures kept nearer to their plain steps.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attnflow.sums import Logit, Request
from attnflow.transport.sinkhorn.anderson import History, empty, mixed, remember
from attnflow.transport.sinkhorn.clouds import Clouds, integral, largest_logit, log_column_sums, log_row_sums, violation

# Annealing: the largest logit at the first temperature, the ratio of two temperatures, and when to go on: the error, or the steps there.
_FIRST, _RATIO, _ENOUGH, _MOST = 4.0, 4.0, 0.1, 20
# How many potentials are mixed.
_DEPTH = 16


class _Carry(NamedTuple):
    """`level` is the share of the logits that is switched on; f and the dual belong to g at that level; `trust` is how far a mixture may
    go from its plain step."""

    g: Float[Array, " n"]
    f: Float[Array, " m"]
    dual: Float[Array, ""]
    level: Float[Array, ""]
    error: Float[Array, ""]
    since: Int[Array, ""]
    count: Int[Array, ""]
    trust: Float[Array, ""]
    history: History


@partial(jax.jit, static_argnums=(0, 1))
def alternate(
    annealed: bool, sums: Request | None, logit: Logit, clouds: Clouds, tolerance: Array, max_iterations: Array, first: Float[Array, " n"]
) -> tuple[Array, Array, Array]:
    """The potential g of the keys, of mean zero, its error, and the number of steps."""
    one, slack = jnp.ones((), logit.dtype), 100 * jnp.finfo(logit.dtype).eps

    def exact(level: Array, g: Array) -> tuple[Array, Array, Array]:
        """g, its rows made exact, and the dual."""
        f = -log_row_sums(logit.scaled(level), clouds, g, sums)
        return g, f, integral(f, clouds.queries) + integral(g, clouds.keys)

    def update(was: _Carry) -> _Carry:
        plain = -log_column_sums(logit.scaled(was.level), clouds, was.f, sums)
        error, warm = violation(was.g - plain, clouds.keys), was.level < 1
        done = (error <= tolerance) & ~warm
        ready = warm & ((error <= _ENOUGH) | (was.since >= _MOST))
        level = jnp.where(ready, jnp.minimum(_RATIO * was.level, 1), was.level)
        history = remember(was.history, plain, plain - was.g, warm)
        mixture = plain + was.trust * (mixed(history, clouds.keys) - plain)
        # The error belongs to the g it was measured at, so a finished g is kept, not replaced.
        g = jnp.where(done, was.g, jnp.where(warm, plain * level / was.level, mixture))
        found = exact(level, g)
        refused = ~warm & ~done & ~(found[2] >= was.dual - slack * (1 + jnp.abs(was.dual)))
        g, f, dual = jax.lax.cond(refused, lambda: exact(level, plain), lambda: found)
        trust = jnp.where(refused, was.trust / 4, jnp.minimum(2 * was.trust, 1))
        return _Carry(g, f, dual, level, error, jnp.where(ready, 0, was.since + 1), was.count + 1, trust, history)

    def unfinished(carry: _Carry) -> Array:
        return ((carry.error > tolerance) | (carry.level < 1)) & (carry.count < max_iterations)

    level = jnp.minimum(one, _FIRST / jnp.maximum(largest_logit(logit, clouds), jnp.finfo(one.dtype).tiny)) if annealed else one
    none = jnp.asarray(0)
    begin = exact(level, first * level)
    end = jax.lax.while_loop(unfinished, update, _Carry(*begin, level, one * jnp.inf, none, none, one, empty(_DEPTH, first)))
    g = end.g / end.level
    return g - integral(g, clouds.keys), jnp.where(end.level < 1, jnp.inf, end.error), end.count
