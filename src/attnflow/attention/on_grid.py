"""What a law asks of a grid."""

from typing import Any

import numpy as np

from attnflow._arrays import known
from attnflow.attention.normalisations.sinkhorn import Sinkhorn
from attnflow.measures import Circle, FlowingMeasure, Grid, Interval, Order, Zonal
from attnflow.sums import Explicit, InCells, Lattice, Mask


def lattice_of(mu: FlowingMeasure) -> Lattice | None:
    """The engine for the cells of a grid that are regular."""
    if not isinstance(mu, Grid) or not all(isinstance(axis, Interval | Circle | Order) for axis in mu.axes):
        return None
    return Lattice(mu.mesh.shape, isinstance(mu.axes[0], Circle), isinstance(mu.axes[0], Order))


def mask_on(mask: Any, mu: FlowingMeasure) -> Mask:
    """The mask as the keys of a measure need it: tokens are seen or not, cells of order in part."""
    return InCells(mask, mu.axes[0].width) if isinstance(mu, Grid) else mask


def check_grid(law: Any, mu: Grid) -> None:
    """Raise if the grid cannot carry the law: a kernel narrower than a cell, a law that breaks the symmetry, a mask matrix."""
    if isinstance(law.mask, Explicit):
        raise ValueError("a mask matrix is for tokens, got a Grid; use Causal, Window or ALiBi on [af.Order(cells), af.Interval(...)]")
    zonal = isinstance(mu.axes[0], Zonal)
    if zonal and isinstance(law.normalize, Sinkhorn):
        raise ValueError("Sinkhorn has no zonal form here; use a Grid over [af.Icosphere(frequency)] for S^2, or tokens")
    if not known(law.logit, law.value):
        return
    A, V = np.asarray(law.logit.A, dtype=np.float64), np.asarray(law.value, dtype=np.float64)
    if zonal:
        for name, matrix in (("K^T Q", A), ("V", V)):
            if np.abs(matrix - np.diag(np.append(matrix[0, 0], np.full(len(matrix) - 1, matrix[-1, -1])))).max() > 0:
                raise ValueError(f"a Zonal grid is for laws symmetric about the first axis, got {name} that is not diag(a, b, ..., b)")
    mu.check_resolution(float(np.linalg.norm(A, 2)))
