"""How a run ended: what its last segment says, whether it stopped just short of a blow-up, and whether a grid could carry it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from attnflow._types import FieldLike
from attnflow.flow.path import BLOW_UP, REACHED, UNRESOLVED, Status
from attnflow.flow.steps.problem import Problem
from attnflow.flow.steps.segment import Carry, Outcome, figures_of, segment
from attnflow.flow.steps.times import Times, widest
from attnflow.measures import FlowingMeasure
from attnflow.numerics.arrays import array

# The error of a time by the tolerance of the steps, relative to the time since t0. A blow-up is looked for so many errors beyond t1, if the
# state changes by this part within one.
_ERROR, _AHEAD, _PART = 10.0, 2.0, 0.01


def verdict(problem: Problem, span: Times, carry: Carry, t: float, last: dict[str, Any], ts: np.ndarray, max_steps: int) -> Status:
    """The status of a run whose last segment has the figures `last` and ended at time t, with frames at `ts`."""
    code = last["code"]
    if code == REACHED:
        blown = _soon(problem, span, carry, last, max_steps)
        return Status(REACHED, float(span.t1)) if blown is None else Status(BLOW_UP, blown, _within(problem, blown - float(span.t0)))
    if not last["finite"]:
        return Status(code, float(ts[-1] if len(ts) else span.t0))
    return Status(code, t, 0.0 if code == UNRESOLVED else _within(problem, t - float(span.t0)))


def traced_verdict(problem: Problem, span: Times, outcome: Outcome) -> Status:
    """The status inside a compiled program, where a blow-up just after t1 is not looked for."""
    time = jnp.sum(outcome.time)
    code = jnp.where(too_sharp(problem.measure, outcome.report), UNRESOLVED, outcome.code)
    within = jnp.where(code == REACHED, 0, _within(problem, time))
    return Status(code.astype(jnp.int32), jnp.where(code == REACHED, span.t1, span.t0 + time), within)


def _within(problem: Problem, time: Any) -> Any:
    """The error of a time since t0 that was found by steps; 0 for fixed ones, whose error is not known."""
    if problem.rtol is None:
        return 0.0 * time
    rtol = problem.rtol if isinstance(time, jax.Array) else float(problem.rtol)
    return _ERROR * rtol * time


def _soon(problem: Problem, span: Times, carry: Carry, last: dict[str, Any], max_steps: int) -> float | None:
    """The time of a blow-up so soon after t1 that the tolerance cannot tell it from t1, where the state has no right digits.

    Looked for where the state changes much within the error of the time, by the same compiled segment: a fast motion that goes on is none.
    """
    if problem.rtol is None or problem.noise is not None or problem.measure.bounded:
        return None
    error = _within(problem, float(span.t1) - float(span.t0))
    if last["speed"] * error < _PART:
        return None
    length = array(_AHEAD * error, problem.measure.dtype)
    ts = array(np.full(last["room"], np.asarray(length)))
    _, _, outcome = segment(problem, carry, widest(span.t1), ts, length, max_steps)
    ahead = figures_of(outcome)
    return float(span.t1) + ahead["time"] if ahead["code"] == BLOW_UP and not ahead["left"] else None


def check_finite(field: FieldLike, rate: Array) -> None:
    """Raise if the velocity at the start is not finite, and say what helps."""
    if np.isfinite(np.asarray(rate)):
        return
    normalize = getattr(field, "normalize", None)
    name = type(field).__name__ + ("" if normalize is None else f" with {type(normalize).__name__}")
    cure = "look at field.at(mu, t0) on the tokens"
    if any(hasattr(part, "log_scale") for part in jax.tree.leaves(field, is_leaf=lambda part: hasattr(part, "log_scale"))):
        cure = "an unnormalized law with large logits needs Unnormalized(log_scale=...)"
    raise ValueError(f"the velocity at t0 must be finite, got {float(rate)} for {name}; {cure}")


def check_resolved(mu: FlowingMeasure, report: PyTree) -> None:
    """Raise if a kernel is narrower than the cells of a grid, by the sharpness that the velocity reports."""
    sharpness = max((float(np.max(np.asarray(found))) for found in _sharpness(report)), default=0.0)
    if sharpness > 0:
        # A law that just fits when it is made must not fail by round-off.
        mu.check_resolution(sharpness * (1 - 1e-6))


def resolved(mu: FlowingMeasure, report: PyTree) -> bool:
    """Whether the cells are fine enough."""
    try:
        check_resolved(mu, report)
    except ValueError:
        return False
    return True


def too_sharp(mu: FlowingMeasure, report: PyTree) -> Array:
    """The same inside a compiled program: whether a kernel is narrower than the cells."""
    found = _sharpness(report)
    if not found:
        return jnp.array(False)
    return jnp.max(jnp.stack([jnp.max(sharpness) for sharpness in found])) * (1 - 1e-6) > mu.sharpest


def _sharpness(report: PyTree) -> list[Any]:
    """Every sharpness in a nested report."""
    if not isinstance(report, dict):
        return []
    here = [report["sharpness"]] if "sharpness" in report else []
    return here + [found for part in report.values() for found in _sharpness(part)]
