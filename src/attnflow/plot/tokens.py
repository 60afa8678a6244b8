"""Tokens in a picture: in R^1, R^2, R^3, on the circle and on S^2, on ellipsoids and other curves and surfaces."""

from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow import _check as check
from attnflow.flow.path import Path
from attnflow.measures import Measure, Particles
from attnflow.numerics.arrays import floats, positive
from attnflow.plot.densities import draw
from attnflow.plot.look import COLORS, COLUMN, check_axes, look, new_figure, numbers
from attnflow.spaces import Space, Surface

if TYPE_CHECKING:
    import matplotlib.axes

# The opacity of a trail, and how much of a color is left behind a body, whose face is nearly white.
_TRAIL, _BEHIND, _FACE = 0.35, 0.25, 0.975


def tokens(
    mu: Measure,
    ax: "matplotlib.axes.Axes | None" = None,
    *,
    color: Any = None,
    size: float = 14.0,
    trail: Any = None,
    view: tuple[float, float] = (20.0, 30.0),
    bounds: Any = None,
) -> "matplotlib.axes.Axes":
    r"""Draw a cloud of tokens; the area of a dot is proportional to the mass of its token.

    **Arguments:**

    - `mu`: tokens in $\mathbb{R}^d$ with $d \le 3$, or on a curve or a surface there: the circle, $S^2$, an ellipsoid, what
      `space.surface` shows.
    - `ax`: where to draw; a new figure if not given (`ax.figure.savefig(file)` writes it). $\mathbb{R}^3$ needs `projection="3d"`.
    - `color`: one color, or one a token.
    - `size`: the area of a dot of average mass, in square points.
    - `trail`: earlier states `[t, n, d]`, such as `path.states[:i + 1]`: a thin line behind each token (not in $\mathbb{R}^1$).
    - `view`: elevation and azimuth of the eye in degrees, for $\mathbb{R}^3$ and surfaces. What is behind a sphere or an ellipsoid is
      dimmed.
    - `bounds`: the corners `[2, d]` of the box to show in $\mathbb{R}^d$; by default that of the tokens and their trails. A sphere or an
      ellipsoid is shown whole.

    Returns the axes.
    """
    mu = check.measure("mu", mu, Particles, "Particles")
    check_axes(ax)
    size = float(positive("size", size))
    if floats("view", view, "k").shape != (2,):
        raise ValueError(check.refusal("view", "two angles, elevation and azimuth", view))
    if mu.dim > 3:
        where = f"R^{mu.dim}" if mu.space.flat else f"{mu.space} in R^{mu.dim}"
        raise ValueError(
            f"tokens are drawn in R^1, R^2, R^3, on the circle and on surfaces like S^2, got {where}; "
            "choose coordinates first, such as af.Particles(mu.points[:, :2])"
        )
    if bounds is not None and numbers("bounds", bounds).shape != (2, mu.dim):
        raise ValueError(f"bounds must be two corners, [2, {mu.dim}], got {list(np.shape(bounds))}")
    points = np.asarray(mu.points, dtype=float)
    steps = points[None] if trail is None else numbers("trail", trail)
    if steps.shape[1:] != points.shape:
        raise ValueError(f"trail must have shape [t, {len(points)}, {mu.dim}], got {list(steps.shape)}")
    with look():
        if ax is None:
            figure = new_figure(height=COLUMN if mu.dim > 1 else COLUMN / 4)
            ax = figure.add_subplot(projection=projection(mu.space, mu.dim))
        dots = {"s": size * _masses(mu), "color": _colors(color, len(points))}
        surface = mu.space.surface(mu.dim)
        if surface is not None and projection(mu.space, mu.dim) is None:
            _body(ax, surface, points, steps, dots, view)
            return ax
        lines = np.zeros((0, 0, mu.dim)) if surface is None else surface.lines
        if mu.dim == 3:
            _solid(ax, lines, points, steps, dots, view)
        else:
            _plane(ax, points, steps, dots)
        everything = [part.reshape(-1, mu.dim) for part in (points, steps, lines)]
        _limits(ax, np.concatenate(everything) if bounds is None else bounds)
    return ax


def projection(space: Space, dim: int) -> str | None:
    """The kind of axes that tokens of a space in R^dim are drawn in: flat ones for a body seen from afar."""
    surface = space.surface(dim) if dim <= 3 else None
    return "3d" if dim >= 3 and (surface is None or surface.body is None) else None


@draw.register
def _(mu: Particles, path: Path, part: Any) -> float:
    """At four times, with their trails."""
    states = np.asarray(path.states)
    whole = mu.dim <= 3 and mu.space.surface(mu.dim) is not None
    last = len(path) - 1
    for k, i in enumerate(dict.fromkeys((0, round(last / 3), round(2 * last / 3), last))):
        ax = part.add_subplot(1, 4, k + 1, projection=projection(mu.space, mu.dim))
        shown = states[..., :3]
        cloud = path[i] if mu.dim <= 3 else Particles(shown[i])
        bounds = None if whole else [shown.min(axis=(0, 1)), shown.max(axis=(0, 1))]
        tokens(cloud, ax, trail=shown[: i + 1], size=8.0, bounds=bounds)
        ax.set_title(f"$t = {float(path.ts[i]):.3g}$")
    return 0.27


