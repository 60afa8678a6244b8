"""Planning the sums of a field before they are compiled."""

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import PyTree

from attnflow import _check as check
from attnflow._types import FieldLike, Scalar
from attnflow.flow.path import BLOW_UP, STALLED
from attnflow.flow.steps.problem import Problem, extent
from attnflow.measures import FlowingMeasure, velocity_of
from attnflow.measures.field import check_at
from attnflow.sums import Request, merged, request


def plan(field: FieldLike, mu: FlowingMeasure, sums: Request | None = None, *, t: Scalar = 0.0) -> Request | None:
    """The engine for the sums of `field` on clouds like `mu`, to be passed as `sums` where values are traced, as in `jit` and `grad`.

    `Spectral(tolerance)` becomes a plan, made from the values of the tokens and checked against exact sums of sampled rows; `None` becomes
    whatever is expected to be fastest. A plan serves clouds of up to about 1.2 times the extent; beyond that its sums are NaN.
    """
    check.field("field", field)
    check_at(mu, t, sums)
    if not request(sums).by_value(mu.dim, mu.pairs):
        # Nothing to plan; a field that does not fit the measure is refused all the same.
        eqx.filter_eval_shape(velocity_of, field, mu, jnp.asarray(t, mu.dtype), sums)
        return sums
    return merged(velocity_of(field, mu, jnp.asarray(t, mu.dtype), sums).engines)


def planned(problem: Problem, state: PyTree, t: float, sums: Request | None) -> Problem:
    """The problem with its sums planned for a state, and the room that gives it; `sums` is what the user asked for.

    Only an engine that is made from values is asked for here, on the host; others follow from sizes, while the run is compiled.
    """
    mu = problem.measure.with_state(state)
    asked = request(sums)
    if not asked.by_value(mu.dim, mu.pairs):
        return with_sums(problem, None if sums is None else sums.decided())
    # Where they do not stay on a sphere, tokens leave a circle in their first step, beyond the tolerance of its series.
    asked, time = asked.for_motion() if mu.space.radius is None else asked, jnp.asarray(t, mu.dtype)
    engine = merged(velocity_of(problem.field, mu, time, asked).engines)
    # On a compact space nothing leaves. A step may overshoot a little.
    roomy = engine is not None and engine.planned and mu.space.flat
    fill = max((f["fill"] for f in sums_figures(velocity_of(problem.field, mu, time, engine).report)), default=0.0) if roomy else 0.0
    return dataclasses.replace(problem, sums=engine, room=0.95 / fill * extent(state) if fill > 0 else None)


def outgrown(problem: Problem, figures: dict[str, Any]) -> bool:
    """Whether a plan, by the figures of the last segment, should be made anew: it ran full, missed its tolerance, or stopped."""
    engine = problem.sums
    if engine is None or not getattr(engine, "planned", False) or not figures["finite"]:
        return False
    stuck = figures["code"] in (BLOW_UP, STALLED)
    return (
        figures["left"] or stuck or any(f["fill"] > 0.98 or not f["error"] <= engine.tolerance for f in sums_figures(figures["report"]))  # pyright: ignore
    )


def sums_figures(report: PyTree) -> list[dict[str, Any]]:
    """The figures of all sums in a nested report."""
    if not isinstance(report, dict):
        return []
    here = [report["sums"]] if "sums" in report else []
    return here + [found for name, part in report.items() if name != "sums" for found in sums_figures(part)]


def with_sums(problem: Problem, sums: Request | None) -> Problem:
    """The problem on another engine."""
    return dataclasses.replace(problem, sums=sums, room=None)


def at_state(problem: Problem, state: PyTree) -> Problem:
    """The problem as if it began at this state."""
    return dataclasses.replace(problem, measure=problem.measure.with_state(state))
