"""Cells and the faces between them, for every kind of grid: one form, so that one scheme of finite volumes serves all."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._check import shown
from attnflow.measures.grid.axes import Axis, Parts
from attnflow.measures.grid.links import Links, Rows
from attnflow.numerics.arrays import array
from attnflow.spaces import Space


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

    def columns(self, points: Float[Any, "m d"], order: Any = None) -> list[Any]:
        """What belongs to each axis: its coordinates of points, `[m, d]`, or the order, `[m, 1]`, where nothing moves."""
        ends = np.cumsum([axis.dim for axis in self.axes])
        return [points[:, end - axis.dim : end] if axis.moves else order[:, None] for axis, end in zip(self.axes, ends, strict=True)]


# What a grid is made over; its own checks refuse the rest.
if TYPE_CHECKING:
    AxesLike = Axis | Sequence[Axis] | Mesh
else:
    AxesLike = Any


def mesh(axes: AxesLike) -> Mesh:
    """The mesh over a list of axes: one or two of the line, an order and one of the line, or any other alone. A mesh is one already."""
    if isinstance(axes, Mesh):
        return axes
    axes = tuple(axes) if isinstance(axes, list | tuple) else (cast(Axis, axes),)
    if not (all(isinstance(axis, Axis) for axis in axes) and _fit(axes)):
        due = "over one or two Intervals, an Order and an Interval, a Circle, a Zonal axis or an Icosphere"
        other = [axis for axis in axes if not isinstance(axis, Axis)]
        got = shown(other[0]) if other else f"[{', '.join(type(axis).__name__ for axis in axes)}]"
        raise ValueError(f"axes: a grid is {due}, got {got}; such as [af.Interval(low, high, cells)]")

    def real(values: np.ndarray) -> Array:
        return array(values, jnp.result_type(float))

    parts = axes[0].parts() if len(axes) == 1 else _product(axes)
    return Mesh(
        points=real(parts.points),
        volumes=real(parts.volumes),
        log_volumes=real(np.log(parts.volumes)),
        order=None if axes[0].moves else real(np.repeat(axes[0].centers, axes[-1].cells)),
        links=parts.links,
        areas=real(parts.areas),
        gaps=real(parts.gaps),
        tangents=real(parts.tangents),
        # In a product the axes are lines, so that the space is that of any of them.
        space=axes[-1].space,
        axes=axes,
    )


def _fit(axes: tuple[Axis, ...]) -> bool:
    """Whether there is a grid over these axes."""
    if len(axes) == 1:
        return axes[0].moves
    still = [axis for axis in axes if not axis.moves]
    lines = all(axis.dim == 1 and not axis.periodic for axis in axes if axis.moves)
    return len(axes) == 2 and lines and (not still or (still == [axes[0]] and axes[0].regular))


def _product(axes: tuple[Axis, ...]) -> Parts:
    """The product of two axes, with faces across those that move."""
    shape, moving = tuple(axis.cells for axis in axes), tuple(a for a in range(2) if axes[a].moves)
    middles, alone = np.meshgrid(*(axis.centers for axis in axes), indexing="ij"), [axes[a].parts() for a in moving]
    # Faces come in the order of `Rows`: along the axis first, then over the cells of the other.
    faces = [len(part.gaps) * shape[1 - a] for a, part in zip(moving, alone, strict=True)]
    return Parts(
        np.stack([middles[a].ravel() for a in moving], axis=1),
        np.outer(axes[0].volumes, axes[1].volumes).ravel(),
        Rows(shape, moving),
        np.concatenate([np.outer(part.areas, axes[1 - a].volumes).ravel() for a, part in zip(moving, alone, strict=True)]),
        np.concatenate([np.repeat(part.gaps, shape[1 - a]) for a, part in zip(moving, alone, strict=True)]),
        np.repeat(np.eye(len(moving)), faces, axis=0)[:, None].repeat(2, axis=1),
    )
