"""The loop over steps inside a compiled segment: a step, its verdict by the controller, the frames it passed, the conditions that end it.

It is written here, on the steppers, controllers and interpolants of diffrax, because `diffrax.diffeqsolve` checks its times on the host:
a program with a call to the host is never kept between processes, and would be compiled again in each of them.

Invariant: `y` is the state at `t`, accepted; the frames before number `frame` are saved, and those are just the frames at times up to `t`.
A step runs from `t` to `t_next`, never beyond `end`. A rejected one leaves all but the controller and the counts as they were.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from attnflow.flow.stepping import Carried, Settled

# A step that would end within this many units of round-off of the end goes to the end.
_CLOSE = 128


class Moving(NamedTuple):
    """Where the loop is. `jumped` says whether a jump of the velocity was just passed; `None` where it has none."""

    t: Array
    t_next: Array
    y: PyTree
    solver: PyTree
    control: PyTree
    jumped: Array | None
    fine: Array
    over: Array
    accepted: Array
    rejected: Array
    frame: Array
    saved: PyTree


def march(
    term: diffrax.AbstractTerm,
    solver: Settled,
    controller: Carried,
    start: Moving,
    ts: Array,
    end: Array,
    save: Callable[[PyTree], PyTree],
    over: Callable[[Array, PyTree], Array] | None,
    max_steps: int,
    differentiable: bool,
) -> Moving:
    """Steps from `start` to `end`, at most `max_steps` of them, or until `over(t, y)` holds after one, or a step fails.

    `save(y)` is kept for the increasing times `ts`, which lie in `(start.t, end]`. The loop is differentiable in reverse mode, by
    checkpoints, if it is asked to be; that takes longer to compile.
    """
    kind = "checkpointed" if differentiable else "lax"
    close = end - _CLOSE * jnp.finfo(end.dtype).eps * jnp.maximum(jnp.abs(start.t), jnp.abs(end))

    def going(s: Moving) -> Array:
        return (s.t < end) & s.fine & ~s.over

    def advance(s: Moving) -> Moving:
        y, error, dense, solver_state, solved = solver.step(
            term, s.t, s.t_next, s.y, None, s.solver, False if s.jumped is None else s.jumped
        )
        # A step that is too long may leave the domain of the velocity: NaN is an error without bound, and the step is rejected.
        error = jax.tree.map(lambda e: jnp.where(jnp.isnan(e), jnp.inf, e), error)
        order: Any = solver.error_order(term)
        judgement: Any = controller.adapt_step_size(s.t, s.t_next, s.y, y, None, error, order, s.control)
        keep, t, t_next, jumped, control, judged = judgement
        t = jnp.minimum(t, end)
        # A rejected step that was cut to the end is halved at least.
        t_next = jnp.where(t_next > close, jnp.where(keep, end, t + 0.5 * (end - t)), t_next)
        y, solver_state = (jax.tree.map(lambda a, b: jnp.where(keep, a, b), new, old) for new, old in ((y, s.y), (solver_state, s.solver)))
        between = solver.interpolation_cls(t0=s.t, t1=s.t_next, **dense)
        frame, saved = _passed(s, ts, keep, between, save, kind)
        return Moving(
            t,
            t_next,
            y,
            solver_state,
            control,
            None if s.jumped is None else jnp.where(keep, jumped, s.jumped),
            (~keep | (solved == diffrax.RESULTS.successful)) & (judged == diffrax.RESULTS.successful),
            jnp.array(False) if over is None else keep & over(t, y),
            s.accepted + keep,
            s.rejected + ~keep,
            frame,
            saved,
        )

    return eqxi.while_loop(going, advance, start, max_steps=max_steps, buffers=lambda s: s.saved, kind=kind)


def _passed(s: Moving, ts: Array, keep: Array, between: Any, save: Callable, kind: Any) -> tuple[Array, PyTree]:
    """The frames that an accepted step reached, interpolated, and the number of the first one after it."""

    def due(carry: tuple[Array, PyTree]) -> Array:
        frame = carry[0]
        return keep & (frame < len(ts)) & (ts[jnp.minimum(frame, len(ts) - 1)] <= s.t_next)

    def one(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        frame, saved = carry
        values = save(between.evaluate(ts[frame]))
        return frame + 1, jax.tree.map(lambda value, kept: kept.at[frame].set(value), values, saved)

    return eqxi.while_loop(due, one, (s.frame, s.saved), max_steps=len(ts), buffers=lambda c: c[1], kind=kind, checkpoints=len(ts))


def empty_frames(save: Callable[[PyTree], PyTree], y: PyTree, count: int) -> PyTree:
    """Room for `count` frames, infinity where none was saved."""
    shapes = eqx.filter_eval_shape(save, y)
    return jax.tree.map(lambda a: jnp.full((count, *a.shape), _unset(a.dtype), a.dtype), shapes)


def _unset(dtype: Any) -> Any:
    return jnp.inf if jnp.issubdtype(dtype, jnp.inexact) else 0
