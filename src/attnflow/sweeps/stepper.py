"""Many small systems at once, each with its own time and step: the stepper behind `sweep` on the circle.

Arrays have the members along the last axis, so that every operation is a loop over members. The steps are Dormand and Prince's (1980),
as in `solve` with `diffrax.Dopri5()`, with a step size for each member. Members that are done stand still, and the loop ends when all are.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

REACHED, STOPPED, FAILED = 0, 1, 2
_RUNNING = -1

_ORDER, _SAFETY, _SHRINK, _GROW = 5, 0.9, 0.2, 5.0
_PAIR = diffrax.Dopri5().tableau
# The weights of the state half a step on, to order four (Shampine 1986).
_HALFWAY = np.array([6025192743, 0, 51252292925, -2691868925, 187940372067, -1776094331, 11237099]) / (
    2 * np.array([30085553152, 1, 65400821598, 45128329728, 1594534317056, 19743644256, 235043384])
)


class System(NamedTuple):
    """What is stepped: `rate(t, state)`; `observe(state)` gives a dictionary of arrays; `over(t, state, rate)` says which members may
    stop. Members are last everywhere. `tolerance` is for each entry of the state."""

    rate: Callable[[Array, Array], Array]
    observe: Callable[[Array], dict[str, Array]]
    over: Callable[[Array, Array, Array], Array] | None
    tolerance: Float[Array, ""]


class Ends(NamedTuple):
    """How each member ended: 0 it reached the end, 1 it stopped before, 2 it failed; after which time and how many steps, rejected ones
    included."""

    status: Int[Array, " b"]
    time: Float[Array, " b"]
    steps: Int[Array, " b"]


class _Carry(NamedTuple):
    """`lost` is what rounding took from t, the sum of the steps, so that short steps late in a run count (Kahan)."""

    t: Float[Array, " b"]
    lost: Float[Array, " b"]
    step: Float[Array, " b"]
    state: Float[Array, "n b"]
    rate: Float[Array, "n b"]
    frame: Int[Array, " b"]
    saved: dict[str, Array]
    status: Int[Array, " b"]
    steps: Int[Array, " b"]


def march(system: System, state: Float[Array, "n b"], ts: Float[Array, " t"], t1: Array, max_steps: int) -> tuple[dict[str, Array], Ends]:
    """From time 0 to t1: the observables at the increasing times `ts`, time first and members last, and how members ended.

    After a member stops, its observables are those of the state in which it did; where it failed, they are NaN.
    """
    t = jnp.zeros(state.shape[1:], t1.dtype)
    rate = system.rate(t, state)
    speed = jnp.max(jnp.abs(rate), axis=0)
    # A cautious guess: the motion turns as fast as it moves.
    step = jnp.minimum(t1 / 10, 0.5 * system.tolerance ** (1 / _ORDER) / jnp.maximum(speed, 1e-30))
    zero = jnp.zeros(t.shape, jnp.int32)
    saved = jax.tree.map(lambda a: jnp.full((len(ts), *a.shape), jnp.nan, a.dtype), jax.eval_shape(system.observe, state))
    first = _Carry(t, t, step, state, rate, zero, saved, jnp.where(jnp.isfinite(speed), _RUNNING, FAILED).astype(jnp.int32), zero)
    frame, saved = _save(system, first, ts, t, lambda at: state)
    first = first._replace(frame=frame, saved=saved)
    last = jax.lax.while_loop(lambda c: jnp.any(c.status == _RUNNING), lambda c: _advance(system, c, ts, t1, max_steps), first)
    held = (last.status == STOPPED)[None] & (jnp.arange(len(ts))[:, None] >= last.frame[None])
    saved = jax.tree.map(lambda a, now: jnp.where(_like(held, a), now[None], a), last.saved, system.observe(last.state))
    return saved, Ends(last.status, last.t, last.steps)


def _advance(system: System, c: _Carry, ts: Array, t1: Array, max_steps: int) -> _Carry:
    """One step of every member that is not done."""
    running, left = c.status == _RUNNING, t1 - c.t
    # A step that all but reaches the end goes to the end: round-off must not leave a sliver behind.
    h = jnp.where(running, jnp.where(c.step > (1 - 1e-5) * left, left, c.step), 0)
    stages, new = [c.rate], c.state
    for row, node in zip(_PAIR.a_lower, _PAIR.c, strict=True):
        new = c.state + h[None] * _combine(row, stages)
        stages.append(system.rate(c.t + node.item() * h, new))
    size = jnp.max(jnp.abs(h[None] * _combine(_PAIR.b_error, stages)), axis=0) / system.tolerance
    size = jnp.where(jnp.isfinite(size), size, jnp.inf)
    accepted = running & (size <= 1)
    step = jnp.where(running, h * jnp.clip(_SAFETY * jnp.maximum(size, 1e-10) ** (-1 / _ORDER), _SHRINK, _GROW), c.step)
    total = c.t + (h - c.lost)
    now = jnp.where(accepted, jnp.where(h == left, t1, total), c.t)
    lost = jnp.where(accepted, (total - c.t) - (h - c.lost), c.lost)
    halfway = c.state + h[None] * _combine(_HALFWAY, stages)

    def between(at: Array) -> Array:
        part = jnp.clip(jnp.where(h > 0, (at - c.t) / jnp.where(h > 0, h, 1), 0), 0, 1)
        return _quartic(part[None], c.state, new, halfway, h[None] * stages[0], h[None] * stages[-1])

    frame, saved = _save(system, c, ts, now, between)
    state, rate = jnp.where(accepted[None], new, c.state), jnp.where(accepted[None], stages[-1], c.rate)
    steps = c.steps + running
    status = jnp.where(running & (now >= t1), REACHED, c.status)
    if system.over is not None:
        status = jnp.where(accepted & (status == _RUNNING) & system.over(now, state, rate), STOPPED, status)
    # A circle is compact: steps shrink without end only where the velocity is not finite.
    none = ~(step >= 2**10 * jnp.finfo(t1.dtype).tiny)
    status = jnp.where((status == _RUNNING) & ((steps >= max_steps) | none), FAILED, status)
    return _Carry(now, lost, step, state, rate, frame, saved, status, steps)


def _save(system: System, c: _Carry, ts: Array, now: Array, state_at: Callable[[Array], Array]) -> tuple[Array, PyTree]:
    """The observables at all the times up to `now` that are not saved yet, the next one of every member at a time."""

    def next_of(frame: Array) -> tuple[Array, Array]:
        at = ts[jnp.minimum(frame, len(ts) - 1)]
        return at, (frame < len(ts)) & (at <= now) & (c.status == _RUNNING)

    def one(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        frame, saved = carry
        at, due = next_of(frame)
        values = system.observe(state_at(jnp.minimum(at, now)))
        here = (jnp.arange(len(ts))[:, None] == frame[None]) & due[None]
        return frame + due, jax.tree.map(lambda a, v: jnp.where(_like(here, a), v[None], a), saved, values)

    return jax.lax.while_loop(lambda carry: jnp.any(next_of(carry[0])[1]), one, (c.frame, c.saved))


def _combine(weights: np.ndarray, stages: list[Array]) -> Array:
    """`sum_i w_i k_i`, without the terms that are zero."""
    return functools.reduce(jnp.add, [weight.item() * stage for weight, stage in zip(weights, stages) if weight != 0])


def _quartic(s: Array, y0: Array, y1: Array, halfway: Array, d0: Array, d1: Array) -> Array:
    """At s in [0, 1] the polynomial with the values y0, y1 and slopes d0, d1 at the ends, and the value `halfway` at 1/2."""
    cubic = y0 + s * d0 + s**2 * (3 * (y1 - y0) - 2 * d0 - d1) + s**3 * (2 * (y0 - y1) + d0 + d1)
    return cubic + 16 * s**2 * (1 - s) ** 2 * (halfway - (y0 + y1) / 2 - (d0 - d1) / 8)


def _like(mask: Bool[Array, "t b"], a: Shaped[Array, "t *s b"]) -> Bool[Array, "t *one b"]:
    """A mask of times and members, with axes of length one for those of an observable."""
    return mask.reshape(len(mask), *(1,) * (a.ndim - 2), mask.shape[1])
