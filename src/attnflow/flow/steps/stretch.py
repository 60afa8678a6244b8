"""One segment as the host runs it: compiled, judged, and followed by the rest if its sums had to be planned anew on the way."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from attnflow import _check as check
from attnflow.flow.path import REACHED, UNRESOLVED
from attnflow.flow.plan import at_state, outgrown, planned
from attnflow.flow.steps.problem import Problem
from attnflow.flow.steps.segment import Carry, figures_of, frame, segment, start
from attnflow.flow.steps.times import Block, widest
from attnflow.flow.verdict import resolved
from attnflow.measures import FlowingMeasure
from attnflow.numerics.arrays import array
from attnflow.sums import Request


class Frames(NamedTuple):
    """Some frames: times `[k]`, states and observables with a leading axis k. `states` is `None` if positions are not kept."""

    ts: Any
    states: PyTree
    observed: dict[str, Any]


class Stretch(NamedTuple):
    """What a segment left: the problem with its plan, what the next one starts from and when, its frames and its figures."""

    problem: Problem
    carry: Carry
    t: float
    frames: Frames
    figures: dict[str, Any]


def stretch(problem: Problem, carry: Carry, t: float, t0: float, block: Block, max_steps: int, sums: Request | None) -> Stretch:
    """One segment from time t of a run that began at t0.

    If the cloud outgrows the plan of its sums on the way, there is a new plan, and the rest follows. A segment at whose end the cells of a
    grid are too coarse did not take place."""
    parts, before = [], (carry, t)
    steps, dtype = {"accepted": 0, "rejected": 0}, problem.measure.dtype
    while True:
        carry, saved, outcome = segment(problem, carry, widest(t), array(block.ts - t, dtype), array(block.end - t, dtype), max_steps)
        figures = figures_of(outcome)
        steps = {name: count + figures[name] for name, count in steps.items()}
        count = min(figures["frames"], block.count)
        parts.append(jax.tree.map(lambda leaf, count=count: np.asarray(leaf)[:count], Frames(block.ts, *saved)))
        reached = figures["code"] == REACHED
        t = block.end if reached else t + figures["time"]
        fresh = planned(problem, carry.state, t, sums) if outgrown(problem, figures) else problem
        go_on = not reached and (figures["left"] or fresh.sums != problem.sums)
        problem = fresh
        if not go_on:
            break
        carry, block = start(at_state(problem, carry.state), widest(t), carry.steps)[0], block.after(t)
    figures |= steps | {"room": len(block.ts)}
    if not resolved(problem.measure, figures["report"]):
        (carry, t), figures["code"] = before, UNRESOLVED
        parts = [jax.tree.map(lambda leaf: leaf[:0], parts[0])]
    frames = finite(jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts))
    if figures["code"] != REACHED and figures["finite"] and t > max([t0, *frames.ts]):
        frames = jax.tree.map(lambda *leaves: np.concatenate(leaves), frames, one_frame(problem, t, carry.state))
    return Stretch(problem, carry, t, frames, figures)


def one_frame(problem: Problem, t: float, state: PyTree) -> Frames:
    """A single frame, of a state that is on its space already and is kept as it is."""
    with check.plainly():
        one = Frames(t, state if problem.keep_states else None, frame(problem, state)[1] if problem.observe else {})
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], one)


def finite(frames: Frames) -> Frames:
    """The frames that are finite: fixed steps may run on into NaN."""
    keep = np.isfinite(frames.ts)
    for leaf in jax.tree.leaves(frames.states):
        keep &= np.isfinite(leaf).all(axis=tuple(range(1, leaf.ndim)))
    return jax.tree.map(lambda leaf: leaf[keep], frames)


def seen(frames: Frames, on_host: dict[str, Any], measure: FlowingMeasure, keep_states: bool) -> Frames:
    """The frames with what is observed on the host; without their states, if those were kept for that alone."""
    found: dict[str, list[np.ndarray]] = {name: [] for name in on_host}
    for i in range(len(frames.ts) if on_host else 0):
        mu = measure.with_state(jax.tree.map(lambda leaf, i=i: array(leaf[i]), frames.states))
        for name, function in on_host.items():
            found[name].append(np.asarray(function(mu)))
    observed = frames.observed | {name: np.stack(values) if values else np.zeros(0) for name, values in found.items()}
    return Frames(frames.ts, frames.states if keep_states else None, observed)
