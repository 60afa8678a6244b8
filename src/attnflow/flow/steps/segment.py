"""The compiled part of `solve`: one stretch of time, from the state that the last one left."""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from attnflow.flow.observe import value_of
from attnflow.flow.steps.clock import Clock, clock
from attnflow.flow.steps.loop import Moving, empty_frames, largest, march
from attnflow.flow.steps.stepping import Carried, Retracted
from attnflow.measures import FlowingMeasure, Noise, Velocity, velocity_of
from attnflow.sums import Engine, Request


class Problem(eqx.Module):
    """The differential equation and its stepper. A compiled segment depends on this and on times; numbers in it are arrays, so that
    changing their values does not compile again. `rtol` is the tolerance of adaptive steps, `None` for others."""

    field: Any
    measure: FlowingMeasure
    solver: Retracted
    controller: Carried
    sums: Request | None
    observe: dict[str, Callable]
    until: Callable | None
    noise: Noise | None
    room: Array | None
    rtol: Array | None
    keep_states: bool = eqx.field(static=True)

    def rate(self, t: Array, state: PyTree) -> PyTree:
        """d(state)/dt along the velocity, without noise."""
        mu = self.measure.with_state(self.measure.retract(state))
        return mu.rate(self.velocity(mu, t))

    def velocity(self, mu: FlowingMeasure, t: Array) -> Velocity:
        """The velocity of the field."""
        return velocity_of(self.field, mu, t, self.sums)

    def frame(self, state: PyTree) -> tuple[PyTree, dict[str, Array]]:
        """What is saved of a state: itself, brought back to its space, if positions are kept, and the observables."""
        state = self.measure.retract(state)
        mu = self.measure.with_state(state)
        return (state if self.keep_states else None), {name: value_of(name, f, mu) for name, f in self.observe.items()}

    def over(self, t: Array, state: PyTree) -> Array:
        """Whether the run may stop here."""
        assert self.until is not None
        return self.until(self.measure.with_state(state), self.rate(t, state), t)

    def left(self, state: PyTree) -> Array:
        """Whether the cloud has left the room that its sums were planned for."""
        assert self.room is not None
        return jnp.any(~(extent(state) <= self.room))

    @property
    def conditions(self) -> Callable[[Array, PyTree], Array] | None:
        """What ends a segment before its time, if anything may: a cloud without room, or the user's `until`."""
        if self.room is None:
            return None if self.until is None else self.over
        if self.until is None:
            return lambda t, state: self.left(state)
        return lambda t, state: self.left(state) | self.over(t, state)

    def clock(self, t: Array) -> Clock:
        """The clock of a segment that begins at time t."""
        return clock(t, self.controller.jumps, self.measure.dtype)

    def term(self, clock: Clock, number: Array) -> diffrax.AbstractTerm:
        """The equation in the local time of a clock, for the step with this number since the start: every step has noise of its own, and a
        run that goes on after a break draws what it would have drawn."""
        noise = self.noise
        if noise is not None and noise.key is not None:
            noise = Noise(noise.sigma, jax.random.fold_in(noise.key, number))
        return self.measure.motion(lambda mu, s: self.velocity(mu, clock.at(s)), noise)


class Carry(NamedTuple):
    """What one segment hands to the next: the state, those of diffrax's solver and controller, and how many steps there were. The time is
    on the host."""

    state: PyTree
    solver: PyTree
    control: PyTree
    jumped: Array | None
    steps: Array


class Outcome(NamedTuple):
    """The figures of one segment. The time it took is the sum of `time`; the first `frames` frames were saved; `pace` is by how much the
    state changes, relative to its size, in the step that would come next, and `speed` that by time."""

    time: Array
    frames: Array
    reached: Array
    left: Array
    stopped: Array
    out_of_steps: Array
    finite: Array
    speed: Array
    pace: Array
    accepted: Array
    rejected: Array
    report: PyTree


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
    problem: Problem, carry: Carry, begin: Array, ts: Array, length: Array, max_steps: int, differentiable: bool = False
) -> tuple[Carry, PyTree, Outcome]:
    """From time `begin` on for the time `length`, saving at the times `ts` since then; interpolated frames are settled too."""
    zero, clock = jnp.zeros((), problem.measure.dtype), problem.clock(begin)
    # A first step that all but reaches the end goes to the end: round-off must not leave a sliver behind.
    planned = carry.control[1]
    first = jnp.where(planned > (1 - 1e-5) * length, length, planned)
    if problem.controller.jumps is not None:
        jumps = clock.local_jumps
        first = problem.controller.seen(clock).before_jump(zero, first)
        # A frame at a jump is taken just before it: no step ends on the jump itself.
        ts = jnp.where(jnp.any(ts[:, None] == jumps[None], axis=1), jnp.nextafter(ts, zero), ts)
    # Conditions that hold at the start, as when a run goes on after it stopped, end the segment there.
    over = problem.conditions
    moving = Moving(
        clock=clock,
        t=zero,
        t_next=jnp.minimum(first, length),
        y=carry.state,
        solver=carry.solver,
        control=carry.control,
        jumped=carry.jumped,
        worn=zero,
        speed=zero,
        fine=jnp.asarray(True),
        over=jnp.array(False) if over is None else over(clock.at(zero), carry.state),
        accepted=jnp.array(0),
        rejected=jnp.array(0),
        frame=jnp.array(0),
        saved=empty_frames(problem.frame, carry.state, len(ts)),
    )
    last = march(
        lambda clock, number: problem.term(clock, carry.steps + number),
        problem.solver,
        problem.controller,
        moving,
        ts,
        length,
        problem.frame,
        over,
        max_steps,
        differentiable,
    )
    mu = problem.measure.with_state(last.y)
    velocity = problem.velocity(mu, last.clock.at(last.t))
    left = jnp.array(False) if problem.room is None else last.over & problem.left(last.y)
    reached = (last.t >= last.clock.local(length)) & last.fine & ~last.over
    outcome = Outcome(
        jnp.stack([last.clock.behind, last.clock.rest, last.t]),
        last.frame,
        reached,
        left,
        last.over & ~left,
        ~reached & last.fine & ~last.over,
        jnp.isfinite(largest(last.y)),
        last.speed,
        last.speed * last.control[1],
        last.accepted,
        last.rejected,
        velocity.report | mu.report(velocity),
    )
    return _strong(Carry(last.y, last.solver, last.control, last.jumped, carry.steps + last.accepted)), last.saved, outcome


@eqx.filter_jit
def frame(problem: Problem, state: PyTree) -> tuple[PyTree, dict[str, Array]]:
    """What is saved of one state, compiled."""
    return problem.frame(state)


def extent(points: Array) -> Array:
    """The sides of the box around a cloud."""
    return jnp.max(points, axis=0) - jnp.min(points, axis=0)


def _strong(carry: Carry) -> Carry:
    """Every leaf an array without weak type, so that the first and the later segments are one compiled program."""
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, jnp.result_type(leaf)), carry)
