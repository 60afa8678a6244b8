"""The compiled part of `solve`: one stretch of time, from the state that the last one left."""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

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
    def event(self) -> diffrax.Event | None:
        """What ends a segment before its time: a cloud without room, then the user's `until`."""
        conditions = []
        if self.room is not None:
            conditions.append(lambda t, y, args, **_: self.left(y))
        if self.until is not None:
            conditions.append(lambda t, y, args, **_: self.over(t, y))
        return diffrax.Event(conditions) if conditions else None

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
    end, control = problem.controller.init(term, t0, t0, state, None, None, problem.solver.func, order)
    jumped = None if problem.controller.jumps is None else jnp.array(False)
    carry = Carry(t0, state, problem.solver.init(term, t0, end, state, None), control, jumped)
    return _strong(carry), largest(problem.rate(t0, state))


@eqx.filter_jit
def segment(problem: Problem, carry: Carry, ts: Array, end: Array, max_steps: int) -> tuple[Carry, PyTree, Outcome]:
    """From `carry.t` to `end`, saving at `ts`; interpolated frames are settled too."""
    # A first step that all but reaches the end goes to the end: round-off must not leave a sliver behind.
    planned, reach = carry.control[1], end - carry.t
    first = jnp.where(planned > (1 - 1e-5) * reach, reach, planned)
    jumps = problem.controller.jumps
    if jumps is not None:
        first = problem.controller.before_jump(carry.t, carry.t + first) - carry.t
        # A frame at a jump is taken just before it: no step ends on the jump itself.
        ts = jnp.where(jnp.any(ts[:, None] == jumps[None], axis=1), jnp.nextafter(ts, carry.t), ts)
    frames = diffrax.SubSaveAt(ts=ts, fn=lambda t, y, args: problem.frame(y))
    solution = diffrax.diffeqsolve(
        problem.term,
        problem.solver,
        carry.t,
        end,
        first,
        carry.state,
        saveat=diffrax.SaveAt(subs=(frames, diffrax.SubSaveAt(t1=True)), solver_state=True, controller_state=True, made_jump=True),
        stepsize_controller=problem.controller,
        solver_state=carry.solver,
        controller_state=carry.control,
        made_jump=carry.jumped,
        event=problem.event,
        max_steps=max_steps,
        throw=False,
    )
    (saved_ts, (now,)), (saved, last) = solution.ts, solution.ys  # pyright: ignore[reportGeneralTypeIssues]
    state = jax.tree.map(lambda y: y[0], last)
    velocity = problem.field.at(problem.measure.with_state(state), now, problem.sums)
    left = jnp.array(False) if problem.room is None else (solution.result == diffrax.RESULTS.event_occurred) & problem.left(state)
    outcome = Outcome(
        saved_ts,
        solution.result == diffrax.RESULTS.successful,
        left,
        (solution.result == diffrax.RESULTS.event_occurred) & ~left,
        solution.result == diffrax.RESULTS.max_steps_reached,
        jnp.isfinite(largest(state)),
        solution.stats["num_accepted_steps"],
        solution.stats["num_rejected_steps"],
        getattr(velocity, "report", {}),
    )
    jumped = None if jumps is None else jnp.asarray(solution.made_jump)
    return _strong(Carry(now, state, solution.solver_state, solution.controller_state, jumped)), saved, outcome


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
