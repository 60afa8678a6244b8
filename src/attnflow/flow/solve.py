"""The one solver: `d(state)/dt = mu.rate(field.at(mu, t))`, for every picture and space.

A Python loop over compiled segments of a few frames each. The state of the diffrax solver and controller is carried across, so a
segment boundary is only a place where a step ends. Segments are fixed by the arguments. Inside `jit` and `grad` there is one segment
and no host decision: the run must reach t1, or it raises.
"""

import warnings
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from attnflow._arrays import known, positive
from attnflow.flow.path import Path, Status
from attnflow.flow.progress import tracker
from attnflow.flow.segment import Carry, Outcome, Problem, relative_speed, segment, start
from attnflow.flow.stepping import Settled, controller
from attnflow.flow.times import Times, blocks, times
from attnflow.measures import FlowingMeasure, Measure, Particles
from attnflow.sums import Engine, choose

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
    max_steps: int = 100_000,
    sums: Engine | None = None,
    progress: bool = False,
) -> Path:
    """The path of measures from `mu` at t0 under `d_t mu + div(mu Gamma_mu) = 0`, `Gamma_mu = field.at(mu, t)`.

    **Arguments:**

    - `field`: a law, a composition of fields, or any `equinox.Module` with `at(mu, t, sums) -> velocity`.
    - `mu`: `Particles` on any space, or a `Gaussian`.
    - `save_at`: the number of frames, equally spaced from t0 to t1, or the increasing times themselves. t1 is always the last frame.
    - `rtol`, `atol`: tolerances of the adaptive step, for the worst token. By default 1e-7 and 1e-9 in float64, 1e-4 and 1e-6 in float32.
    - `solver`: any diffrax ODE solver; by default Tsit5. On the sphere each step is retracted.
    - `step`: a fixed step size instead of the tolerances.
    - `max_steps`: the budget of steps of one segment; `path.stats` says how many segments there were. Inside `jit` and `grad` there is one,
      of at most 4096 steps.
    - `sums`: how kernel sums are evaluated, such as `af.Streamed()`; `None` chooses by size.
    - `progress`: draw a progress bar.

    A run that cannot reach t1 returns what it has: `path.status` says why and when. Differentiable (reverse mode) in the field and the
    measure.
    """
    if not isinstance(mu, FlowingMeasure):
        raise TypeError(f"solve moves Particles or a Gaussian, got {type(mu).__name__}; draw tokens with .sample(n, key=key)")
    if not hasattr(field, "at"):
        raise TypeError(f"field must have a method at(mu, t, sums), got {type(field).__name__}; laws and fields have one")
    if max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}")
    span = times(t0, t1, save_at, mu.dtype)
    problem = _problem(field, mu, span, rtol, atol, solver, step, sums)
    carry, rate = start(problem, span.t0)
    if not known(problem, carry, span):
        return _solve_traced(problem, carry, span, min(max_steps, _TRACED_STEPS))
    if not jnp.isfinite(rate):
        raise ValueError(
            f"the velocity at t0 must be finite, got {float(rate)}; an unnormalised law with large logits needs Unnormalized(log_scale=...)"
        )
    frames, outcomes = [], []
    with tracker(progress, float(span.t0), float(span.t1)) as advance:
        size = sum(leaf.size for leaf in jax.tree.leaves(mu.state))
        for block in blocks(span, size, None if step is None else float(step)):
            carry, saved, outcome = segment(problem, carry, jnp.asarray(block.ts), jnp.asarray(block.end, mu.dtype), max_steps)
            outcomes.append(jax.tree.map(np.asarray, outcome))
            frames.append(jax.tree.map(lambda leaf, count=block.count: np.asarray(leaf)[:count], (outcome.ts, saved)))
            advance(float(carry.t))
            if not (outcome.reached and outcome.finite):
                break
    last = outcomes[-1]
    ts, states = _gather(span, mu.state, frames, carry if last.finite else None)
    status = Status("reached", float(span.t1)) if last.reached and last.finite else _verdict(problem, span, carry, last, ts)
    return Path(ts, states, status, _stats(problem, outcomes), mu)


