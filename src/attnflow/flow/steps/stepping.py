"""A stepper that stays on the space, and a controller that remembers its step from segment to segment."""

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from attnflow.flow.steps.clock import Clock


class Retracted(diffrax.AbstractWrappedSolver):
    """A diffrax solver whose every step ends with `retract`, such as the retraction to the sphere.

    The correction is of the size of the local error, so the order of the wrapped solver is kept.
    """

    solver: diffrax.AbstractSolver
    retract: Callable

    @property
    def term_structure(self):
        return self.solver.term_structure

    @property
    def interpolation_cls(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.solver.interpolation_cls

    @property
    def term_compatible_contr_kwargs(self):
        return self.solver.term_compatible_contr_kwargs

    def order(self, terms):
        return self.solver.order(terms)

    def strong_order(self, terms):
        return self.solver.strong_order(terms)

    def error_order(self, terms):
        return self.solver.error_order(terms)

    def init(self, terms, t0, t1, y0, args):
        return self.solver.init(terms, t0, t1, y0, args)

    def func(self, terms, t0, y0, args):
        return self.solver.func(terms, t0, y0, args)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        y1, error, dense_info, solver_state, result = self.solver.step(terms, t0, t1, y0, args, solver_state, made_jump)
        return self.retract(y1), error, dense_info, solver_state, result


class Carried(diffrax.AbstractStepSizeController):
    """A controller that keeps, beside its own state, the step it would take next, and that does not step across jumps of the velocity.

    The last step of a segment is cut to end on time, a step before a jump to end just before it. What would have followed without the cut
    is kept, so that the run goes on at full stride.
    """

    controller: diffrax.AbstractStepSizeController
    jumps: Array | None

    def wrap(self, direction):
        return eqx.tree_at(lambda c: c.controller, self, self.controller.wrap(direction))

    def seen(self, clock: Clock) -> "Carried":
        """The controller with its jumps in the local time of a clock."""
        return self if self.jumps is None else Carried(self.controller, clock.local_jumps)

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        end, state = self.controller.init(terms, t0, t1, y0, dt0, args, func, error_order)
        return self.before_jump(t0, end), (state, end - t0)

    def adapt_step_size(self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state):
        inner, planned = controller_state
        keep, next_t0, next_t1, _, inner, result = self.controller.adapt_step_size(
            t0, t1, y0, y1_candidate, args, y_error, error_order, inner
        )
        proposed = next_t1 - next_t0
        was_cut = keep & (t1 - t0 < 0.999 * planned)
        planned = jnp.where(was_cut, jnp.maximum(proposed, planned), proposed)
        jumped = False
        if self.jumps is not None:
            # A step that ended just before a jump is followed by one from the jump on.
            after = _above(next_t0)
            jumped = jnp.any(after == self.jumps)
            next_t0 = jnp.where(jumped, after, next_t0)
            next_t1 = self.before_jump(next_t0, next_t0 + jnp.where(jumped, planned, proposed))
        return keep, next_t0, next_t1, jumped, (inner, planned), result

    def before_jump(self, t: Any, end: Any) -> Any:
        """`end`, or the last number before the first jump after t if that comes earlier."""
        if self.jumps is None:
            return end
        return jnp.minimum(end, _below(jnp.min(jnp.where(self.jumps > t, self.jumps, jnp.inf))))


def _above(t: Any) -> Array:
    return jnp.nextafter(t, jnp.full_like(t, jnp.inf))


def _below(t: Any) -> Array:
    return jnp.nextafter(t, jnp.full_like(t, -jnp.inf))


class FixedStep(diffrax.AbstractStepSizeController):
    """Every step of one size, but for those cut to end a segment on time."""

    size: Array

    def wrap(self, direction):
        return self

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        return t0 + self.size, ()

    def adapt_step_size(self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state):
        return jnp.array(True), t1, t1 + self.size, False, (), diffrax.RESULTS.successful


def controller(rtol: Array, atol: Array, step: Array | None, norm: Callable, jumps: Array | None) -> Carried:
    """Adaptive to the tolerances, or of fixed `step` if that is given."""
    if step is not None:
        return Carried(FixedStep(step), jumps)
    return Carried(diffrax.PIDController(rtol=rtol, atol=atol, norm=norm), jumps)
