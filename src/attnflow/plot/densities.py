"""Paths of measures in a figure: densities, along time as a picture or one of them in the plane, and ellipses, which every measure has."""

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow import _check as check
from attnflow.flow.path import Path
from attnflow.measures import Gaussian, GaussianMixture, Grid, Measure
from attnflow.plot.look import COLORS, COLUMN, check_axes, look, new_figure

if TYPE_CHECKING:
    import matplotlib.axes


@functools.singledispatch
def draw(mu: Measure, path: Path, part: Any) -> float:
    """Draw a path of measures like `mu` in a part of a figure, and return how high the part should be in widths of a page: the ellipses
    of the covariance, for a picture that registers nothing better next to the function that draws it."""
    _ellipses(path, part.add_subplot(), 8)
    return 0.5


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
        (name,) = grid.axis_names
        values = np.stack([np.asarray(path[i].density).ravel() for i in range(len(path))], axis=1)
        drawn = ax.pcolormesh(np.asarray(path.ts), grid.axes[0].centers, values, cmap="cividis", shading="gouraud", rasterized=True)
        ax.set(xlabel="$t$", ylabel="$x$" if name == "x" else name)
        ax.figure.colorbar(drawn, ax=ax, label="density", fraction=0.05)
    return ax


@draw.register
def _(mu: Grid, path: Path, part: Any) -> float:
    densities(path, part.add_subplot())
    return 0.5


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
    with look():
        ax = new_figure(COLUMN, COLUMN).add_subplot() if ax is None else ax
        _ellipses(path, ax, count)
    return ax


def _ellipses(path: Path, ax: Any, count: int) -> None:
    states = [path[i] for i in range(len(path))]
    if path.measure.dim != 2:
        values = np.stack([np.linalg.eigvalsh(np.asarray(mu.cov)) for mu in states])
        ax.semilogy(np.asarray(path.ts), np.maximum(values, 1e-300), color=COLORS[0])
        ax.set(xlabel="$t$", ylabel="eigenvalues of the covariance")
        return
    means, covs = (np.stack([np.asarray(part) for part in parts])[:, None] for parts in zip(*((mu.mean, mu.cov) for mu in states)))
    _outlines(ax, np.asarray(path.ts), means, covs, count)


@draw.register
def _(mu: GaussianMixture, path: Path, part: Any) -> float:
    """The ellipses of the components, in the plane of the first two coordinates; on the line, bands of one standard deviation."""
    ax, ts = part.add_subplot(), np.asarray(path.ts)
    means, covs = (np.asarray(states) for states in path.states)
    if mu.dim > 1:
        _outlines(ax, ts, means[..., :2], covs[..., :2, :2], 5)
        return 0.5
    for k, (mean, spread) in enumerate(zip(means[..., 0].T, np.sqrt(np.maximum(covs[..., 0, 0], 0)).T)):
        ax.plot(ts, mean, color=COLORS[k % len(COLORS)])
        ax.fill_between(ts, mean - spread, mean + spread, color=COLORS[k % len(COLORS)], alpha=0.25, linewidth=0)
    ax.set(xlabel="$t$", ylabel="$x$")
    return 0.5


def _outlines(ax: Any, ts: np.ndarray, means: np.ndarray, covs: np.ndarray, count: int) -> None:
    """Ellipses of one standard deviation of `means [t, k, 2]` and `covs [t, k, 2, 2]` at `count` frames, dark at the start, and the ways
    of the means."""
    import matplotlib

    angle = np.linspace(0, 2 * np.pi, 200)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    chosen = np.unique(np.linspace(0, len(ts) - 1, count).round().astype(int))
    for shade, i in zip(matplotlib.colormaps["cividis"](np.linspace(0, 0.9, len(chosen))), chosen):
        spread, turn = np.linalg.eigh(covs[i])
        outlines = means[i][..., None] + turn @ (np.sqrt(np.maximum(spread, 0))[..., None] * circle)
        label = f"$t = {float(ts[i]):.3g}$" if i in (chosen[0], chosen[-1]) else None
        ax.plot(*np.moveaxis(outlines, 0, -1), color=shade, label=[label] + [None] * (len(outlines) - 1))
    for way in np.moveaxis(means, 1, 0):
        ax.plot(*way.T, color="0.3", linewidth=0.8, linestyle=":")
    ax.set(xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
    ax.legend(loc="best")
