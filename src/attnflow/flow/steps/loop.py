"""The loop over steps inside a compiled segment: a step, its verdict by the controller, the frames it passed, the conditions that end it.

It is written here, on the steppers, controllers and interpolants of diffrax, because `diffrax.diffeqsolve` checks its times on the host:
a program with a call to the host is never kept between processes, and would be compiled again in each of them.

Invariant: `y` is the state at local time `t` of the `clock`, accepted; the frames before number `frame` are saved, and those are just the
frames at times up to `t`. A step runs from `t` to `t_next`, never beyond the end. A rejected one leaves all but the controller, the clock
and the counts as they were.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from attnflow.flow.steps.clock import Clock
from attnflow.flow.steps.problem import Problem

Loop = Literal["lax", "checkpointed", "bounded"]

# A step that would end within this many units of round-off of the end goes to the end.
_CLOSE = 128
# The shortest step, in units of round-off of the local time: at a shorter one the clock counts from zero again.
_SHORTEST = 16
# A step as short as this many times the smallest number is none.
_NONE = 2**10


class Moving(NamedTuple):
    """Where the loop is. `jumped` says whether a jump of the velocity was just passed; `None` where it has none. `renewed` is the local
    time at which the clock was last put back to zero, 0 at first. `speed` is the relative speed over the last accepted step."""

    clock: Clock
    t: Array
    t_next: Array
    y: PyTree
    solver: PyTree
    control: PyTree
    jumped: Array | None
    renewed: Array
    speed: Array
    fine: Array
    over: Array
    accepted: Array
    rejected: Array
    frame: Array
    saved: PyTree


def march(
    problem: Problem,
    number: Array,
    start: Moving,
    ts: Array,
    length: Array,
    max_steps: int,
    adjoint: diffrax.AbstractAdjoint | None,
) -> Moving:
    """Steps from `start` to the `length` of the segment, at most `max_steps` of them, or until a condition of the problem holds after one,
    or a step fails. `number` steps came before.

    Frames are kept for the increasing times `ts`, since the beginning of the segment, which lie in `(0, length]`. The `adjoint` says how
    the loop is differentiated; `None` is forward mode, which compiles fastest.
    """
    kind, checkpoints = loop_kind(adjoint)

    def going(s: Moving) -> Array:
        return (s.t < s.clock.local(length)) & s.fine & ~s.over

    def advance(s: Moving) -> Moving:
        return _advance(problem, number, s, ts, length, kind)

    return eqxi.while_loop(going, advance, start, max_steps=max_steps, buffers=lambda s: s.saved, kind=kind, checkpoints=checkpoints)


def loop_kind(adjoint: diffrax.AbstractAdjoint | None) -> tuple[Loop, int | None]:
    """How a loop is differentiated, and with how many checkpoints."""
    if isinstance(adjoint, diffrax.RecursiveCheckpointAdjoint):
        return "checkpointed", adjoint.checkpoints
    return ("bounded" if isinstance(adjoint, diffrax.DirectAdjoint) else "lax"), None


def _advance(problem: Problem, number: Array, s: Moving, ts: Array, length: Array, kind: Loop) -> Moving:
    """One step, kept or rejected.

    A step fails when it becomes too short. Near a blow-up steps shrink like the time that is left, so that the clock is put back, and soon
    after that again: the second time, after less than the root of round-off of the first, is the end. Steps that are short because the run
    is long go on.
    """
    eps, tiny, solver = jnp.finfo(length.dtype).eps, jnp.finfo(length.dtype).tiny, problem.solver
    end, term, controller = s.clock.local(length), problem.term(s.clock, number + s.accepted), problem.controller.seen(s.clock)
    y, error, dense, solver_state, solved = solver.step(term, s.t, s.t_next, s.y, None, s.solver, False if s.jumped is None else s.jumped)
    # A step that is too long may leave the domain of the velocity: NaN is an error without bound, and the step is rejected.
    error = jax.tree.map(lambda e: jnp.where(jnp.isnan(e), jnp.inf, e), error)
    order: Any = solver.error_order(term)
    judgment: Any = controller.adapt_step_size(s.t, s.t_next, s.y, y, None, error, order, s.control)
    keep, t, t_next, jumped, control, judged = judgment
    t = jnp.minimum(t, end)
    # A rejected step that was cut to the end is halved at least.
    close = end * (1 - _CLOSE * eps)
    t_next = jnp.where(t_next > close, jnp.where(keep, end, t + 0.5 * (end - t)), t_next)
    speed = jnp.where(keep, _relative_speed(s.y, y, s.t_next - s.t), s.speed)
    y, solver_state = jax.tree.map(lambda a, b: jnp.where(keep, a, b), (y, solver_state), (s.y, s.solver))
    between = solver.interpolation_cls(t0=s.t, t1=s.t_next, **dense)
    frame, saved = _passed(s, s.clock.local(ts), keep, between, problem.frame, kind)
    planned = jax.lax.stop_gradient(control[1])
    short = (planned < _SHORTEST * eps * t) & (t < end)
    failed = (short & (t < eps**0.5 * s.renewed)) | ~(planned >= _NONE * tiny)
    # Not at a jump, which must stay just where it is.
    back = short & ~failed & ~jnp.asarray(jumped)
    clock = jax.tree.map(lambda a, b: jnp.where(back, a, b), s.clock.put_behind(t), s.clock)
    return Moving(
        clock,
        jnp.where(back, 0, t),
        jnp.where(back, jnp.where(t_next >= end, clock.local(length), t_next - t), t_next),
        y,
        solver_state,
        control,
        None if s.jumped is None else jnp.where(keep, jumped, s.jumped),
        jnp.where(back, t, s.renewed),
        speed,
        ~failed & (~keep | (solved == diffrax.RESULTS.successful)) & (judged == diffrax.RESULTS.successful),
        jnp.array(False) if problem.conditions is None else keep & problem.conditions(s.clock.at(t), y),
        s.accepted + keep,
        s.rejected + ~keep,
        frame,
        saved,
    )


def _relative_speed(before: PyTree, after: PyTree, time: Array) -> Array:
    """`|d(state)/dt| / (1 + |state|)` over a step, each in its largest entry."""
    before, after, time = jax.lax.stop_gradient((before, after, time))
    change = largest(jax.tree.map(lambda a, b: a - b, after, before))
    return change / time / (1 + largest(after))


def largest(tree: PyTree) -> Array:
    """The largest absolute value in a pytree; NaN if there is one."""
    return jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(tree)]))


def _passed(
    s: Moving, ts: Array, keep: Array, between: diffrax.AbstractLocalInterpolation, save: Callable, kind: Loop
) -> tuple[Array, PyTree]:
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
    return jax.tree.map(lambda a: jnp.full((count, *a.shape), jnp.inf if jnp.issubdtype(a.dtype, jnp.inexact) else 0, a.dtype), shapes)
