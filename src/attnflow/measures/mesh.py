"""Cells and the faces between them, for every kind of grid: one form, so that one scheme of finite volumes serves all.

A face lies between the cells `left` and `right`; `behind` and `ahead` are the next cells on the same line, from which the slope of a
density is found. At a wall there is no face, and behind the last cell is the cell itself.
"""

import itertools
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attnflow.measures.axes import Axis, Circle, Icosphere, Interval, Order, Zonal
from attnflow.measures.icosphere import icosphere
from attnflow.spaces import Euclidean, Space, Sphere


class Mesh(eqx.Module):
    """The geometry of a grid.

    - `points [n, d]`: the middles of the cells, on the space; `volumes [n]`; `order [n]` if there is an `Order` axis.
    - `lines [f, 4]`: the cells behind, left, right and ahead of each face. `areas [f]`, and `gaps [f]` from middle to middle.
    - `tangents [f, 2, d]`: the unit vectors from left to right, at the middle of the left cell and of the right one.
    - `faces [n, k]`: the faces of each cell, with `signs [n, k]`: 1 where it is on the right, -1 on the left, 0 for none.
    """

    points: Float[Array, "n d"]
    volumes: Float[Array, " n"]
    order: Float[Array, " n"] | None
    lines: Int[Array, "f 4"]
    areas: Float[Array, " f"]
    gaps: Float[Array, " f"]
    tangents: Float[Array, "f 2 d"]
    faces: Int[Array, "n k"]
    signs: Float[Array, "n k"]
    space: Space
    axes: tuple[Axis, ...] = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, ...]:
        """How many cells along each axis."""
        return tuple(axis.cells for axis in self.axes)

    def gather(self, flux: Float[Array, " f"]) -> Float[Array, " n"]:
        """What flows into each cell: every face gives to one side what it takes from the other."""
        return jnp.sum(flux[self.faces] * self.signs, axis=1)


class Parts(NamedTuple):
    """The arrays of a mesh on the host, without what follows from them."""

    points: np.ndarray
    volumes: np.ndarray
    lines: np.ndarray
    areas: np.ndarray
    gaps: np.ndarray
    tangents: np.ndarray


def mesh(axes: Any, dtype: Any = None) -> Mesh:
    """The mesh over a list of axes: intervals of R^1 and R^2, an order and an interval, or one circle, zonal axis or icosphere."""
    axes = tuple(axes) if isinstance(axes, list | tuple) else (axes,)
    kinds = tuple(type(axis) for axis in axes)
    dtype = jnp.result_type(float) if dtype is None else dtype
    if kinds and set(kinds) == {Interval} and len(kinds) <= 2:
        return _mesh(_box(axes, moving=range(len(axes))), None, Euclidean(), axes, dtype)
    if kinds == (Order, Interval):
        parts = _box(axes, moving=[1])
        return _mesh(
            parts._replace(points=parts.points[:, 1:], tangents=parts.tangents[:, :, 1:]), parts.points[:, 0], Euclidean(), axes, dtype
        )
    if kinds == (Circle,):
        return _mesh(_circle(axes[0]), None, Sphere(), axes, dtype)
    if kinds == (Zonal,):
        return _mesh(_zonal(axes[0]), None, Sphere(), axes, dtype)
    if kinds == (Icosphere,):
        return _mesh(Parts(*icosphere(axes[0].frequency)), None, Sphere(), axes, dtype)
    raise ValueError(
        f"a grid is over one or two Intervals, an Order and an Interval, a Circle, a Zonal axis or an Icosphere, "
        f"got [{', '.join(kind.__name__ for kind in kinds)}]"
    )


def _mesh(parts: Parts, order: np.ndarray | None, space: Space, axes: tuple[Axis, ...], dtype: Any) -> Mesh:
    n, f = len(parts.points), len(parts.lines)
    cells = np.concatenate([parts.lines[:, 1], parts.lines[:, 2]])
    rank = np.argsort(cells, kind="stable")
    most = np.bincount(cells, minlength=n)
    place = np.arange(2 * f) - np.repeat(np.cumsum(most) - most, most)
    faces, signs = np.zeros((n, most.max()), np.int32), np.zeros((n, most.max()))
    faces[cells[rank], place] = rank % f
    signs[cells[rank], place] = np.where(rank < f, -1.0, 1.0)

    def real(values: np.ndarray) -> Array:
        return jnp.asarray(values, dtype)

    return Mesh(
        real(parts.points),
        real(parts.volumes),
        None if order is None else real(order),
        jnp.asarray(parts.lines, jnp.int32),
        real(parts.areas),
        real(parts.gaps),
        real(parts.tangents),
        jnp.asarray(faces),
        real(signs),
        space,
        axes,
    )


def _box(axes: tuple[Any, ...], moving: Any) -> Parts:
    """The product of axes, with faces across the moving ones."""
    shape, d = tuple(axis.cells for axis in axes), len(axes)
    points = np.array(list(itertools.product(*(axis.centres for axis in axes))))
    index = np.arange(math.prod(shape)).reshape(shape)
    volume = math.prod(axis.width for axis in axes)
    lines, areas, gaps, tangents = [], [], [], []
    for a in moving:
        along = np.moveaxis(index, a, 0)
        padded = np.concatenate([along[:1], along, along[-1:]])
        quads = np.stack([padded[i : i + shape[a] - 1] for i in range(4)], axis=-1).reshape(-1, 4)
        lines.append(quads)
        areas.append(np.full(len(quads), volume / axes[a].width))
        gaps.append(np.full(len(quads), axes[a].width))
        tangents.append(np.tile(np.eye(d)[a], (len(quads), 2, 1)))
    return Parts(points, np.full(len(points), volume), *map(np.concatenate, (lines, areas, gaps, tangents)))


def _circle(axis: Circle) -> Parts:
    n, angle = axis.cells, axis.centres
    points = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    along = np.stack([-np.sin(angle), np.cos(angle)], axis=1)
    lines = (np.arange(n)[:, None] + np.arange(-1, 3)[None]) % n
    tangents = np.stack([along[lines[:, 1]], along[lines[:, 2]]], axis=1)
    return Parts(points, np.full(n, axis.width), lines, np.ones(n), np.full(n, axis.width), tangents)


def _zonal(axis: Zonal) -> Parts:
    """Bands of the angle a, of area `|S^{d-2}| integral sin^{d-2} a`; middles lie on a meridian in the plane of the first two axes."""
    n, d, angle = axis.cells, axis.dim, axis.centres
    around = 2 * math.pi ** ((d - 1) / 2) / math.gamma((d - 1) / 2)
    nodes, weights = np.polynomial.legendre.leggauss(8 + d)
    inside = angle[:, None] + 0.5 * axis.width * nodes[None]
    volumes = around * 0.5 * axis.width * (np.sin(inside) ** (d - 2) @ weights)
    points, along = np.zeros((n, d)), np.zeros((n, d))
    points[:, 0], points[:, 1] = np.cos(angle), np.sin(angle)
    along[:, 0], along[:, 1] = -np.sin(angle), np.cos(angle)
    lines = np.clip(np.arange(n - 1)[:, None] + np.arange(-1, 3)[None], 0, n - 1)
    areas = around * np.sin(axis.width * np.arange(1, n)) ** (d - 2)
    tangents = np.stack([along[:-1], along[1:]], axis=1)
    return Parts(points, volumes, lines, areas, np.full(n - 1, axis.width), tangents)
