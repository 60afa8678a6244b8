"""The one solver: `d(state)/dt = mu.rate(field.at(mu, t))`, for every picture and space.

A Python loop over compiled segments of a few frames each. The state of the diffrax solver and controller is carried across, so a
segment boundary is only a place where a step ends. Segments follow from the arguments, so that a run that was interrupted goes on to the
same numbers. Inside `jit`, `vmap` and `grad` there is one segment and no decision on the host.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from attnflow import _check as check
from attnflow._types import ArrayLike, FieldLike, Key, PathLike, Scalar
from attnflow.flow.observe import split
from attnflow.flow.path import Path
from attnflow.flow.plan import planned, with_sums
from attnflow.flow.report import described, tracker, worst
from attnflow.flow.steps.clock import depends_on_time
from attnflow.flow.steps.loop import loop_kind
from attnflow.flow.steps.problem import Problem, problem_of
from attnflow.flow.steps.segment import Carry, segment, start
from attnflow.flow.steps.stretch import Frames, one_frame, seen, stretch
from attnflow.flow.steps.times import Times, blocks, times, widest, width_of
from attnflow.flow.storage.folder import Store, fingerprint, provenance
from attnflow.flow.storage.record import Record, ending, gather, load_path, path_of
from attnflow.flow.verdict import check_finite, check_resolved, traced_verdict, verdict
from attnflow.measures import FlowingMeasure, Measure, Noise
from attnflow.numerics.arrays import array, known
from attnflow.sums import Engine, Request, check_request

# The step budget in reverse mode, whose memory grows like its square root.
_REVERSE_STEPS = 4096
_ADJOINTS = (diffrax.RecursiveCheckpointAdjoint, diffrax.ForwardMode, diffrax.DirectAdjoint)


def solve(
    field: FieldLike,
    mu: Measure,
    t1: Scalar,
    *,
    t0: Scalar = 0.0,
    save_at: ArrayLike = 100,
    rtol: Scalar | None = None,
    atol: Scalar | None = None,
    solver: diffrax.AbstractSolver | None = None,
    step: Scalar | None = None,
    noise: Scalar | None = None,
    key: Key | None = None,
    max_steps: int = 100_000,
    until: Callable | None = None,
    observe: dict[str, Any] | None = None,
    keep_states: bool = True,
    sums: Request | None = None,
    out: PathLike | None = None,
    adjoint: diffrax.AbstractAdjoint | None = None,
    progress: bool = False,
) -> Path:
    r"""The path of measures from `mu` at `t0` under $\partial_t \mu + \operatorname{div}(\mu\,\Gamma_\mu) = 0$, where `field.at(mu, t)` is
    $\Gamma_\mu$.

    **Arguments:**

    - `field`: a law, a composition of fields, or any `equinox.Module` with `at(mu, t, sums) -> velocity`.
    - `mu`: `Particles` on any space, a `Gaussian`, a `GaussianMixture`, or a `Grid`.
    - `save_at`: the number of frames, equally spaced from `t0` to `t1`, or the increasing times themselves. `t1` is always the last frame.
    - `rtol`, `atol`: tolerances of the adaptive step, for the worst token. By default $10^{-7}$ and $10^{-9}$ in float64, $10^{-4}$ and
      $10^{-6}$ in float32.
    - `solver`: any diffrax ODE solver; by default Tsit5. On the sphere each step is retracted.
    - `step`: a fixed step size instead of the tolerances. A `Grid` has a scheme of its own, whose steps follow from how fast mass leaves
      its cells: it takes no solver and no tolerances, and `step` is the longest of its steps (by default $1/32$ of the span: where next to
      nothing flows, as near the uniform density, a growth rate needs shorter ones).
    - `noise`: $\sigma$ of a Brownian motion of every token:
      $\partial_t \mu + \operatorname{div}(\mu\,\Gamma_\mu) = \frac12 \sigma^2 \Delta\mu$ (McKean and Vlasov). Tokens are moved by Heun's
      method with fixed steps, by default a thousandth of the span, and need a `key`; other pictures need none.
    - `max_steps`: the budget of steps of one segment; `path.stats` says how many segments there were. Inside `jit` and `grad` there is one,
      of at most 4096 steps in reverse mode.
    - `until`: stop early when `until(mu, rate, t)` holds after a step, such as `af.Steady()` or `af.Consensus()`.
    - `observe`: functions of the measure by name, evaluated at every frame: compiled, or on the host if marked `af.OnHost(f)`, with numbers
      or arrays of one shape. `path.observed[name]` has their `ts` and `values`.
    - `keep_states`: whether to keep every frame; if not, only the observables and the last state are kept.
    - `sums`: how kernel sums are evaluated, such as `af.Streamed()`; `None` chooses by size.
    - `out`: a folder that the frames are written to while the run goes on. The same call goes on with a run that was interrupted, to
      bitwise the same numbers. A later `t1` goes on from where the run ended: the frames that are there stay, those asked for after them
      follow, bitwise those of one long run if its segments are the same (one per frame, for states of 64 numbers per frame and more), else
      to the tolerance. A folder with another run is refused. `af.load_path(out)` reads it at any time.
    - `adjoint`: how a run inside `jax.grad`, `jax.jvp`, ... is differentiated, as in diffrax: `diffrax.RecursiveCheckpointAdjoint()`, the
      default, for reverse mode; `diffrax.ForwardMode()` for `jvp` and `jacfwd`; `diffrax.DirectAdjoint()` for both, and for Hessians,
      `jax.jacfwd(jax.grad(f))`. Elsewhere it does nothing.
    - `progress`: draw a progress bar.

    A run that cannot reach `t1` returns what it has: `path.status` says why and when. Inside `jit`, `vmap` and `grad` nothing raises:
    frames that were not reached are infinite, and `path.status.code` says why.
    """
    check.field("field", field)
    mu = check.measure("mu", mu, FlowingMeasure)
    _check(max_steps, keep_states, progress, sums, solver, until, out, adjoint)
    span = times(t0, t1, save_at, mu.dtype)
    compiled, on_host = split(observe)
    moved_by = _noise(noise, key, mu)
    length = span.length if out is None else Store(out).length(span.length)
    problem = problem_of(
        field,
        mu,
        length,
        rtol=rtol,
        atol=atol,
        solver=solver,
        step=mu.default_step(moved_by, length) if step is None else step,
        sums=sums,
        observe=compiled,
        until=until,
        # What is observed on the host is observed on states.
        keep_states=keep_states or bool(on_host),
        noise=moved_by,
    )
    if known(problem, span):
        problem = planned(problem, mu.state, float(span.t0), sums)
        _warn_of_late_times(problem, span)
    with check.plainly():
        carry, rate, report, engines = start(problem, widest(span.t0))
    if not known(problem, carry, span):
        if on_host or until is not None or out is not None:
            raise ValueError("inside jit and grad solve has no host observables, no until and no out; call it outside")
        return _solve_traced(problem, carry, span, max_steps, diffrax.RecursiveCheckpointAdjoint() if adjoint is None else adjoint)
    check_resolved(mu, report)
    check_finite(field, rate)
    run = _Run(span, max_steps, sums, on_host, keep_states)
    return _solve_known(problem, carry, engines, report, run, out, progress)


class _Run(NamedTuple):
    """What the loop over segments is told beside the problem."""

    span: Times
    max_steps: int
    sums: Request | None
    on_host: dict[str, Callable]
    keep_states: bool


def _solve_known(
    problem: Problem, carry: Carry, engines: tuple[Engine, ...], report: PyTree, run: _Run, out: PathLike | None, progress: bool
) -> Path:
    """Segment after segment, from the start or from where the folder ends; a run that is done there is read."""
    span, sums, mu, t = run.span, run.sums, problem.measure, float(run.span.t0)
    step = None if problem.step is None else float(problem.step)
    width = width_of(span, sum(leaf.size for leaf in jax.tree.leaves(mu.state)), step)
    store = None
    if out is not None:
        store = _store(out, with_sums(problem, sums), engines, run, width)
        if _done(store, span):
            return load_path(out)
        width = store.header()["width"]
    record = Record(mu, store)
    if store is not None and record.blocks:
        carry, t = store.carry(carry), record.figures[-1]["end"]
        problem = planned(problem, carry.state, t, sums)
    with tracker(progress, t, float(span.t1)) as advance:
        for block in blocks(span, width, step, t):
            if record.ended:
                break
            first = [one_frame(problem, t, mu.state)] if span.first and not record.blocks else []
            problem, carry, t, frames, figures = stretch(problem, carry, t, float(span.t0), block, run.max_steps, sums)
            frames = jax.tree.map(lambda *leaves: np.concatenate(leaves), *first, frames)
            record.add(seen(frames, run.on_host, mu, run.keep_states), figures, t, carry)
            advance(t)
    frames, last = gather(record.blocks), record.figures[-1]
    # What was planned, or what the sums of the compiled run were fitted to.
    used = engines if problem.sums is None or problem.sums is sums else (problem.sums,)
    status = verdict(problem, span, carry, t, last, frames.ts, run.max_steps)
    stats = _stats(problem, used, report, record.figures)
    if store is not None:
        store.finish(ending(status, stats) | {"t1": float(span.t1), "asked": fingerprint(span)})
    return path_of(frames, carry.state, t, status, stats, mu)


def _solve_traced(problem: Problem, carry: Carry, span: Times, max_steps: int, adjoint: diffrax.AbstractAdjoint) -> Path:
    """The whole run as one segment, for `jit`, `vmap` and derivatives."""
    since, dtype = span.since(problem.measure.dtype), problem.measure.dtype
    problem = _differentiated(problem, adjoint)
    most = max_steps if isinstance(adjoint, diffrax.ForwardMode) else min(max_steps, _REVERSE_STEPS)
    after, saved, outcome = segment(problem, carry, since.start, since.frames, since.length, most, adjoint)
    if span.first:
        first = jax.tree.map(lambda leaf: leaf[None], problem.frame(problem.measure.state))
        saved = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), first, saved)
    # Frames that were not reached are infinite; fixed steps may run on into NaN.
    saved = jax.tree.map(lambda leaf: jnp.where(jnp.isnan(leaf), jnp.inf, leaf), saved)
    status = traced_verdict(problem, span, outcome)
    stats = {"solver": type(problem.solver.solver).__name__, "accepted_steps": outcome.accepted, "rejected_steps": outcome.rejected}
    return path_of(Frames(array(span.ts, dtype), *saved), after.state, status.time, status, stats | outcome.report, problem.measure)


def _differentiated(problem: Problem, adjoint: diffrax.AbstractAdjoint) -> Problem:
    """The problem with the loop over stages inside a step of diffrax's solver differentiated like the loop over steps."""
    if getattr(problem.solver.solver, "scan_kind", "none") is not None:
        return problem
    return eqx.tree_at(lambda p: p.solver.solver.scan_kind, problem, loop_kind(adjoint)[0], is_leaf=lambda leaf: leaf is None)


