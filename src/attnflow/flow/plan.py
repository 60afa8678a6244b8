"""Planning the sums of a field before they are compiled."""

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from attnflow import _check as check
from attnflow.attention.field import check_at
from attnflow.flow.segment import Problem, extent
from attnflow.measures import FlowingMeasure, Particles
from attnflow.spaces import Euclidean
from attnflow.sums import Atoms, Engine, Logit, Spectral, Transform, automatic, choose, fill_of, merged
from attnflow.sums.choose import SPECTRAL_PAIRS
from attnflow.sums.mask import Sight


def plan(field: Any, mu: FlowingMeasure, sums: Engine | None = None, t: Any = 0.0) -> Engine | None:
    """The engine for the sums of `field` on clouds like `mu`, to be passed as `sums` where values are traced, as in `jit` and `grad`.

    `Spectral(tolerance)` becomes a plan, made from the values of the tokens and checked against exact sums of sampled rows; `None` becomes
    whatever is expected to be fastest. A plan serves clouds of up to about 1.2 times the extent; beyond that its sums are NaN.
    """
    check.field("field", field)
    check_at(mu, t, sums)
    return _plan(field, mu, sums, t)[0]


def _plan(field: Any, mu: FlowingMeasure, sums: Engine | None, t: Any, stays: bool = True) -> tuple[Engine | None, float]:
    """The engine, and how much the cloud fills of its plan; `stays` if tokens on a circle do not leave it."""
    if not isinstance(mu, Particles) or not (sums is None or isinstance(sums, Spectral)):
        return sums, 0.0
    if sums is None and (len(mu.points) ** 2 < SPECTRAL_PAIRS or mu.dim > 3):
        return None, 0.0
    recorder = Recorder(sums, stays, [], [])
    mu.rate(field.at(mu, jnp.asarray(t, mu.dtype), recorder))
    return merged(recorder.found), max(recorder.fills, default=0.0)


def planned(problem: Problem, state: PyTree, t: Any, sums: Engine | None) -> Problem:
    """The problem with its sums planned for a state, and the room that gives it; `sums` is what the user asked for."""
    mu = problem.measure.with_state(state)
    # In the plane tokens leave a circle in their first step, beyond the tolerance of its series.
    engine, fill = _plan(problem.field, mu, sums, t, stays=not isinstance(mu.space, Euclidean))
    # On a compact space nothing leaves. A step may overshoot a little.
    roomy = isinstance(engine, Transform) and fill > 0 and isinstance(mu.space, Euclidean)
    return dataclasses.replace(problem, sums=engine, room=0.95 / fill * extent(state) if roomy else None)


def outgrown(problem: Problem, figures: dict[str, Any]) -> bool:
    """Whether a spectral plan, by the figures of the last segment, should be made anew: it ran full, missed its tolerance, or stopped."""
    if not isinstance(problem.sums, Transform) or not figures["finite"]:
        return False
    stuck = not (figures["reached"] or figures["stopped"] or figures["out_of_steps"])
    return (
        figures["left"]
        or stuck
        or any(f["fill"] > 0.98 or not f["error"] <= problem.sums.tolerance for f in _sums_figures(figures["report"]))
    )


def _sums_figures(report: Any) -> list[dict[str, float]]:
    """The figures of all sums in a nested report."""
    if not isinstance(report, dict):
        return []
    here = [report["sums"]] if "sums" in report else []
    return here + [found for name, part in report.items() if name != "sums" for found in _sums_figures(part)]


def with_sums(problem: Problem, sums: Engine | None) -> Problem:
    """The problem on another engine."""
    return dataclasses.replace(problem, sums=sums, room=None)


def at_state(problem: Problem, state: PyTree) -> Problem:
    """The problem as if it began at this state."""
    return dataclasses.replace(problem, measure=problem.measure.with_state(state))


class Recorder(Engine):
    """Stands for an engine while a field is evaluated once, and remembers what each of its sums would run on. Only spectral sums are
    evaluated: the values of the others cost much and are not needed."""

    request: Engine | None
    stays: bool = eqx.field(static=True)
    found: list[Engine] = eqx.field(static=True)
    fills: list[float] = eqx.field(static=True)

    def fit(self, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, sight: Sight | None = None) -> Engine:
        if isinstance(self.request, Spectral):
            engine = self.request.fit(logit, x, atoms, sight, self.stays)
        else:
            engine = automatic(logit, x, atoms, sight, self.stays) if self.request is None else self.request.fit(logit, x, atoms, sight)
        self.found.append(engine)
        if not isinstance(engine, Transform):
            return Nothing()
        self.fills.append(fill_of(engine, logit, x, atoms))
        return engine

    def softmax(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError("sums in a loop must be fitted before it")

    def over(self, queries: int, keys: int) -> Engine:
        self.found.append(choose(queries, keys, self.request))
        return Nothing()

    def pointwise(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError("an engine is asked for before a sum")

    def largest(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError("an engine is asked for before a sum")


class Nothing(Engine):
    """Sums that are zero."""

    def softmax(self, q: Array, k: Array, b: Array, sight: Sight | None = None, with_mean: bool = True) -> tuple[Array, Array | None]:
        return jnp.zeros_like(q[:, 0]), jnp.zeros_like(q) if with_mean else None

    def pointwise(self, kernel: Any, q: Array, k: Array, b: Array, w: Array, v: Array, *rest: Any) -> Array:
        return jnp.zeros((len(q), v.shape[1]), q.dtype)

    def largest(self, q: Array, *rest: Any) -> Array:
        return jnp.zeros_like(q[:, 0])
