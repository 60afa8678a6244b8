"""Cells and the faces between them, for every kind of grid: one form, so that one scheme of finite volumes serves all."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._arrays import array
from attnflow._check import shown
from attnflow.measures.axes import Axis, Circle, Icosphere, Interval, Order, Zonal
from attnflow.measures.icosphere import icosphere
from attnflow.measures.links import Links, Rows, listed
from attnflow.spaces import Euclidean, Space, Sphere


class Mesh(eqx.Module):
    """The geometry of a grid.

    - `points [n, d]`: the middles of the cells, on the space; `volumes [n]` and their logarithms; `order [n]` if there is an `Order` axis.
    - `links`: which cells lie around a face. `areas [f]` of the faces, and `gaps [f]` from middle to middle.
    - `tangents [f, 2, d]`: the unit vectors from left to right, at the middle of the left cell and of the right one.
    """

    points: Float[Array, "n d"]
    volumes: Float[Array, " n"]
    log_volumes: Float[Array, " n"]
    order: Float[Array, " n"] | None
    links: Links
    areas: Float[Array, " f"]
    gaps: Float[Array, " f"]
    tangents: Float[Array, "f 2 d"]
    space: Space
    axes: tuple[Axis, ...] = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, ...]:
        """How many cells along each axis."""
        return tuple(axis.cells for axis in self.axes)


class Parts(NamedTuple):
    """The arrays of a mesh on the host, without what follows from them."""

    points: np.ndarray
    volumes: np.ndarray
    links: Links
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
        points, areas, lines, *rest = icosphere(axes[0].frequency)
        return _mesh(Parts(points, areas, listed(lines, len(points)), *rest), None, Sphere(), axes, dtype)
    due = "over one or two Intervals, an Order and an Interval, a Circle, a Zonal axis or an Icosphere"
    other = [axis for axis in axes if not isinstance(axis, Axis)]
    got = shown(other[0]) if other else f"[{', '.join(kind.__name__ for kind in kinds)}]"
    raise ValueError(f"axes: a grid is {due}, got {got}; such as [af.Interval(low, high, cells)]")


def _mesh(parts: Parts, order: np.ndarray | None, space: Space, axes: tuple[Axis, ...], dtype: Any) -> Mesh:
    def real(values: np.ndarray) -> Array:
        return array(values, dtype)

    return Mesh(
        real(parts.points),
        real(parts.volumes),
        real(np.log(parts.volumes)),
        None if order is None else real(order),
        parts.links,
        real(parts.areas),
        real(parts.gaps),
        real(parts.tangents),
        space,
        axes,
    )


def _box(axes: tuple[Any, ...], moving: Any) -> Parts:
    """The product of axes, with faces across the moving ones."""
    shape, d = tuple(axis.cells for axis in axes), len(axes)
    points = np.stack(np.meshgrid(*(axis.centres for axis in axes), indexing="ij"), axis=-1).reshape(-1, d)
    volume = math.prod(axis.width for axis in axes)
    faces = [math.prod(shape) // shape[a] * (shape[a] + 1) for a in moving]
    widths = np.repeat([axes[a].width for a in moving], faces)
    open_faces = [np.repeat(_between_walls(shape[a]), count // (shape[a] + 1)) for a, count in zip(moving, faces, strict=True)]
    tangents = np.repeat(np.eye(d)[list(moving)], faces, axis=0)[:, None].repeat(2, axis=1)
    areas = volume / widths * np.concatenate(open_faces)
    return Parts(points, np.full(len(points), volume), Rows(shape, tuple(moving)), areas, widths, tangents)


def _between_walls(cells: int) -> np.ndarray:
    """1 for each face of a row, 0 for those in the walls."""
    return np.pad(np.ones(cells - 1), 1)


def _circle(axis: Circle) -> Parts:
    n, angle = axis.cells, axis.centres
    points = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    along = np.stack([-np.sin(angle), np.cos(angle)], axis=1)
    tangents = np.stack([np.concatenate([along[-1:], along]), np.concatenate([along, along[:1]])], axis=1)
    return Parts(points, np.full(n, axis.width), Rows((n,), (0,), circle=True), np.ones(n + 1), np.full(n + 1, axis.width), tangents)


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
    areas = around * np.sin(axis.width * np.arange(n + 1)) ** (d - 2) * _between_walls(n)
    tangents = np.stack([np.concatenate([along[:1], along]), np.concatenate([along, along[-1:]])], axis=1)
    return Parts(points, volumes, Rows((n,), (0,)), areas, np.full(n + 1, axis.width), tangents)