def _check(
    max_steps: int,
    keep_states: bool,
    progress: bool,
    sums: Request | None,
    solver: diffrax.AbstractSolver | None,
    until: Callable | None,
    out: PathLike | None,
    adjoint: diffrax.AbstractAdjoint | None,
) -> None:
    """Raise unless these options of `solve` are of the right kinds."""
    check.count("max_steps", max_steps)
    check.flag("keep_states", keep_states)
    check.flag("progress", progress)
    check_request(sums)
    if solver is not None:
        check.instance("solver", solver, diffrax.AbstractSolver, "a solver of diffrax such as diffrax.Tsit5()")
    if adjoint is not None:
        due = "diffrax.RecursiveCheckpointAdjoint(), diffrax.ForwardMode() or diffrax.DirectAdjoint()"
        check.instance("adjoint", adjoint, _ADJOINTS, due)
    if until is not None:
        check.function("until", until, "a condition (mu, rate, t) -> bool such as af.Steady()")
    if out is not None:
        check.folder("out", out)


def _noise(sigma: Scalar | None, key: Key | None, mu: FlowingMeasure) -> Noise | None:
    """The noise of a run, `None` for none."""
    if sigma is None and key is not None:
        raise ValueError("key is for noise, got a key and no noise=sigma")
    return None if sigma is None else mu.noise(sigma, key=key)


