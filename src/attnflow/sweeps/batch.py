"""A batch of members of a sweep, the unit of work: data in, arrays out; the ways of stepping it, and which one is taken."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from attnflow._types import FieldLike, Observable
from attnflow.attention.law import Attention
from attnflow.attention.normalizations.softmax import Softmax
from attnflow.attention.normalizations.unnormalized import Unnormalized
from attnflow.flow.steps.problem import problem_of
from attnflow.flow.steps.segment import segment, start
from attnflow.flow.steps.times import Since
from attnflow.flow.verdict import too_sharp
from attnflow.measures import FlowingMeasure, Particles
from attnflow.numerics.arrays import cast
from attnflow.numerics.linalg import one_by_one
from attnflow.numerics.special import cos_sin
from attnflow.sums import native
from attnflow.sweeps.members import Batch
from attnflow.sweeps.stepper import FAILED, REACHED, STOPPED, Ends, System, march

Way = Literal["circle", "any", "in turn"]

# Sums over tokens are written out on the circle: beyond this many, compilation takes longer than what is gained.
_WRITTEN_OUT = 64


@dataclasses.dataclass(frozen=True)
class Plan:
    """What does not change from batch to batch and is fixed when a batch is compiled. `make` and the observables are functions; `native`
    says whether sums on the circle run in the native kernel."""

    make: Callable[..., Any]
    observe: tuple[tuple[str, Observable], ...]
    way: Way
    max_steps: int
    native: bool

    def observed(self, mu: FlowingMeasure) -> dict[str, Array]:
        """The observables of one measure, as real numbers in its precision unless they have one of their own."""
        values = {name: jnp.asarray(f(mu)) for name, f in self.observe}
        return {name: a if jnp.issubdtype(a.dtype, jnp.floating) else a.astype(mu.dtype) for name, a in values.items()}


class Numbers(NamedTuple):
    """What may change without compiling again; `step` is fixed if it is given."""

    span: Since
    rtol: Float[Array, ""]
    atol: Float[Array, ""]
    step: Float[Array, ""] | None
    until: Callable[..., Any] | None


def way_of(field: FieldLike, mu: FlowingMeasure, fixed: bool) -> Way:
    """How a batch is stepped, by the structure of one member and whether its step is fixed.

    Softmax and unnormalized laws of few tokens on the circle have the stepper of `stepper.py`, three times as fast on many tokens of few
    coordinates. All else goes through the stepper of `solve`, vectorized: in three dimensions and more its matrix products are as fast.
    Pictures without atoms factor matrices, so their members are stepped in turn (see `one_by_one`).
    """
    if not mu.by_atoms:
        return "in turn"
    if not isinstance(mu, Particles) or mu.space.radius != 1 or mu.dim != 2 or len(mu.points) > _WRITTEN_OUT:
        return "any"
    if fixed or not isinstance(field, Attention) or field.mask is not None:
        return "any"
    if field.logit.positional or field.inner is not None:
        return "any"
    form = field.logit.form
    plain = all(part is None for part in (form.P, form.R, form.p, form.r, form.constant))
    return "circle" if plain and isinstance(field.normalize, Softmax | Unnormalized) else "any"


def run_batch(plan: Plan, numbers: Numbers, batch: Batch) -> dict[str, np.ndarray]:
    """The observables `[member, time, ...]` of the members of a batch, and `status`, `ended` and `steps` of each.

    The result depends on the arguments alone: batches may run in any order, in threads, in processes or on other machines.
    """
    keys = jax.vmap(jax.random.key)(jnp.asarray(batch.seeds))
    values, ends = stepped(plan, numbers, keys, {name: jnp.asarray(a) for name, a in batch.parameters.items()})
    found = {name: np.moveaxis(np.asarray(a), -1, 0) for name, a in values.items()}
    found |= {"status": np.asarray(ends.status, np.int8), "steps": np.asarray(ends.steps)}
    found["ended"] = float(numbers.span.start) + np.asarray(ends.time, np.float64)
    return {name: a[: batch.count] for name, a in found.items()}


@eqx.filter_jit
def stepped(plan: Plan, numbers: Numbers, keys: Key[Array, " b"], parameters: dict[str, Array]) -> tuple[dict[str, Array], Ends]:
    """The observables of every member, `[time, ..., member]`, and how it ended."""
    if plan.way == "circle":
        return _on_circle(plan, numbers, *eqx.filter_vmap(lambda key, values: plan.make(key, **values))(keys, parameters))
    return _by_solve(plan, numbers, keys, parameters)


def _on_circle(plan: Plan, numbers: Numbers, fields: Attention, mus: Particles) -> tuple[dict[str, Array], Ends]:
    """Tokens `(cos a, sin a)`: the angle moves at `a' = <(-sin a, cos a), V m>`, m the average of the law."""
    fields = cast(fields, mus.points.dtype)
    A, V = jnp.moveaxis(fields.logit.form.A, 0, -1), jnp.moveaxis(fields.value, 0, -1)
    log_mass = None if mus.weights is None else jnp.log(mus.weights).T
    scale = fields.normalize.log_scale if isinstance(fields.normalize, Unnormalized) else None

    def sums(c: Array, s: Array) -> tuple[Array, Array, Array, Array]:
        """A reference for the logits of each row, and relative to it the sums of the kernel and of the kernel times the keys."""
        qc, qs = A[0, 0][None] * c + A[0, 1][None] * s, A[1, 0][None] * c + A[1, 1][None] * s
        if plan.native:
            reference, total, (first, second) = native.planar(jnp.stack([qc, qs]), jnp.stack([c, s]), log_mass)
            return reference, total, first, second
        # Written out over the keys, all of it is a few loops over members, and no matrix of pairs is stored.
        logits = [qc * c[j][None] + qs * s[j][None] + (0 if log_mass is None else log_mass[j][None]) for j in range(len(c))]
        largest = functools.reduce(jnp.maximum, logits)
        total = first = second = jnp.zeros_like(c)
        for j, logit in enumerate(logits):
            kernel = jnp.exp(logit - largest)
            total, first, second = total + kernel, first + kernel * c[j][None], second + kernel * s[j][None]
        return largest, total, first, second

    def rate(t: Array, angle: Array) -> Array:
        c, s = cos_sin(angle)
        largest, total, first, second = sums(c, s)
        factor = 1 / total if scale is None else jnp.exp(largest + scale[None]) / (len(c) if log_mass is None else 1)
        first, second = V[0, 0][None] * first + V[0, 1][None] * second, V[1, 0][None] * first + V[1, 1][None] * second
        return (c * second - s * first) * factor

    def points(angle: Array) -> Array:
        return jnp.stack(cos_sin(angle), axis=1)

    def observe(angle: Array) -> PyTree:
        see = eqx.filter_vmap(lambda mu, x: plan.observed(mu.with_state(x)), in_axes=(eqx.if_array(0), -1), out_axes=-1)
        return see(mus, points(angle))

    def over(t: Array, angle: Array, rate: Array) -> Array:
        def one(mu: Particles, x: Array, v: Array, t: Array) -> Array:
            assert numbers.until is not None
            return numbers.until(mu.with_state(x), v, (numbers.span.start + t).astype(x.dtype))

        moving = jnp.stack([-rate * jnp.sin(angle), rate * jnp.cos(angle)], axis=1)
        return eqx.filter_vmap(one, in_axes=(eqx.if_array(0), -1, -1, 0))(mus, points(angle), moving, t)

    angles = jnp.arctan2(mus.points[..., 1], mus.points[..., 0]).T
    system = System(rate, observe, None if numbers.until is None else over, numbers.rtol + numbers.atol)
    return march(system, angles, numbers.span.ts, numbers.span.length, plan.max_steps)


def _by_solve(plan: Plan, numbers: Numbers, keys: Array, parameters: dict[str, Array]) -> tuple[dict[str, Array], Ends]:
    """The stepper of `solve` for every member, side by side or in turn."""
    span = numbers.span
    looks = {name: lambda mu, name=name: plan.observed(mu)[name] for name, _ in plan.observe}

    def one(key: Array, values: dict[str, Array]) -> tuple[dict[str, Array], Ends]:
        # Made in here, as a field may hold functions that know the parameters.
        field, mu = plan.make(key, **values)
        tolerances: dict[str, Any] = {"rtol": numbers.rtol, "atol": numbers.atol} if mu.own_steps(span.length) is None else {}
        problem = problem_of(field, mu, span.length, **tolerances, step=numbers.step, observe=looks, until=numbers.until, keep_states=False)
        carry, _, report, _ = start(problem, span.start)
        coarse = too_sharp(mu, report)
        carry, (_, saved), outcome = segment(problem, carry, span.start, span.frames, span.length, plan.max_steps)
        coarse = coarse | too_sharp(mu, outcome.report)
        stopped, fine = outcome.stopped, (outcome.reached | outcome.stopped) & outcome.finite & ~coarse
        last, missed = problem.frame(carry.state)[1], jnp.arange(len(span.frames)) >= outcome.frames
        saved = {name: _filled(a, last[name], missed, stopped) for name, a in saved.items()}
        if span.first:
            first = problem.frame(mu.state)[1]
            saved = {name: jnp.concatenate([first[name][None], a]) for name, a in saved.items()}
        saved = {name: jnp.where(coarse, jnp.nan, a) for name, a in saved.items()}
        status = jnp.where(fine, jnp.where(stopped, STOPPED, REACHED), FAILED)
        return saved, Ends(status, jnp.sum(outcome.time), outcome.accepted + outcome.rejected)

    saved, ends = (one_by_one if plan.way == "in turn" else jax.vmap)(one)(keys, parameters)
    return jax.tree.map(lambda a: jnp.moveaxis(a, 0, -1), saved), ends


def _filled(values: Array, last: Array, missed: Array, stopped: Array) -> Array:
    """Frames that were not reached: as at the end if the member stopped, otherwise NaN."""
    rest = jnp.where(stopped, last, jnp.nan)
    return jnp.where(missed.reshape(-1, *(1,) * (values.ndim - 1)), rest[None], values)
