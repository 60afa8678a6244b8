"""The one solver: `d(state)/dt = mu.rate(field.at(mu, t))`, for every picture and space.

A Python loop over compiled segments of a few frames each. The state of the diffrax solver and controller is carried across, so a
segment boundary is only a place where a step ends. Segments are fixed by the arguments, so that a run that was cut off goes on to the same
numbers. Inside `jit` and `grad` there is one segment and no host decision: the run must reach t1, or it raises.
"""

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from attnflow import _check as check
from attnflow.flow.events import fitted
from attnflow.flow.observe import split
from attnflow.flow.path import Path, Status
from attnflow.flow.plan import at_state, outgrown, planned, with_sums
from attnflow.flow.progress import tracker
from attnflow.flow.report import described, worst
from attnflow.flow.steps.clock import depends_on_time
from attnflow.flow.steps.segment import Carry, Problem, frame, segment, start
from attnflow.flow.steps.stepping import Carried, Retracted, controller, tolerances
from attnflow.flow.steps.times import Block, Times, blocks, times, widest
from attnflow.flow.storage.folder import Store, fingerprint, provenance
from attnflow.flow.storage.record import End, Frames, Record, figures_of, load_path, path_of
from attnflow.flow.verdict import check_resolved, resolved, verdict
from attnflow.measures import FlowingMeasure, Measure, Noise
from attnflow.numerics.arrays import array, known, positive
from attnflow.sums import Engine, Request, check_request

# The step budget while tracing: reverse-mode memory grows like its square root.
_TRACED_STEPS = 4096