def _warn_of_late_times(problem: Problem, span: Times) -> None:
    """Warn if the velocity depends on a time that the precision of the state does not resolve."""
    dtype, t = problem.measure.dtype, max(abs(float(span.t0)), abs(float(span.t1)))
    if float(jnp.finfo(dtype).eps) * t <= 1e-3 * span.length:
        return
    if depends_on_time(problem.rate, array(span.t0, dtype), problem.measure.state):
        check.warn(
            f"the field depends on time, and {dtype} tells times near {t:.6g} apart only to {float(jnp.spacing(array(t, dtype))):.2g}; "
            "shift the time of the field, or use double precision"
        )


def _store(out: PathLike, problem: Problem, engines: tuple[Engine, ...], run: _Run, width: float) -> Store:
    """The folder of the run. Its fingerprint knows neither t1 nor the frames: those may change while a run goes on."""
    # The engine as settled on this machine: a run begun on one must not go on with another.
    used = problem.sums if any(engine.planned for engine in engines) else described(engines).get("engine")
    span, names = run.span, sorted([*problem.observe, *run.on_host])
    about = provenance(
        field=problem.field,
        measure=problem.measure,
        t0=span.t0,
        t1=span.t1,
        frames=len(span.frames) + span.first,
        solver=problem.solver.solver,
        controller=problem.controller.controller,
        sums=used,
        until=problem.until,
        noise=problem.noise,
        observe=names,
        max_steps=run.max_steps,
    )
    mark = fingerprint((problem, span.t0, run.max_steps, used, names, run.keep_states))
    return Store.open(out, mark, about, width=width, length=span.length)


def _done(store: Store, span: Times) -> bool:
    """Whether the run in a folder has come to its end, as it was asked for now; one that ended at an earlier t1 goes on."""
    ended = store.status()
    if ended is None or ended.get("asked") == fingerprint(span):
        return ended is not None
    if float(span.t1) <= ended["t1"]:
        raise ValueError(
            f"{str(store.folder)!r} holds this run to t1 = {ended['t1']:.6g} with other frames; give a later t1, or use af.load_path"
        )
    if ended["kind"] != "reached":
        return True
    store.go_on()
    return False


def _stats(problem: Problem, engines: tuple[Any, ...], first: PyTree, figures: list[dict[str, Any]]) -> dict[str, Any]:
    """What the solver did, with the worst convergence figures met at the start and at the ends of segments."""
    stats: dict[str, Any] = {
        "solver": type(problem.solver.solver).__name__,
        "accepted_steps": sum(f["accepted"] for f in figures),
        "rejected_steps": sum(f["rejected"] for f in figures),
        "segments": len(figures),
    }
    return stats | described(engines) | worst([first, *(f["report"] for f in figures)])
