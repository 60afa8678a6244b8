"""Densities on grids: on a row of cells, on two rows, on the sphere."""

from typing import Any, ClassVar

import numpy as np

from attnflow import _check as check
from attnflow._types import ArrayLike
from attnflow.measures import Grid
from attnflow.measures.grid.axes import Axis
from attnflow.plot.frames import Frames, Picture, Shown, frames_of
from attnflow.plot.look import COLORS, COLUMN, VIEW, Axes, check_axes, eye, look, new_figure

# Pixels across a hemisphere.
_PIXELS = 240
_QUARTERS = {-2: r"$-\pi$", -1: r"$-\pi/2$", 0: "0", 1: r"$\pi/2$", 2: r"$\pi$", 3: r"$3\pi/2$", 4: r"$2\pi$"}


def densities(path: Shown, ax: Axes | None = None, *, frame: int | None = None) -> Axes:
    r"""Draw densities on a grid.

    **Arguments:**

    - `path`: over the line, the circle and the angle of a `Zonal` axis, time across and place up. Over the plane, over an order and the
      line, and on $S^2$ (a hemisphere from the front, and the other from behind), the last frame. A `Grid` alone is drawn as one frame.
    - `ax`: where to draw; a new figure if not given.
    - `frame`: draw this frame alone.

    Returns the axes.
    """
    frames = frames_of("path", path, Grid, "a path of Grids or a Grid")
    check_axes(ax)
    if frame is not None:
        check.count("frame", frame, -len(frames), len(frames) - 1)
    kind = density_picture(frames[0])
    if kind is None:
        cells = list(frames[0].mesh.shape)
        raise ValueError(f"densities are drawn over one or two rows of cells and on S^2, got cells {cells} in R^{frames[0].dim}")
    with look():
        drawn = kind(frames)
        if ax is None:
            width, height = drawn.size
            ax = new_figure(COLUMN, COLUMN * min(0.75, height / width)).add_subplot()
        if drawn.in_one and len(frames) > 1 and frame is None:
            drawn.along(ax)
        else:
            drawn.still(ax, (-1 if frame is None else frame) % len(frames))
            drawn.key(ax)
    return ax


def density_picture(grid: Grid) -> "type[Densities] | None":
    """The class that draws a density on such cells; `None` if none does."""
    if len(grid.axes) == 2:
        return Plane
    if grid.axes[0].edges is not None:
        return Row
    return Globe if grid.space.radius is not None and grid.dim == 3 else None


class Densities(Picture):
    """Colors or heights from 0 to the largest value of all frames."""

    def __init__(self, frames: Frames):
        super().__init__(frames)
        self._grid: Grid = frames[0]
        self._values = frames.stack(lambda mu: mu.density)
        self._colors: dict[str, Any] = {"cmap": "cividis", "vmin": 0.0, "vmax": float(self._values.max())}

    def scale(self, axes: Axes | list[Axes]) -> None:
        """The scale of colors, beside the axes."""
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        figure = (axes[0] if isinstance(axes, list) else axes).figure
        figure.colorbar(ScalarMappable(Normalize(0.0, self._colors["vmax"]), "cividis"), ax=axes, label="density", fraction=0.05)


class Row(Densities):
    """On a row of cells: the line, the circle, an angle."""

    in_one: bool = True
    size: tuple[float, float] = (4.0, 2.6)

    def still(self, ax: Axes, i: int) -> None:
        axis = self._grid.axes[0]
        ax.fill_between(axis.centers, self._values[i], color=COLORS[0], alpha=0.25, linewidth=0)
        ax.plot(axis.centers, self._values[i], color=COLORS[0])
        ax.set(ylabel="density", ylim=(0, 1.05 * self._colors["vmax"]))
        _along(ax, "x", axis, self._grid.axis_names[0])

    def along(self, ax: Axes) -> None:
        axis = self._grid.axes[0]
        ax.pcolormesh(self.frames.ts, axis.centers, self._values.T, shading="gouraud", rasterized=True, **self._colors)
        ax.set(xlabel="$t$")
        _along(ax, "y", axis, self._grid.axis_names[0])
        self.scale(ax)


class Plane(Densities):
    """On two rows of cells: the plane, or an order and the line."""

    def still(self, ax: Axes, i: int) -> None:
        (first, second), names = self._grid.axes, self._grid.axis_names
        ax.pcolormesh(first.centers, second.centers, self._values[i].T, shading="gouraud", rasterized=True, **self._colors)
        plane = first.moves
        _along(ax, "x", first, "$x_1$" if plane else names[0])
        _along(ax, "y", second, "$x_2$" if plane else names[1])
        ax.set(aspect="equal" if plane else "auto")

    def key(self, axes: Axes | list[Axes]) -> None:
        self.scale(axes)


class Globe(Densities):
    """On the sphere: a hemisphere from the front, and beside it the other from behind."""

    options: ClassVar[tuple[str, ...]] = ("view",)
    size: tuple[float, float] = (5.0, 2.6)

    def __init__(self, frames: Frames, view: ArrayLike = VIEW):
        super().__init__(frames)
        from scipy.spatial import KDTree

        up, right = np.meshgrid(*[np.linspace(-1, 1, _PIXELS)] * 2, indexing="ij")
        depth = np.sqrt(np.maximum(1 - right**2 - up**2, 0))
        seen = np.concatenate([np.stack([right, up, depth], axis=-1), np.stack([-right, up, -depth], axis=-1)], axis=1)
        away, self._cells = KDTree(np.asarray(self._grid.points)).query(seen @ eye(view).T * (self._grid.space.radius or 1.0), k=3)
        # Values between the middles of cells are averages of the three nearest, weighted by the inverse of the distance.
        nearness = 1 / np.maximum(away, 1e-9)
        self._parts = nearness / nearness.sum(axis=-1, keepdims=True)
        self._outside = np.tile(right**2 + up**2 > 1, 2)

    def still(self, ax: Axes, i: int) -> None:
        shown = np.where(self._outside, np.nan, np.sum(self._values[i][self._cells] * self._parts, axis=-1))
        ax.imshow(shown, origin="lower", extent=(-2.05, 2.05, -1.025, 1.025), **self._colors)
        for x, name in ((-1.025, "front"), (1.025, "from behind")):
            circle = np.linspace(0, 2 * np.pi, 200)
            ax.plot(x + np.cos(circle), np.sin(circle), color="0.55", linewidth=0.7)
            ax.annotate(name, (x, -1.05), ha="center", va="top", color="0.4", fontsize="small")
        ax.set(xlim=(-2.1, 2.1), ylim=(-1.4, 1.1), aspect="equal")
        ax.set_axis_off()

    def key(self, axes: Axes | list[Axes]) -> None:
        self.scale(axes)


def _along(ax: Axes, side: str, axis: Axis, name: str) -> None:
    """Name a side of the figure after an axis of the grid; an angle has all its range, and multiples of pi."""
    assert axis.edges is not None
    ax.set(**{f"{side}label": "$x$" if name == "x" else name, f"{side}lim": axis.centers[[0, -1]]})
    if name == "angle":
        quarters = np.arange(round(2 * axis.edges[0] / np.pi), round(2 * axis.edges[-1] / np.pi) + 1)
        ax.set(**{f"{side}lim": axis.edges[[0, -1]], f"{side}ticks": quarters * np.pi / 2})
        ax.set(**{f"{side}ticklabels": [_QUARTERS[int(k)] for k in quarters]})
