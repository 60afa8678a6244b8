"""The compiled part of `solve`: one stretch of time, from the state that the last one left."""

from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from attnflow.flow.path import BLOW_UP, BUDGET, KINDS, REACHED, STALLED, STOPPED
from attnflow.flow.steps.loop import Moving, empty_frames, largest, march
from attnflow.flow.steps.problem import Problem
from attnflow.sums import Engine


class Carry(NamedTuple):
    """What one segment hands to the next: the state, those of diffrax's solver and controller, and how many steps there were. The time is
    on the host."""

    state: PyTree
    solver: PyTree
    control: PyTree
    jumped: Array | None
    steps: Array


class Outcome(NamedTuple):
    """The figures of one segment. The time it took is the sum of `time`; the first `frames` frames were saved; `code` is that of a
    `Status`, for a run that would end here; `left` says that the cloud left the room of its plan; `speed` is by how much the state changes
    in unit time, relative to its size."""

    time: Array
    frames: Array
    code: Array
    left: Array
    finite: Array
    speed: Array
    accepted: Array
    rejected: Array
    report: PyTree

    @property
    def reached(self) -> Array:
        """Whether the segment came to its end."""
        return self.code == REACHED

    @property
    def stopped(self) -> Array:
        """Whether the condition `until` ended it."""
        return self.code >= STOPPED


@eqx.filter_jit
def start(problem: Problem, t: Array, steps: Array | None = None) -> tuple[Carry, Array, PyTree, tuple[Engine, ...]]:
    """The carry at time t before the first step, or after so many; the largest rate of change there, the figures of the velocity, and what
    its sums run on."""
    state, dtype = problem.measure.state, problem.measure.dtype
    steps = jnp.array(0) if steps is None else steps
    term, zero = problem.term(problem.clock(t), steps), jnp.zeros((), dtype)
    order = problem.solver.error_order(term)
    mu = problem.measure.with_state(problem.measure.retract(state))
    velocity = problem.velocity(mu, problem.clock(t).at(zero))
    speed, size = largest(mu.rate(velocity)), largest(state)
    # A hundredth of the time in which the state would double: short, and the controller lengthens it within a few steps. A second
    # evaluation of the velocity would tell more, and take longer to compile than those steps take to run.
    guess = 0.01 * jnp.where(speed > 0, jnp.where(size > 0, size, 1) / jnp.where(speed > 0, speed, 1), 1)
    controller = problem.controller.seen(problem.clock(t))
    end, control = controller.init(term, zero, zero, state, guess, None, problem.solver.func, order)
    jumped = None if controller.jumps is None else jnp.array(False)
    carry = Carry(state, problem.solver.init(term, zero, end, state, None), control, jumped, steps)
    return _strong(carry), speed, velocity.report | mu.report(velocity), velocity.engines


@eqx.filter_jit
def segment(
    problem: Problem,
    carry: Carry,
    begin: Array,
    ts: Array,
    length: Array,
    max_steps: int,
    adjoint: diffrax.AbstractAdjoint | None = None,
) -> tuple[Carry, PyTree, Outcome]:
    """From time `begin` on for the time `length`, saving at the times `ts` since then; interpolated frames are retracted too."""
    first, ts = _first(problem, carry, begin, ts, length)
    last = march(problem, carry.steps, first, ts, length, max_steps, adjoint)
    after = Carry(last.y, last.solver, last.control, last.jumped, carry.steps + last.accepted)
    return _strong(after), last.saved, _outcome(problem, last, length)


def _first(problem: Problem, carry: Carry, begin: Array, ts: Array, length: Array) -> tuple[Moving, Array]:
    """Where the loop of a segment begins, and the times of its frames."""
    zero, clock = jnp.zeros((), problem.measure.dtype), problem.clock(begin)
    # A first step that all but reaches the end goes to the end: round-off must not leave a sliver behind.
    planned = carry.control[1]
    first = jnp.where(planned > (1 - 1e-5) * length, length, planned)
    if problem.controller.jumps is not None:
        first = problem.controller.seen(clock).before_jump(zero, first)
        # A frame at a jump is taken just before it: no step ends on the jump itself.
        ts = jnp.where(jnp.any(ts[:, None] == clock.local_jumps[None], axis=1), jnp.nextafter(ts, zero), ts)
    moving = Moving(
        clock=clock,
        t=zero,
        t_next=jnp.minimum(first, length),
        y=carry.state,
        solver=carry.solver,
        control=carry.control,
        jumped=carry.jumped,
        renewed=zero,
        speed=zero,
        fine=jnp.asarray(True),
        # Conditions that hold at the start, as when a run goes on after it stopped, end the segment there.
        over=jnp.array(False) if problem.conditions is None else problem.conditions(clock.at(zero), carry.state),
        accepted=jnp.array(0),
        rejected=jnp.array(0),
        frame=jnp.array(0),
        saved=empty_frames(problem.frame, carry.state, len(ts)),
    )
    return moving, ts


def _outcome(problem: Problem, last: Moving, length: Array) -> Outcome:
    """The figures of a segment whose loop ended so."""
    mu = problem.measure.with_state(last.y)
    velocity = problem.velocity(mu, last.clock.at(last.t))
    left = jnp.array(False) if problem.room is None else last.over & problem.left(last.y)
    reached = (last.t >= last.clock.local(length)) & last.fine & ~last.over
    finite = jnp.isfinite(largest(last.y))
    # At a blow-up steps shrink like the time in which the state doubles, so that the state still changes by some part in each of them. At a
    # jump or a stiff spot it does not.
    explodes = ~(last.speed * last.control[1] < 4 * jnp.finfo(last.t.dtype).eps ** 0.5)
    kind = getattr(problem.until, "kind", None)
    lost = STALLED if problem.measure.bounded else BLOW_UP
    cases = [~finite, reached, last.over & ~left, last.fine & ~last.over, explodes]
    codes = [lost, REACHED, KINDS.index(kind) if kind in KINDS else STOPPED, BUDGET, lost]
    code = jnp.select(cases, [jnp.asarray(code, jnp.int32) for code in codes], STALLED)
    time = jnp.stack([last.clock.behind, last.clock.rest, last.t])
    report = velocity.report | mu.report(velocity)
    return Outcome(time, last.frame, code, left, finite, last.speed, last.accepted, last.rejected, report)


@eqx.filter_jit
def frame(problem: Problem, state: PyTree) -> tuple[PyTree, dict[str, Array]]:
    """What is saved of one state, compiled."""
    return problem.frame(state)


def figures_of(outcome: Outcome) -> dict[str, Any]:
    """The figures of a segment as plain numbers."""
    plain: dict[str, Any] = jax.tree.map(lambda leaf: np.asarray(leaf).item(), outcome._replace(time=0)._asdict())
    return plain | {"time": float(np.asarray(outcome.time, np.float64).sum())}


def _strong(carry: Carry) -> Carry:
    """Every leaf an array without weak type, so that the first and the later segments are one compiled program."""
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, jnp.result_type(leaf)), carry)
