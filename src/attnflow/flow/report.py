"""Figures for `path.stats`: which engine ran, and the worst convergence met on the way."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from attnflow._check import warn
from attnflow.sums import Engine, warn_of_rough


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