def _problem(field, mu, span: Times, rtol, atol, solver, step, sums) -> Problem:
    double = mu.dtype == jnp.float64
    rtol = positive("rtol", (1e-7 if double else 1e-4) if rtol is None else rtol).astype(mu.dtype)
    atol = positive("atol", (1e-9 if double else 1e-6) if atol is None else atol).astype(mu.dtype)
    step = None if step is None else positive("step", step).astype(mu.dtype)
    smallest = 16 * jnp.finfo(mu.dtype).eps * jnp.maximum(jnp.abs(span.t0), jnp.abs(span.t1))
    jumps = getattr(field, "jumps", None)
    jumps = None if jumps is None else jumps.astype(mu.dtype)
    settled = Settled(mu.default_solver() if solver is None else solver, mu.settle)
    return Problem(field, mu, settled, controller(rtol, atol, step, smallest, mu.error_norm, jumps), sums)


def _solve_traced(problem: Problem, carry: Carry, span: Times, max_steps: int) -> Path:
    """The whole run as one segment, for `jit` and `grad`."""
    _, states, outcome = segment(problem, carry, span.frames, span.t1, max_steps)
    states = eqx.error_if(
        states,
        ~outcome.reached,
        f"solve blew up or did not reach t1 within {max_steps} steps; outside jit and grad, path.status says which and when",
    )
    ts = span.frames
    if span.first:
        ts = jnp.concatenate([span.t0[None], ts])
        states = jax.tree.map(lambda s0, s: jnp.concatenate([s0[None], s]), problem.measure.state, states)
    return Path(ts, states, Status("reached", span.t1), {"solver": type(problem.solver.solver).__name__}, problem.measure)


def _gather(span: Times, start: PyTree, frames: list, carry: Carry | None) -> tuple[Array, PyTree]:
    """All frames that were reached, in order; if the run stopped between two frames, where it stopped is the last one."""
    first = [jax.tree.map(lambda leaf: np.asarray(leaf)[None], (span.t0, start))] if span.first else []
    ts, states = jax.tree.map(lambda *leaves: np.concatenate(leaves), *first, *frames)
    # A frame that was not reached has time infinity; fixed steps may run on into NaN.
    keep = np.isfinite(ts)
    for leaf in jax.tree.leaves(states):
        keep &= np.isfinite(leaf).all(axis=tuple(range(1, leaf.ndim)))
    ts, states = ts[keep], jax.tree.map(lambda s: s[keep], states)
    if carry is not None and (len(ts) == 0 or carry.t > ts[-1]):
        ts = np.append(ts, np.asarray(carry.t))
        states = jax.tree.map(lambda s, last: np.concatenate([s, np.asarray(last)[None]]), states, carry.state)
    return jnp.asarray(ts), jax.tree.map(jnp.asarray, states)


def _verdict(problem: Problem, span: Times, carry: Carry, last: Outcome, ts: Array) -> Status:
    """Why a run stopped early. Near a blow-up at T the relative speed grows like 1/(T - t); at a jump or a stiff spot it does not."""
    if not last.finite:
        return Status("blow-up", float(ts[-1] if len(ts) else span.t0))
    if last.out_of_steps:
        return Status("budget", float(carry.t))
    speed = float(relative_speed(problem, carry)) * max(abs(float(span.t0)), abs(float(span.t1)))
    bounded = np.isfinite(speed) and speed < float(jnp.finfo(ts.dtype).eps) ** -0.5
    return Status("stalled" if bounded else "blow-up", float(carry.t))


def _stats(problem: Problem, outcomes: list) -> dict[str, Any]:
    """What the solver did, with the worst convergence figures met at the ends of segments."""
    stats: dict[str, Any] = {
        "solver": type(problem.solver.solver).__name__,
        "accepted_steps": int(sum(o.accepted for o in outcomes)),
        "rejected_steps": int(sum(o.rejected for o in outcomes)),
        "segments": len(outcomes),
    }
    if isinstance(problem.measure, Particles):
        n = len(problem.measure.points)
        stats["sums"] = repr(choose(n, n, problem.sums))
    worst = jax.tree.map(lambda *all: (min if all[0].dtype == bool else max)(all).item(), *[o.report for o in outcomes])
    if not all(leaf for leaf in jax.tree.leaves(worst) if isinstance(leaf, bool)):
        warnings.warn(f"an iteration did not converge everywhere along the path: {worst}; raise its max_iterations", stacklevel=3)
    return stats | worst
