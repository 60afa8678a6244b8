"""The compiled part of `solve`: one stretch of time, from the state that the last one left."""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from attnflow.flow.loop import Moving, empty_frames, march
from attnflow.flow.stepping import Carried, Settled
from attnflow.measures import FlowingMeasure, Noise
from attnflow.sums import Engine


class Problem(eqx.Module):
    """The differential equation and its stepper. A compiled segment depends on this and on times; numbers in it are arrays, so that
    changing their values does not compile again."""

    field: Any
    measure: FlowingMeasure
    solver: Settled
    controller: Carried
    sums: Engine | None
    observe: dict[str, Callable]
    until: Callable | None
    noise: Noise | None
    room: Array | None
    keep_states: bool = eqx.field(static=True)

    def velocity(self, mu: Any, t: Array) -> Callable:
        """The velocity of a measure at time t."""
        return self.field.at(mu, t, self.sums)

    def rate(self, t: Array, state: PyTree) -> PyTree:
        """d(state)/dt along the velocity, without noise."""
        mu = self.measure.with_state(self.measure.settle(state))
        return mu.rate(self.velocity(mu, t))

    def frame(self, state: PyTree) -> tuple[PyTree, dict[str, Array]]:
        """What is saved of a state: itself, brought back to its space, if positions are kept, and the observables."""
        state = self.measure.settle(state)
        mu = self.measure.with_state(state)
        return (state if self.keep_states else None), {name: jnp.asarray(f(mu)) for name, f in self.observe.items()}

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

    @property
    def term(self) -> diffrax.AbstractTerm:
        return self.measure.motion(self.velocity, self.noise)


class Carry(NamedTuple):
    """What one segment hands to the next: the time, the state, and those of diffrax's solver and controller."""

    t: Array
    state: PyTree
    solver: PyTree
    control: PyTree
    jumped: Array | None


class Outcome(NamedTuple):
    """The figures of one segment; `ts` are the times that were saved, infinity for those that were not reached."""

    ts: Array
    reached: Array
    left: Array
    stopped: Array
    out_of_steps: Array
    finite: Array
    accepted: Array
    rejected: Array
    report: PyTree


@eqx.filter_jit
def start(problem: Problem, t0: Array) -> tuple[Carry, Array]:
    """The carry before the first step, and the largest rate of change there."""
    term, state = problem.term, problem.measure.state
    order = problem.solver.error_order(term)
    speed, size = largest(problem.rate(t0, state)), largest(state)
    # A hundredth of the time in which the state would double: short, and the controller lengthens it within a few steps. A second
    # evaluation of the velocity would tell more, and take longer to compile than those steps take to run.
    guess = 0.01 * jnp.where(speed > 0, jnp.where(size > 0, size, 1) / jnp.where(speed > 0, speed, 1), 1)
    end, control = problem.controller.init(term, t0, t0, state, guess, None, problem.solver.func, order)
    jumped = None if problem.controller.jumps is None else jnp.array(False)
    carry = Carry(t0, state, problem.solver.init(term, t0, end, state, None), control, jumped)
    return _strong(carry), speed


@eqx.filter_jit
def segment(
    problem: Problem, carry: Carry, ts: Array, end: Array, max_steps: int, differentiable: bool = False
) -> tuple[Carry, PyTree, Outcome]:
    """From `carry.t` to `end`, saving at `ts`; interpolated frames are settled too."""
    # A first step that all but reaches the end goes to the end: round-off must not leave a sliver behind.
    planned, reach = carry.control[1], end - carry.t
    first = jnp.where(planned > (1 - 1e-5) * reach, reach, planned)
    jumps = problem.controller.jumps
    if jumps is not None:
        first = problem.controller.before_jump(carry.t, carry.t + first) - carry.t
        # A frame at a jump is taken just before it: no step ends on the jump itself.
        ts = jnp.where(jnp.any(ts[:, None] == jumps[None], axis=1), jnp.nextafter(ts, carry.t), ts)
    # Conditions that hold at the start, as when a run goes on after it stopped, end the segment there.
    over = problem.conditions
    begin = Moving(
        t=carry.t,
        t_next=jnp.minimum(carry.t + first, end),
        y=carry.state,
        solver=carry.solver,
        control=carry.control,
        jumped=carry.jumped,
        fine=jnp.asarray(True),
        over=jnp.array(False) if over is None else over(carry.t, carry.state),
        accepted=jnp.array(0),
        rejected=jnp.array(0),
        frame=jnp.array(0),
        saved=empty_frames(problem.frame, carry.state, len(ts)),
    )
    last = march(problem.term, problem.solver, problem.controller, begin, ts, end, problem.frame, over, max_steps, differentiable)
    velocity = problem.field.at(problem.measure.with_state(last.y), last.t, problem.sums)
    left = jnp.array(False) if problem.room is None else last.over & problem.left(last.y)
    reached = (last.t >= end) & last.fine & ~last.over
    outcome = Outcome(
        jnp.where(jnp.arange(len(ts)) < last.frame, ts, jnp.inf),
        reached,
        left,
        last.over & ~left,
        ~reached & last.fine & ~last.over,
        jnp.isfinite(largest(last.y)),
        last.accepted,
        last.rejected,
        getattr(velocity, "report", {}),
    )
    after = Carry(last.t, last.y, last.solver, last.control, last.jumped)
    return _strong(after), last.saved, outcome


@eqx.filter_jit
def frame(problem: Problem, state: PyTree) -> tuple[PyTree, dict[str, Array]]:
    """What is saved of one state, compiled."""
    return problem.frame(state)


@eqx.filter_jit
def relative_speed(problem: Problem, carry: Carry) -> Array:
    """`|d(state)/dt| / (1 + |state|)`, each in its largest entry."""
    return largest(problem.rate(carry.t, carry.state)) / (1 + largest(carry.state))


def extent(points: Array) -> Array:
    """The sides of the box around a cloud."""
    return jnp.max(points, axis=0) - jnp.min(points, axis=0)


def _strong(carry: Carry) -> Carry:
    """Every leaf an array without weak type, so that the first and the later segments are one compiled program."""
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, jnp.result_type(leaf)), carry)


def largest(tree: PyTree) -> Array:
    """The largest absolute value in a pytree; NaN if there is one."""
    return jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(tree)]))
