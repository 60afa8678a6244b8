"""What a run reports: its progress, which engine ran, and the worst convergence met on the way."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from attnflow._check import warn
from attnflow.sums import Engine, warn_of_rough


@contextlib.contextmanager
def tracker(show: bool, t0: float, t1: float, label: str = "solve") -> Iterator[Callable[[float], None]]:
    """Gives a function to call with the time reached; draws a bar with the time left if `show`."""
    if not show:
        yield lambda t: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("t = {task.fields[t]:.4g} / {task.fields[end]:.4g}"),
    )
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(label, total=t1 - t0, t=t0, end=t1)
        yield lambda t: bar.update(task, completed=t - t0, t=t)


def described(engines: Sequence[Engine]) -> dict[str, str]:
    """The engines that kernel sums ran on, in a line; nothing for a run without sums."""
    lines = list(dict.fromkeys(engine.description for engine in engines))
    return {"engine": ", ".join(lines)} if lines else {}


def worst(reports: list[PyTree]) -> dict[str, Any]:
    """The largest of every figure, and for flags whether all are set. Warns the user if an iteration did not converge."""
    if not reports:
        return {}
    figures = jax.tree.map(lambda *all: _worst(np.stack(all)), *reports)
    if not all(leaf for leaf in jax.tree.leaves(figures) if isinstance(leaf, bool)):
        warn(f"an iteration did not converge everywhere along the path: {figures}; raise its max_iterations")
    warn_of_rough(figures)
    return figures


def _worst(figures: np.ndarray) -> Any:
    return (figures.all() if figures.dtype == bool else figures.max()).item()
