"""The differential equation of a run and its stepper, as a compiled segment is given them."""

from collections.abc import Callable

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from attnflow._types import FieldLike, Scalar
from attnflow.flow.observe import value_of
from attnflow.flow.steps.clock import Clock, clock
from attnflow.flow.steps.stepping import Carried, Retracted, controller
from attnflow.measures import FlowingMeasure, Noise, Velocity, velocity_of
from attnflow.numerics.arrays import array, positive
from attnflow.numerics.tolerances import default
from attnflow.sums import Request


class Problem(eqx.Module):
    """The differential equation and its stepper. A compiled segment depends on this and on times; numbers in it are arrays, so that
    changing their values does not compile again. `rtol` is the tolerance of adaptive steps and `step` the size of fixed ones, else `None`;
    `room` are the largest sides of a cloud that the plan of its sums holds."""

    field: FieldLike
    measure: FlowingMeasure
    solver: Retracted
    controller: Carried
    sums: Request | None
    observe: dict[str, Callable]
    until: Callable | None
    noise: Noise | None
    room: Array | None
    rtol: Array | None
    step: Array | None
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


def extent(points: Array) -> Array:
    """The sides of the box around a cloud."""
    return jnp.max(points, axis=0) - jnp.min(points, axis=0)


def fitted(until: Callable | None, rtol: Array, atol: Array) -> Callable | None:
    """The condition `until` for a run with these tolerances, for one such as `Steady` that asks for them."""
    fit = getattr(until, "fitted", None)
    return until if fit is None else fit(rtol, atol)


def problem_of(
    field: FieldLike,
    mu: FlowingMeasure,
    length: Scalar,
    *,
    rtol: Scalar | None = None,
    atol: Scalar | None = None,
    solver: diffrax.AbstractSolver | None = None,
    step: Scalar | None = None,
    sums: Request | None = None,
    observe: dict[str, Callable],
    until: Callable | None = None,
    keep_states: bool = True,
    noise: Noise | None = None,
) -> Problem:
    """The equation and its stepper over a time of this `length`, as the arguments of `solve` say."""
    given = [name for name, value in (("rtol", rtol), ("atol", atol), ("solver", solver)) if value is not None]
    rtol = array(positive("rtol", default("rtol", mu.dtype) if rtol is None else rtol), mu.dtype)
    atol = array(positive("atol", default("atol", mu.dtype) if atol is None else atol), mu.dtype)
    step = None if step is None else array(positive("step", step), mu.dtype)
    jumps = getattr(field, "jumps", None)
    jumps = None if jumps is None else array(jumps, mu.dtype)
    own = mu.own_steps(array(length / 32, mu.dtype) if step is None else step)
    if own is not None and given:
        raise ValueError(f"a {type(mu).__name__} is stepped by its own scheme, got {', '.join(given)}; leave it out, or give step=")
    retracted = Retracted(mu.default_solver(noise) if solver is None else solver, mu.retract)
    steps = controller(rtol, atol, step, mu.error_norm, jumps) if own is None else Carried(own, jumps)
    adaptive = rtol if own is None and step is None else None
    return Problem(field, mu, retracted, steps, sums, observe, fitted(until, rtol, atol), noise, None, adaptive, step, keep_states)