def _plane(ax: Any, points: np.ndarray, steps: np.ndarray, dots: dict) -> None:
    """R^1 as a line with dots on it; R^2 with equal scales."""
    if points.shape[1] == 1:
        points = np.pad(points, [(0, 0), (0, 1)])
        ax.axhline(0, color="0.75", linewidth=0.6, zorder=0)
        ax.set(yticks=[], ylim=(-1, 1), xlabel="$x$")
        ax.spines["left"].set_visible(False)
    else:
        ax.set(xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
        _trails(ax, steps, dots["color"])
    ax.scatter(*points.T, linewidths=0, zorder=3, **dots)


def _solid(ax: Any, lines: np.ndarray, points: np.ndarray, steps: np.ndarray, dots: dict, view: tuple[float, float]) -> None:
    """R^3 in a box; matplotlib fades the far tokens."""
    if not hasattr(ax, "view_init"):
        raise ValueError('tokens in R^3 need three-dimensional axes, got flat ones; make them with projection="3d"')
    for line in lines.swapaxes(0, 1):
        ax.plot(*line.T, color="0.65", linewidth=0.6)
    for path, color in zip(steps.swapaxes(0, 1), dots["color"]) if len(steps) > 1 else ():
        ax.plot(*path.T, color=color, alpha=_TRAIL, linewidth=0.5)
    ax.scatter(*points.T, linewidths=0, **dots)
    ax.set(xlabel="$x_1$", ylabel="$x_2$", zlabel="$x_3$")
    ax.view_init(*view)
    ax.set_box_aspect(None, zoom=0.78)  # room for the labels, which matplotlib leaves out of the layout


def _body(ax: Any, surface: Surface, points: np.ndarray, steps: np.ndarray, dots: dict, view: tuple[float, float]) -> None:
    """A closed curve, or a convex surface seen from afar: an orthogonal projection, in which the body is a disc."""
    flat = points.shape[1] == 2
    eye = np.eye(2, 3) if flat else _projection(*view)
    body = surface.body
    outline = surface.lines[:, 0] if body is None else body.outline(eye[:, :2])
    ax.fill(*outline.T, facecolor="none" if flat else str(_FACE), edgecolor="0.55", linewidth=0.7, zorder=0)
    dimmed = _BEHIND * dots["color"] + (1 - _BEHIND) * np.array([_FACE, _FACE, _FACE, 1])
    # On the near side the normal looks to the eye; all of a curve is near.
    everything = points, steps, surface.lines
    faces = [np.ones(part.shape[:-1], bool) if body is None else body.normal(part) @ eye[:, 2] >= 0 for part in everything]
    for near in (False, True):
        # Tokens pile up, and so would their opacity: what is behind is mixed with the face of the body instead.
        colors = dots["color"] if near else dimmed
        if not flat:
            gray = np.full((1, 4), [0.6 if near else 0.85] * 3 + [1])
            _trails(ax, _side(surface.lines @ eye, faces[2] == near), gray, zorder=0.5)
        _trails(ax, _side(steps @ eye, faces[1] == near), colors, zorder=1.0 + near)
        kept = faces[0] == near
        ax.scatter(*(points @ eye)[kept, :2].T, s=dots["s"][kept], color=colors[kept], linewidths=0, zorder=2 + 2 * near)
    x, y = 1.04 * np.abs(outline).max(axis=0)
    ax.set(xlim=(-x, x), ylim=(-y, y), xticks=[], yticks=[], aspect="equal")
    ax.set_axis_off()


def _projection(elevation: float, azimuth: float) -> np.ndarray:
    """The orthonormal columns right, up and towards the eye; the angles are those of matplotlib's 3d axes."""
    e, a = np.deg2rad(elevation), np.deg2rad(azimuth)
    right = [-np.sin(a), np.cos(a), 0]
    up = [-np.sin(e) * np.cos(a), -np.sin(e) * np.sin(a), np.cos(e)]
    return np.array([right, up, np.cross(right, up)]).T


def _side(lines: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Projected lines `[t, n, 3]` as places on the page `[t, n, 2]`, NaN where they are on the other side."""
    return np.where(kept[..., None], lines[..., :2], np.nan)


def _trails(ax: Any, steps: np.ndarray, colors: np.ndarray, zorder: float = 1.0) -> None:
    """One line a token, from states `[t, n, 2]`; a line is broken where a state is NaN."""
    from matplotlib.collections import LineCollection

    if len(steps) > 1:
        lines = LineCollection(list(steps.swapaxes(0, 1)), colors=colors, alpha=_TRAIL, linewidths=0.5, zorder=zorder)
        ax.add_collection(lines, autolim=False)


def _masses(mu: Particles) -> np.ndarray:
    """The weights in units of the average one."""
    return np.ones(len(mu.points)) if mu.weights is None else np.asarray(mu.weights, dtype=float) * len(mu.points)


def _colors(color: Any, n: int) -> np.ndarray:
    """One color a token, `[n, 4]`."""
    from matplotlib.colors import to_rgba_array

    try:
        colors = to_rgba_array(COLORS[0] if color is None else color)
    except (TypeError, ValueError, AttributeError):
        raise ValueError(check.refusal("color", "one color or one a token", color)) from None
    if len(colors) not in (1, n):
        raise ValueError(f"color must be one color or one a token, {n}, got {len(colors)}")
    return np.broadcast_to(colors, (n, 4))


def _limits(ax: Any, points: Any) -> None:
    """The box of the points with a margin of 5 %; a side of no length gets a unit one."""
    points = np.asarray(points, dtype=float)
    low, high = points.min(axis=0), points.max(axis=0)
    margin = np.where(high > low, 0.05 * (high - low), 0.5)
    for name, a, b in zip("xyz", low - margin, high + margin):
        ax.set(**{f"{name}lim": (a, b)})
