"""What a law asks of a grid."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from attnflow._arrays import known
from attnflow.attention.normalisations.base import Average
from attnflow.attention.normalisations.sinkhorn import Sinkhorn
from attnflow.measures import Circle, FlowingMeasure, Grid, Interval, Order, Particles, Zonal
from attnflow.sums import Explicit, InCells, Lattice, Mask


def lattice_of(mu: FlowingMeasure) -> Lattice | None:
    """The engine for the cells of a grid that are regular."""
    if not isinstance(mu, Grid) or not all(isinstance(axis, Interval | Circle | Order) for axis in mu.axes):
        return None
    return Lattice(mu.mesh.shape, isinstance(mu.axes[0], Circle), isinstance(mu.axes[0], Order))


def mask_on(mask: Any, mu: FlowingMeasure) -> Mask:
    """The mask as the keys of a measure need it: tokens are seen or not, cells of order in part."""
    if (axis := order_of(mu)) is not None:
        mask.check_unit(axis.length)
        return InCells(mask, axis.width)
    if isinstance(mu, Particles) and mu.order is None:
        mask.check_unit(None)
    return mask


def order_of(mu: FlowingMeasure) -> Order | None:
    """The axis of order of a grid that has one."""
    return mu.axes[0] if isinstance(mu, Grid) and isinstance(mu.axes[0], Order) else None


def check_grid(law: Any, mu: Grid) -> None:
    """Raise if the grid cannot carry the law: a kernel narrower than a cell, a law that breaks the symmetry, a mask matrix."""
    if isinstance(law.mask, Explicit):
        raise ValueError("a mask matrix is for tokens, got a Grid; use Causal, Window or ALiBi on [af.Order(cells), af.Interval(...)]")
    zonal = isinstance(mu.axes[0], Zonal)
    if zonal and isinstance(law.normalize, Sinkhorn):
        raise ValueError("Sinkhorn has no zonal form here; use a Grid over [af.Icosphere(frequency)] for S^2, or tokens")
    if not known(law.logit, law.value):
        return
    check_symmetry(law, mu)
    mu.check_resolution(float(np.linalg.norm(np.asarray(law.logit.A, dtype=np.float64), 2)))


def sharpness(form: Float[Array, "d d"]) -> Float[Array, ""]:
    """The largest singular value of the matrix of a logit, one over the square of the width of its kernel."""
    if known(form):
        return jnp.asarray(np.linalg.norm(np.asarray(form, dtype=np.float64), 2), form.dtype)
    return jnp.sqrt(jnp.linalg.eigvalsh(form.T @ form)[-1])


def check_symmetry(law: Any, mu: Grid) -> None:
    """Raise if a zonal law would not stay one."""
    if not isinstance(mu.axes[0], Zonal):
        return
    for name, matrix in (("K^T Q", np.asarray(law.logit.A)), ("V", np.asarray(law.value))):
        if np.abs(matrix - np.diag(np.append(matrix[0, 0], np.full(len(matrix) - 1, matrix[-1, -1])))).max() > 0:
            raise ValueError(f"a Zonal grid is for laws symmetric about the first axis, got {name} that is not diag(a, b, ..., b)")


class AroundAxis(Average):
    """An average over a zonal law, at queries anywhere on the sphere.

    The keys of a `Zonal` grid lie as a query on the meridian of the first two axes sees them, on one side of it: there the average is right
    in the plane of the meridian, and by symmetry it has no other part. Other queries are turned to the meridian and back.
    """

    meridian: Average

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        across = x[:, 1:]
        square = jnp.sum(across**2, axis=1, keepdims=True)
        some = square > 0
        radius = jnp.sqrt(jnp.where(some, square, 1))
        turned = jnp.concatenate([x[:, :1], jnp.where(some, radius, 0), jnp.zeros_like(x[:, 2:])], axis=1)
        found = self.meridian(turned)
        return jnp.concatenate([found[:, :1], found[:, 1:2] * jnp.where(some, across / radius, 0)], axis=1)

    @property
    def report(self) -> dict[str, PyTree]:
        return self.meridian.report


def on_axes(average: Average, mu: FlowingMeasure) -> Average:
    """The average as the axes of a measure need it."""
    return AroundAxis(average) if isinstance(mu, Grid) and isinstance(mu.axes[0], Zonal) else average
