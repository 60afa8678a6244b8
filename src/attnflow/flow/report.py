"""Figures for `path.stats`: which engine ran, and the worst convergence met on the way."""

from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from attnflow._check import warn
from attnflow.measures import FlowingMeasure, Particles
from attnflow.sums import Engine, Transform, choose, warn_of_rough


def engine(mu: FlowingMeasure, sums: Engine | None) -> dict[str, str]:
    """The engine that the kernel sums of `mu` run on, and whether it is native; nothing for pictures that have no sums."""
    if not isinstance(mu, Particles):
        return {}
    if isinstance(sums, Transform):
        series = "circle" if sums.circle else "Gaussian"
        exact = f", {sums.exact} rows exactly" if sums.exact else ""
        return {"engine": f"spectral ({series}, {' x '.join(map(str, sums.modes))} modes, tolerance {sums.tolerance:.0e}{exact})"}
    n = len(mu.points)
    return {"engine": repr(choose(n, n, sums))}


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
