"""Densities: along time as a picture, or one of them in the plane or on the circle."""

from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow import _check as check
from attnflow.flow.path import Path
from attnflow.measures import Gaussian, Grid
from attnflow.plot.look import COLOURS, COLUMN, check_axes, look, new_figure
from attnflow.spaces import Sphere

if TYPE_CHECKING:
    import matplotlib.axes


def densities(path: Path, ax: "matplotlib.axes.Axes | None" = None, *, frame: int = -1) -> "matplotlib.axes.Axes":
    """Draw a path of `Grid`s: over the line or the circle, time across and place up; over the plane, one frame of it.

    **Arguments:** `ax`, a new figure if not given; `frame`, which one is drawn of a density in the plane. Returns the axes.
    """
    check.path("path", path, Path, Grid, "a path of Grids")
    check_axes(ax)
    check.count("frame", frame, -len(path), len(path) - 1)
    grid: Any = path.measure
    if grid.mesh.order is not None or grid.dim > 2 or len(grid.mesh.shape) > 2:
        raise ValueError(f"densities are drawn over the line, the circle and the plane, got cells {list(grid.mesh.shape)} in R^{grid.dim}")
    with look():
        ax = new_figure(COLUMN, 0.75 * COLUMN).add_subplot() if ax is None else ax
        if len(grid.mesh.shape) == 2:
            _plane(ax, path[frame])
            return ax
        where = np.asarray(grid.mesh.points)
        on_circle = isinstance(grid.mesh.space, Sphere)
        place = np.unwrap(np.arctan2(where[:, 1], where[:, 0])) if on_circle else where[:, 0]
        values = np.stack([np.asarray(path[i].density).ravel() for i in range(len(path))], axis=1)
        drawn = ax.pcolormesh(np.asarray(path.ts), place, values, cmap="cividis", shading="gouraud", rasterized=True)
        ax.set(xlabel="$t$", ylabel="angle" if on_circle else "$x$")
        ax.figure.colorbar(drawn, ax=ax, label="density", fraction=0.05)
    return ax


def _plane(ax: Any, grid: Grid) -> None:
    x = np.asarray(grid.mesh.points).reshape(*grid.mesh.shape, 2)
    drawn = ax.pcolormesh(x[:, 0, 0], x[0, :, 1], np.asarray(grid.density).T, cmap="cividis", shading="gouraud", rasterized=True)
    ax.set(xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
    ax.figure.colorbar(drawn, ax=ax, label="density", fraction=0.05)


def ellipses(path: Path, ax: "matplotlib.axes.Axes | None" = None, *, count: int = 8) -> "matplotlib.axes.Axes":
    """Draw a path of `Gaussian`s in the plane: the ellipses of one standard deviation at `count` frames, dark at the start, and the way of
    the mean. In other dimensions, the eigenvalues of the covariance along time. Returns the axes."""
    check.path("path", path, Path, Gaussian, "a path of Gaussians")
    check_axes(ax)
    check.count("count", count)
    states = [path[i] for i in range(len(path))]
    with look():
        ax = new_figure(COLUMN, COLUMN).add_subplot() if ax is None else ax
        if path.measure.dim != 2:
            values = np.stack([np.linalg.eigvalsh(np.asarray(mu.cov)) for mu in states])
            ax.semilogy(np.asarray(path.ts), np.maximum(values, 1e-300), color=COLOURS[0])
            ax.set(xlabel="$t$", ylabel="eigenvalues of the covariance")
            return ax
        import matplotlib

        angle = np.linspace(0, 2 * np.pi, 200)
        circle = np.stack([np.cos(angle), np.sin(angle)])
        chosen = np.unique(np.linspace(0, len(states) - 1, count).round().astype(int))
        for shade, i in zip(matplotlib.colormaps["cividis"](np.linspace(0, 0.9, len(chosen))), chosen):
            spread, turn = np.linalg.eigh(np.asarray(states[i].cov))
            outline = np.asarray(states[i].mean)[:, None] + turn @ (np.sqrt(np.maximum(spread, 0))[:, None] * circle)
            ax.plot(*outline, color=shade, label=f"$t = {float(path.ts[i]):.3g}$" if i in (chosen[0], chosen[-1]) else None)
        ax.plot(*np.stack([np.asarray(mu.mean) for mu in states]).T, color="0.3", linewidth=0.8, linestyle=":")
        ax.set(xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
        ax.legend(loc="best")
    return ax