def solve(
    field: Any,
    mu: Measure,
    t1: Any,
    t0: Any = 0.0,
    save_at: Any = 100,
    rtol: Any = None,
    atol: Any = None,
    solver: diffrax.AbstractSolver | None = None,
    step: Any = None,
    noise: Any = None,
    key: Any = None,
    max_steps: int = 100_000,
    until: Callable | None = None,
    observe: dict[str, Any] | None = None,
    keep_states: bool = True,
    sums: Request | None = None,
    out: Any = None,
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
      nothing flows, as near the uniform law, a growth rate needs shorter ones).
    - `noise`: $\sigma$ of a Brownian motion of every token:
      $\partial_t \mu + \operatorname{div}(\mu\,\Gamma_\mu) = \frac12 \sigma^2 \Delta\mu$ (McKean and Vlasov). Tokens are moved by Heun's
      method with fixed steps, by default a thousandth of the span, and need a `key`; a law needs none.
    - `max_steps`: the budget of steps of one segment; `path.stats` says how many segments there were. Inside `jit` and `grad` there is one,
      of at most 4096 steps.
    - `until`: stop early when `until(mu, rate, t)` holds after a step, such as `af.Steady()` or `af.Consensus()`.
    - `observe`: functions of the measure by name, compiled and evaluated at every frame; `af.OnHost(f)` is called at the end of every
      segment instead, and gives numbers or arrays of one shape. `path.observed[name]` has their `ts` and `values`.
    - `keep_states`: whether to keep every frame; if not, only the observables and the last state are kept.
    - `sums`: how kernel sums are evaluated, such as `af.Streamed()`; `None` chooses by size.
    - `out`: a folder that the frames are written to while the run goes on. The same call goes on with a run that was cut off, to bitwise
      the same numbers; a folder with another run is refused. `af.load_path(out)` reads it at any time.
    - `progress`: draw a progress bar.

    A run that cannot reach `t1` returns what it has: `path.status` says why and when. Differentiable (reverse mode) in the field and the
    measure.
    """
    check.field("field", field)
    mu = check.measure("mu", mu, FlowingMeasure)
    check.count("max_steps", max_steps)
    check.flag("keep_states", keep_states)
    check.flag("progress", progress)
    check_request(sums)
    if solver is not None:
        check.instance("solver", solver, diffrax.AbstractSolver, "a solver of diffrax such as diffrax.Tsit5()")
    if until is not None:
        check.function("until", until, "a condition (mu, rate, t) -> bool such as af.Steady()")
    if out is not None:
        check.folder("out", out)
    span = times(t0, t1, save_at, mu.dtype)
    compiled, on_host = split(observe)
    shaken = _noise(noise, key, mu)
    step = mu.default_step(shaken, span.length) if step is None else step
    problem = problem_of(field, mu, span.length, rtol, atol, solver, step, sums, compiled, until, keep_states, shaken)
    if known(problem, span):
        problem = planned(problem, mu.state, float(span.t0), sums)
        _warn_of_late_times(problem, span)
    with check.plainly():
        carry, rate, report, engines = start(problem, widest(span.t0))
    if not known(problem, carry, span):
        if on_host or until is not None or out is not None:
            raise ValueError("inside jit and grad solve has no host observables, no until and no out; call it outside")
        return _solve_traced(problem, carry, span, min(max_steps, _TRACED_STEPS))
    check_resolved(mu, report)
    if not np.isfinite(np.asarray(rate)):
        raise ValueError(f"the velocity at t0 must be finite, got {float(rate)} for {_name(field)}{_cure(field)}")
    step = None if step is None else float(step)
    return _solve_known(problem, carry, engines, report, span, max_steps, sums, on_host, out, step, progress)


def _noise(sigma: Any, key: Any, mu: FlowingMeasure) -> Noise | None:
    """The noise of a run, `None` for none."""
    if sigma is None and key is not None:
        raise ValueError("key is for noise, got a key and no noise=sigma")
    return None if sigma is None else mu.noise(sigma, key=key)


def _solve_known(
    problem: Problem,
    carry: Carry,
    engines: tuple[Engine, ...],
    report: Any,
    span: Times,
    max_steps: int,
    sums,
    on_host,
    out: Any,
    step,
    progress,
) -> Path:
    """Segment after segment, from the start or from where the folder ends; a run that is done there is read."""
    mu, t = problem.measure, float(span.t0)
    store = None if out is None else _store(out, with_sums(problem, sums), engines, span, max_steps)
    if store is not None and store.status() is not None:
        return load_path(out)
    record = Record(mu, store)
    if store is not None and record.blocks:
        carry, t = store.carry(carry), record.ends[-1].t
        problem = planned(problem, carry.state, t, sums)
    segments = blocks(span, sum(leaf.size for leaf in jax.tree.leaves(mu.state)), step)
    with tracker(progress, t, float(span.t1)) as advance:
        while len(record.blocks) < len(segments) and not record.ended:
            block = segments[len(record.blocks)]
            problem, carry, t, frames, figures = _stretch(problem, carry, t, block, span, max_steps, sums, first=not record.blocks)
            end = End(t, {name: function(mu.with_state(carry.state)) for name, function in on_host.items()})
            record.add(frames, figures, end, carry.state, carry)
            advance(t)
    frames, last = record.gather(), record.figures[-1]
    # What was planned, or what the sums of the compiled run were fitted to.
    used = engines if problem.sums is None or problem.sums is sums else (problem.sums,)
    status, stats = verdict(problem, span, carry, t, last, frames.ts, max_steps), _stats(problem, used, report, record.figures)
    if store is not None:
        store.finish({"kind": status.kind, "time": status.time, "within": status.within, "stats": stats})
    return path_of(frames, record.on_host(), carry.state, t, status, stats, mu)


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


def _name(field: Any) -> str:
    """A field by its type, a law with its normalization."""
    normalize = getattr(field, "normalize", None)
    return type(field).__name__ + ("" if normalize is None else f" with {type(normalize).__name__}")


def _cure(field: Any) -> str:
    """What helps against a velocity that is not finite."""
    if any(hasattr(part, "log_scale") for part in jax.tree.leaves(field, is_leaf=lambda part: hasattr(part, "log_scale"))):
        return "; an unnormalized law with large logits needs Unnormalized(log_scale=...)"
    return "; look at field.at(mu, t0) on the tokens"


def problem_of(field, mu, length, rtol, atol, solver, step, sums, observe, until, keep_states, noise) -> Problem:
    """The equation and its stepper over a time of this `length`, as the arguments of `solve` say."""
    given = {name: value for name, value in {"rtol": rtol, "atol": atol, "solver": solver}.items() if value is not None}
    defaults = tolerances(mu.dtype)
    rtol = array(positive("rtol", defaults[0] if rtol is None else rtol), mu.dtype)
    atol = array(positive("atol", defaults[1] if atol is None else atol), mu.dtype)
    step = None if step is None else array(positive("step", step), mu.dtype)
    jumps = getattr(field, "jumps", None)
    jumps = None if jumps is None else array(jumps, mu.dtype)
    own = mu.own_steps(array(length / 32, mu.dtype) if step is None else step)
    if own is not None and given:
        raise ValueError(f"a {type(mu).__name__} is stepped by its own scheme, got {', '.join(given)}; leave it out, or give step=")
    retracted = Retracted(mu.default_solver(noise) if solver is None else solver, mu.retract)
    steps = controller(rtol, atol, step, mu.error_norm, jumps) if own is None else Carried(own, jumps)
    adaptive = rtol if own is None and step is None else None
    return Problem(field, mu, retracted, steps, sums, observe, fitted(until, rtol, atol), noise, None, adaptive, keep_states)


def _store(out: Any, problem: Problem, engines: tuple[Engine, ...], span: Times, max_steps: int) -> Store:
    """The folder of the run."""
    # The engine as settled on this machine: a run begun on one must not go on with another.
    used = problem.sums if any(engine.planned for engine in engines) else described(engines).get("engine")
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
        observe=sorted(problem.observe),
        max_steps=max_steps,
    )
    return Store.open(out, fingerprint((problem, span, max_steps, used)), about)


def _solve_traced(problem: Problem, carry: Carry, span: Times, max_steps: int) -> Path:
    """The whole run as one segment, for `jit` and `grad`."""
    since = span.since(problem.measure.dtype)
    after, saved, outcome = segment(problem, carry, since.start, since.frames, since.length, max_steps, differentiable=True)
    saved = eqx.error_if(
        saved,
        ~outcome.reached,
        f"solve blew up or did not reach t1 within {max_steps} steps; outside jit and grad, path.status says which and when",
    )
    ts = array(span.ts, problem.measure.dtype)
    if span.first:
        first = jax.tree.map(lambda leaf: leaf[None], problem.frame(problem.measure.state))
        saved = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), first, saved)
    frames = Frames(ts, *saved)
    stats = {"solver": type(problem.solver.solver).__name__}
    return path_of(frames, {}, after.state, span.t1, Status("reached", span.t1), stats, problem.measure)


def _stretch(
    problem: Problem, carry: Carry, t: float, block: Block, span: Times, max_steps: int, sums: Request | None, first: bool
) -> tuple[Problem, Carry, float, Frames, dict[str, Any]]:
    """One segment from time t. If the cloud outgrows the plan of its sums on the way, there is a new plan, and the rest follows. One at
    whose end the cells of a grid are too coarse did not take place."""
    parts = [_one(problem, float(span.t0), problem.measure.state)] if first and span.first else []
    steps, dtype, begin, before = {"accepted": 0, "rejected": 0}, problem.measure.dtype, t, carry
    while True:
        carry, saved, outcome = segment(problem, carry, widest(t), array(block.ts - t, dtype), array(block.end - t, dtype), max_steps)
        figures = figures_of(outcome)
        steps = {name: count + figures[name] for name, count in steps.items()}
        count = min(figures["frames"], block.count)
        parts.append(jax.tree.map(lambda leaf, count=count: np.asarray(leaf)[:count], Frames(block.ts, *saved)))
        t = block.end if figures["reached"] else t + figures["time"]
        fresh = problem
        if outgrown(problem, figures):
            fresh = planned(problem, carry.state, t, sums)
        done = figures["reached"] or not (figures["left"] or fresh.sums != problem.sums)
        problem = fresh
        if done:
            break
        carry, block = start(at_state(problem, carry.state), widest(t), carry.steps)[0], block.after(t)
    figures |= steps | {"room": len(block.ts), "unresolved": not resolved(problem.measure, figures["report"])}
    if figures["unresolved"]:
        carry, t, parts = before, begin, parts[:1] if first and span.first else []
        figures["reached"] = False
    if not figures["reached"] and figures["finite"] and t > max([float(span.t0), *(ts for part in parts for ts in part.ts)]):
        parts.append(_one(problem, t, carry.state))
    if not parts:
        parts.append(jax.tree.map(lambda leaf: leaf[:0], _one(problem, t, carry.state)))
    return problem, carry, t, jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts), figures


def _one(problem: Problem, t: Any, state: Any) -> Frames:
    """A single frame, of a state that is on its space already and is kept as it is."""
    with check.plainly():
        one = Frames(t, state if problem.keep_states else None, frame(problem, state)[1] if problem.observe else {})
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], one)


def _stats(problem: Problem, engines: tuple[Any, ...], first: Any, figures: list[dict[str, Any]]) -> dict[str, Any]:
    """What the solver did, with the worst convergence figures met at the start and at the ends of segments."""
    stats: dict[str, Any] = {
        "solver": type(problem.solver.solver).__name__,
        "accepted_steps": sum(f["accepted"] for f in figures),
        "rejected_steps": sum(f["rejected"] for f in figures),
        "segments": len(figures),
    }
    return stats | described(engines) | worst([first, *(f["report"] for f in figures)])
