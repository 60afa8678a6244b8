"""How a run ended: what its last segment says, whether it stopped just short of a blow-up, and whether a grid could carry it."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attnflow.flow.path import Kind, Status
from attnflow.flow.steps.segment import Carry, Problem, segment
from attnflow.flow.steps.times import Times, widest
from attnflow.flow.storage.record import figures_of
from attnflow.measures import FlowingMeasure
from attnflow.numerics.arrays import array

# The error of a time by the tolerance of the steps, relative to the time since t0. A blow-up is looked for so many errors beyond t1, if the
# state changes by this part within one.
_ERROR, _AHEAD, _PART = 10.0, 2.0, 0.01


def verdict(problem: Problem, span: Times, carry: Carry, t: float, last: dict[str, Any], ts: np.ndarray, max_steps: int) -> Status:
    """The status of a run whose last segment has the figures `last` and ended at time t, with frames at `ts`."""
    if last.get("unresolved"):
        return Status("unresolved", t)
    lost: Kind = "stalled" if problem.measure.bounded else "blow-up"
    if not last["finite"]:
        return Status(lost, float(ts[-1] if len(ts) else span.t0))
    if last["reached"]:
        blown = _soon(problem, span, carry, last, max_steps)
        return Status("reached", float(span.t1)) if blown is None else Status("blow-up", blown, _within(problem, span, blown))
    if last["stopped"]:
        kind: Kind = getattr(problem.until, "kind", "stopped")
    elif last["out_of_steps"]:
        kind = "budget"
    else:
        kind = lost if _explodes(problem, last) else "stalled"
    return Status(kind, t, _within(problem, span, t))


def _within(problem: Problem, span: Times, t: float) -> float:
    """The error of a time that was found by steps; 0 for fixed ones, whose error is not known."""
    return 0.0 if problem.rtol is None else _ERROR * float(problem.rtol) * (t - float(span.t0))


def _explodes(problem: Problem, last: dict[str, Any]) -> bool:
    """Whether the steps ended as they do at a blow-up: there they shrink like the time in which the state doubles, so that the state still
    changes by some part in each of them. At a jump or a stiff spot it does not."""
    return not last["pace"] < 4 * float(jnp.finfo(problem.measure.dtype).eps) ** 0.5


def _soon(problem: Problem, span: Times, carry: Carry, last: dict[str, Any], max_steps: int) -> float | None:
    """The time of a blow-up so soon after t1 that the tolerance cannot tell it from t1, where the state has no right digits.

    Looked for where the state changes much within the error of the time, by the same compiled segment: a fast motion that goes on is none.
    """
    if problem.rtol is None or problem.noise is not None or problem.measure.bounded:
        return None
    error = _within(problem, span, float(span.t1))
    if last["speed"] * error < _PART:
        return None
    length = array(_AHEAD * error, problem.measure.dtype)
    ts = array(np.full(last["room"], np.asarray(length)))
    _, _, outcome = segment(problem, carry, widest(span.t1), ts, length, max_steps)
    ahead = figures_of(outcome)
    failed = not (ahead["reached"] or ahead["stopped"] or ahead["left"] or ahead["out_of_steps"])
    return float(span.t1) + ahead["time"] if failed and _explodes(problem, ahead) else None


def check_resolved(mu: FlowingMeasure, report: Any) -> None:
    """Raise if a kernel is narrower than the cells of a grid, by the sharpness that the velocity reports."""
    sharpness = max((float(np.max(np.asarray(found))) for found in _sharpness(report)), default=0.0)
    if sharpness > 0:
        # A law that just fits when it is made must not fail by round-off.
        mu.check_resolution(sharpness * (1 - 1e-6))


def resolved(mu: FlowingMeasure, report: Any) -> bool:
    """Whether the cells are fine enough."""
    try:
        check_resolved(mu, report)
    except ValueError:
        return False
    return True


def too_sharp(mu: FlowingMeasure, report: Any) -> Array:
    """The same inside a compiled program: whether a kernel is narrower than the cells."""
    found = _sharpness(report)
    if not found:
        return jnp.array(False)
    return jnp.max(jnp.stack([jnp.max(sharpness) for sharpness in found])) * (1 - 1e-6) > mu.sharpest


def _sharpness(report: Any) -> list[Any]:
    """Every sharpness in a nested report."""
    if not isinstance(report, dict):
        return []
    here = [report["sharpness"]] if "sharpness" in report else []
    return here + [found for part in report.values() for found in _sharpness(part)]
