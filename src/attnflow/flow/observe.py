"""Observables along a run: compiled ones at every frame, host ones at the end of every segment."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PyTree

from attnflow.measures import FlowingMeasure


class Observed(NamedTuple):
    """The values of an observable, `values[i]` at `ts[i]`: the times of the frames, or `on_host` those of the ends of segments."""

    ts: Any
    values: PyTree
    on_host: bool = False


class OnHost:
    """Marks an observable that cannot be compiled: it is called with the measure on the host, at the end of every segment."""

    def __init__(self, function: Callable[[FlowingMeasure], Any]):
        self.function = function


def split(observe: Any) -> tuple[dict[str, Callable], dict[str, Callable]]:
    """The compiled observables and the host ones, by name."""
    if observe is None:
        return {}, {}
    if not isinstance(observe, dict) or not all(callable(f) or isinstance(f, OnHost) for f in observe.values()):
        raise TypeError(f"observe must be a dict of functions of the measure, got {observe!r}")
    compiled = {name: f for name, f in observe.items() if not isinstance(f, OnHost)}
    return compiled, {name: f.function for name, f in observe.items() if isinstance(f, OnHost)}


def series(ts: list, values: list) -> Observed:
    """Numbers gathered on the host, stacked."""
    return Observed(np.asarray(ts), np.stack([np.asarray(v) for v in values]) if values else np.zeros(0), on_host=True)
