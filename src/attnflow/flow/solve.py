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

from attnflow._arrays import array, known, on_host, positive
from attnflow.flow.noise import default_step, noise_of
from attnflow.flow.observe import split
from attnflow.flow.path import Path, Status
from attnflow.flow.plan import at_state, outgrown, planned, with_sums
from attnflow.flow.progress import tracker
from attnflow.flow.record import End, Frames, Record, figures_of, load_path, path_of
from attnflow.flow.report import engine, worst
from attnflow.flow.segment import Carry, Problem, frame, relative_speed, segment, start
from attnflow.flow.stepping import Carried, Settled, controller
from attnflow.flow.store import Store, fingerprint, provenance
from attnflow.flow.times import Block, Times, blocks, times
from attnflow.measures import FlowingMeasure, Grid, Measure
from attnflow.sums import Engine

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
    sums: Engine | None = None,
    out: Any = None,
    progress: bool = False,
) -> Path:
    r"""The path of measures from `mu` at `t0` under $\partial_t \mu + \operatorname{div}(\mu\,\Gamma_\mu) = 0$, where `field.at(mu, t)` is
    $\Gamma_\mu$.

    **Arguments:**

    - `field`: a law, a composition of fields, or any `equinox.Module` with `at(mu, t, sums) -> velocity`.
    - `mu`: `Particles` on any space, a `Gaussian`, or a `Grid`.
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
    if not isinstance(mu, FlowingMeasure):
        raise TypeError(f"solve moves Particles, a Gaussian or a Grid, got {type(mu).__name__}; draw tokens with .sample(n, key=key)")
    if not hasattr(field, "at"):
        raise TypeError(f"field must have a method at(mu, t, sums), got {type(field).__name__}; laws and fields have one")
    if max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}")
    span = times(t0, t1, save_at, mu.dtype)
    compiled, on_host = split(observe)
    shaken = noise_of(noise, key, mu)
    step = default_step(mu, step, shaken, span)
    problem = problem_of(field, mu, span, rtol, atol, solver, step, sums, compiled, until, keep_states, shaken)
    if known(problem, span):
        problem = planned(problem, mu.state, span.t0, sums)
    carry, rate = start(problem, span.t0)
    if not known(problem, carry, span):
        if on_host or until is not None or out is not None:
            raise ValueError("inside jit and grad solve has no host observables, no until and no out; call it outside")
        return _solve_traced(problem, carry, span, min(max_steps, _TRACED_STEPS))
    if not np.isfinite(np.asarray(rate)):
        raise ValueError(
            f"the velocity at t0 must be finite, got {float(rate)}; an unnormalised law with large logits needs Unnormalized(log_scale=...)"
        )
    return _solve_known(problem, carry, span, max_steps, sums, on_host, out, None if step is None else float(step), progress)


def _solve_known(problem: Problem, carry: Carry, span: Times, max_steps: int, sums, on_host, out: Any, step, progress) -> Path:
    """Segment after segment, from the start or from where the folder ends; a run that is done there is read."""
    mu = problem.measure
    store = None if out is None else _store(out, with_sums(problem, sums), span, max_steps)
    if store is not None and store.status() is not None:
        return load_path(out)
    record = Record(mu, store)
    if store is not None and record.blocks:
        carry = store.carry(carry)
        problem = planned(problem, carry.state, carry.t, sums)
    segments = blocks(span, sum(leaf.size for leaf in jax.tree.leaves(mu.state)), step)
    with tracker(progress, float(span.t0), float(span.t1)) as advance:
        while len(record.blocks) < len(segments) and not record.ended:
            block = segments[len(record.blocks)]
            problem, carry, frames, figures = _stretch(problem, carry, block, span, max_steps, sums, first=not record.blocks)
            end = End(float(carry.t), {name: function(mu.with_state(carry.state)) for name, function in on_host.items()})
            record.add(frames, figures, end, carry.state, carry)
            advance(float(carry.t))
    frames, last = record.gather(), record.figures[-1]
    status, stats = _verdict(problem, span, carry, last, frames.ts), _stats(problem, record.figures)
    if store is not None:
        store.finish({"kind": status.kind, "time": status.time, "stats": stats})
    return path_of(frames, record.on_host(), carry.state, carry.t, status, stats, mu)


def problem_of(field, mu, span: Times, rtol, atol, solver, step, sums, observe, until, keep_states, noise) -> Problem:
    """The equation and its stepper, as the arguments of `solve` say."""
    given = {name: value for name, value in {"rtol": rtol, "atol": atol, "solver": solver}.items() if value is not None}
    if isinstance(mu, Grid) and given:
        raise ValueError(f"a Grid is stepped by its own scheme, got {', '.join(given)}; leave it out, or give step=")
    double = mu.dtype == jnp.float64
    rtol = array(positive("rtol", (1e-7 if double else 1e-4) if rtol is None else rtol), mu.dtype)
    atol = array(positive("atol", (1e-9 if double else 1e-6) if atol is None else atol), mu.dtype)
    step = None if step is None else array(positive("step", step), mu.dtype)
    smallest = on_host(lambda t0, t1: 16 * jnp.finfo(mu.dtype).eps * (abs(t0) + abs(t1)), span.t0, span.t1)
    jumps = getattr(field, "jumps", None)
    jumps = None if jumps is None else array(jumps, mu.dtype)
    longest = on_host(lambda t0, t1: (t1 - t0) / 32, span.t0, span.t1) if step is None else step
    own = mu.own_steps(longest, smallest)
    settled = Settled(mu.default_solver(noise) if solver is None else solver, mu.settle)
    steps = controller(rtol, atol, step, smallest, mu.error_norm, jumps) if own is None else Carried(own, jumps)
    return Problem(field, mu, settled, steps, sums, observe, until, noise, None, keep_states)


def _store(out: Any, problem: Problem, span: Times, max_steps: int) -> Store:
    """The folder of the run."""
    # The engine as settled on this machine: a run begun on one must not go on with another.
    used = engine(problem.measure, problem.sums).get("engine", problem.sums)
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
    after, saved, outcome = segment(problem, carry, span.frames, span.t1, max_steps, differentiable=True)
    saved = eqx.error_if(
        saved,
        ~outcome.reached,
        f"solve blew up or did not reach t1 within {max_steps} steps; outside jit and grad, path.status says which and when",
    )
    frames = Frames(span.frames, *saved)
    if span.first:
        first = jax.tree.map(lambda leaf: leaf[None], Frames(span.t0, *problem.frame(problem.measure.state)))
        frames = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), first, frames)
    stats = {"solver": type(problem.solver.solver).__name__}
    return path_of(frames, {}, after.state, span.t1, Status("reached", span.t1), stats, problem.measure)


def _stretch(
    problem: Problem, carry: Carry, block: Block, span: Times, max_steps: int, sums: Engine | None, first: bool
) -> tuple[Problem, Carry, Frames, dict[str, Any]]:
    """One segment. If the cloud outgrows the plan of its sums on the way, there is a new plan, and the rest follows."""
    parts = [_one(problem, span.t0, problem.measure.state)] if first and span.first else []
    steps = {"accepted": 0, "rejected": 0}
    while True:
        end = array(block.end, problem.measure.dtype)
        carry, saved, outcome = segment(problem, carry, array(block.ts), end, max_steps)
        figures = figures_of(outcome)
        steps = {name: count + figures[name] for name, count in steps.items()}
        parts.append(jax.tree.map(lambda leaf, count=block.count: np.asarray(leaf)[:count], Frames(outcome.ts, *saved)))
        fresh = problem
        if outgrown(problem, figures):
            fresh = planned(problem, carry.state, carry.t, sums)
        done = figures["reached"] or not (figures["left"] or fresh.sums != problem.sums)
        problem = fresh
        if done:
            break
        carry, block = start(at_state(problem, carry.state), carry.t)[0], block.after(float(carry.t))
    if not figures["reached"] and figures["finite"] and carry.t > max([span.t0, *(t for p in parts for t in p.ts if np.isfinite(t))]):
        parts.append(_one(problem, carry.t, carry.state))
    return problem, carry, jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts), figures | steps


def _one(problem: Problem, t: Any, state: Any) -> Frames:
    """A single frame, of a state that is on its space already and is kept as it is."""
    one = Frames(t, state if problem.keep_states else None, frame(problem, state)[1] if problem.observe else {})
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], one)


def _verdict(problem: Problem, span: Times, carry: Carry, last: dict[str, Any], ts: np.ndarray) -> Status:
    """How a run ended. Near a blow-up at T the relative speed grows like 1/(T - t); at a jump or a stiff spot it does not."""
    if not last["finite"]:
        return Status("blow-up", float(ts[-1] if len(ts) else span.t0))
    if last["reached"]:
        return Status("reached", float(span.t1))
    if last["stopped"]:
        return Status(getattr(problem.until, "kind", "stopped"), float(carry.t))
    if last["out_of_steps"]:
        return Status("budget", float(carry.t))
    speed = float(relative_speed(problem, carry)) * max(abs(float(span.t0)), abs(float(span.t1)))
    bounded = np.isfinite(speed) and speed < float(jnp.finfo(ts.dtype).eps) ** -0.5
    return Status("stalled" if bounded else "blow-up", float(carry.t))


def _stats(problem: Problem, figures: list[dict[str, Any]]) -> dict[str, Any]:
    """What the solver did, with the worst convergence figures met at the ends of segments."""
    stats: dict[str, Any] = {
        "solver": type(problem.solver.solver).__name__,
        "accepted_steps": sum(f["accepted"] for f in figures),
        "rejected_steps": sum(f["rejected"] for f in figures),
        "segments": len(figures),
    }
    return stats | engine(problem.measure, problem.sums) | worst([f["report"] for f in figures])
