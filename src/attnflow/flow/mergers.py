"""Tokens that attract each other at rates of every size, stepped on a clock of their own until two of them meet: the compiled part of
`staircase`, whose docstring has the formulas."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attnflow._types import Scalar
from attnflow.numerics.rows import dot

# The longest step of s, and the most by which the logarithm of a rate that counts may change in a step. Rates below e^-40 of the largest
# do not count. A merger that takes more steps than a stretch has is followed in several.
_LONGEST, _CHANGE, _COUNTS, STEPS = 0.1, 0.25, 40.0, 4096
# A clock that runs on while nothing comes closer: tokens at rest in a saddle.
_PATIENCE = 400.0


class State(NamedTuple):
    """Where a stretch has come to: tokens, log t, s since the last merger, and the record of this stretch; `still` if nothing moves."""

    points: Array
    log_t: Array
    s: Array
    steps: Array
    log_ts: Array
    energies: Array
    still: Array


def begin(points: Array, log_t: Array) -> State:
    blank = jnp.zeros(STEPS, points.dtype)
    zero = jnp.zeros((), points.dtype)
    return State(points, log_t, zero, jnp.asarray(0), blank, blank, zero)


@jax.jit
def until_merger(beta: Array, offset: Array | None, state: State, log_w: Array, radius: Scalar, end: Scalar, coarse: Scalar) -> State:
    """Steps on the clock s until a pair is within the radius, log t is over, nothing moves, or the record is full."""

    def go_on(state: State) -> Bool[Array, ""]:
        full = state.steps >= STEPS
        return ~full & (_nearest(state.points, log_w)[0].min() > radius) & (state.log_t < end) & (state.s < _PATIENCE) & (state.still < 1)

    def step(state: State) -> State:
        x = state.points
        k1, clock1, change = _clocked(beta, offset, x, log_w)
        # The last step ends at the radius: a pair closes like e^-s, or slower.
        room = jnp.log(_nearest(x, log_w)[0].min() / radius) + 1e-9
        h = jnp.minimum(jnp.minimum(_LONGEST, _CHANGE / jnp.maximum(change, 1e-30)) * coarse, room)
        k2, _, _ = _clocked(beta, offset, _on(x + 0.5 * h * k1), log_w)
        k3, clock3, _ = _clocked(beta, offset, _on(x + 0.5 * h * k2), log_w)
        k4, _, _ = _clocked(beta, offset, _on(x + h * k3), log_w)
        new = _on(x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4))
        _, clock4, _ = _clocked(beta, offset, new, log_w)
        took = jnp.log(h / 6) + jax.nn.logsumexp(jnp.stack([clock1, jnp.log(4.0) + clock3, clock4]))
        moves = jnp.isfinite(took)
        log_t, still = jnp.where(moves, jnp.logaddexp(state.log_t, took), state.log_t), jnp.where(moves, state.still, 1)
        at = state.steps
        return State(
            new, log_t, state.s + h, at + 1, state.log_ts.at[at].set(log_t), state.energies.at[at].set(_energy(beta, new, log_w)), still
        )

    return jax.lax.while_loop(go_on, step, state)


def _clocked(beta: Array, offset: Array | None, x: Float[Array, "n d"], log_w: Float[Array, " n"]) -> tuple[Array, Array, Array]:
    """dx/ds, log dt/ds, and the largest change of the logarithm of a rate that counts in unit s."""
    n = len(x)
    apart = x[None] - x[:, None]
    alive = jnp.isfinite(log_w)
    other = alive[:, None] & alive[None] & ~jnp.eye(n, dtype=bool)
    # beta(<x_i, x_j> - 1), by differences: digits of close pairs are kept.
    tilt = -0.5 * beta * dot(apart, apart)
    if offset is None:
        logs = tilt + log_w[None] - jax.nn.logsumexp(jnp.where(alive[None], tilt + log_w[None], -jnp.inf), axis=1)[:, None]
    else:
        logs = tilt + log_w[None] + offset
    logs = jnp.where(other, logs, -jnp.inf)
    top = jnp.max(logs)
    share = jnp.exp(logs - top)
    pull = jnp.einsum("ij,ijd->id", share, apart)
    pull = pull - dot(pull, x)[:, None] * x
    gap, near = _nearest(x, log_w)
    closing = pull - pull[near]
    both = jnp.sqrt(jnp.maximum(dot(closing, closing) / jnp.where(jnp.isfinite(gap), gap, 1) ** 2, dot(pull, pull)))
    relative = jnp.max(jnp.where(alive, both, 0))
    safe = jnp.maximum(relative, jnp.finfo(x.dtype).tiny)
    motion = pull / safe
    # How fast the tilt of each pair that counts changes.
    turning = beta * jnp.abs(jnp.sum(apart * (motion[None] - motion[:, None]), axis=-1))
    change = jnp.max(jnp.where(logs > top - _COUNTS, turning, 0))
    return motion, jnp.where(relative > 0, -top - jnp.log(safe), jnp.inf), change


def _nearest(x: Float[Array, "n d"], log_w: Float[Array, " n"]) -> tuple[Array, Array]:
    """The distance of each token to the nearest other one, infinite for those that are gone."""
    alive = jnp.isfinite(log_w)
    apart = x[None] - x[:, None]
    other = alive[:, None] & alive[None] & ~jnp.eye(len(x), dtype=bool)
    square = jnp.where(other, dot(apart, apart), jnp.inf)
    return jnp.sqrt(jnp.min(square, axis=1)), jnp.argmin(square, axis=1)


def _on(x: Array) -> Array:
    return x / jnp.sqrt(dot(x, x))[:, None]


def _energy(beta: Array, x: Array, log_w: Array) -> Array:
    apart = x[None] - x[:, None]
    w = jnp.exp(log_w)
    return w @ jnp.exp(-0.5 * beta * dot(apart, apart)) @ w
