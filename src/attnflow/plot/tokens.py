"""Tokens in a picture: in R^1, R^2, R^3, on the circle and on S^2, on ellipsoids and other curves and surfaces."""

from typing import Any, ClassVar

import numpy as np

from attnflow import _check as check
from attnflow._types import ArrayLike, Scalar
from attnflow.measures import Particles
from attnflow.numerics.arrays import positive
from attnflow.plot.frames import Frames, Picture, Shown, SubFigure, frames_of
from attnflow.plot.look import COLORS, COLUMN, VIEW, Axes, check_axes, eye, limits, look, new_figure, numbers
from attnflow.spaces import Euclidean, Space, Surface

# The opacity of a trail, and how much of a color is left behind a body, whose face is nearly white.
_TRAIL, _BEHIND, _FACE = 0.35, 0.25, 0.975


def tokens(
    mu: Shown,
    ax: Axes | None = None,
    *,
    color: ArrayLike | None = None,
    size: Scalar = 14.0,
    trail: ArrayLike | None = None,
    view: ArrayLike = VIEW,
    bounds: ArrayLike | None = None,
) -> Axes:
    r"""Draw a cloud of tokens; the area of a dot is proportional to the mass of its token.

    **Arguments:**

    - `mu`: tokens in $\mathbb{R}^d$ with $d \le 3$, or on a curve or a surface there: the circle, $S^2$, an ellipsoid, what
      `space.surface` shows. Of a path, the last frame, with the others as its trail.
    - `ax`: where to draw; a new figure if not given (`ax.figure.savefig(file)` writes it). $\mathbb{R}^3$ needs `projection="3d"`.
    - `color`: one color, or one per token.
    - `size`: the area of a dot of average mass, in square points.
    - `trail`: earlier states `[t, n, d]`, such as `path.states[:i + 1]`: a thin line behind each token (not in $\mathbb{R}^1$).
    - `view`: elevation and azimuth of the eye in degrees, for $\mathbb{R}^3$ and surfaces. What is behind a sphere or an ellipsoid is
      dimmed.
    - `bounds`: the corners `[2, d]` of the box to show in $\mathbb{R}^d$; by default that of the tokens and their trails. A sphere or an
      ellipsoid is shown whole.

    Returns the axes.
    """
    frames = frames_of("mu", mu, Particles, "Particles or a path of them")
    cloud = frames[-1]
    check_axes(ax)
    size = float(positive("size", size))
    if (angles := numbers("view", view)).shape != (2,):
        raise ValueError(check.refusal("view", "two angles, elevation and azimuth", view))
    if cloud.dim > 3:
        where = f"R^{cloud.dim}" if cloud.space.flat else f"{cloud.space} in R^{cloud.dim}"
        raise ValueError(
            f"tokens are drawn in R^1, R^2, R^3, on the circle and on surfaces like S^2, got {where}; "
            "choose coordinates first, such as af.Particles(mu.points[:, :2])"
        )
    if bounds is not None and numbers("bounds", bounds).shape != (2, cloud.dim):
        raise ValueError(f"bounds must be two corners, [2, {cloud.dim}], got {list(np.shape(bounds))}")
    points = np.asarray(cloud.points, dtype=float)
    steps = frames.stack(lambda mu: mu.points) if trail is None else numbers("trail", trail)
    if steps.shape[1:] != points.shape:
        raise ValueError(f"trail must have shape [t, {len(points)}, {cloud.dim}], got {list(steps.shape)}")
    with look():
        if ax is None:
            figure = new_figure(height=COLUMN if cloud.dim > 1 else COLUMN / 4)
            ax = figure.add_subplot(projection=projection(cloud.space, cloud.dim))
        dots: dict[str, Any] = {"s": size * _masses(cloud), "color": _colors(color, len(points))}
        surface = cloud.space.surface(cloud.dim)
        if surface is not None and projection(cloud.space, cloud.dim) is None:
            _body(ax, surface, points, steps, dots, angles)
            return ax
        lines = np.zeros((0, 0, cloud.dim)) if surface is None else surface.lines
        if cloud.dim == 3:
            _solid(ax, lines, points, steps, dots, angles)
        else:
            _plane(ax, points, steps, dots)
        everything = [part.reshape(-1, cloud.dim) for part in (points, steps, lines)]
        limits(ax, np.concatenate(everything) if bounds is None else bounds)
    return ax


def projection(space: Space, dim: int) -> str | None:
    """The kind of axes that tokens of a space in R^dim are drawn in: flat ones for a body seen from afar."""
    surface = space.surface(dim) if dim <= 3 else None
    return "3d" if dim >= 3 and (surface is None or surface.body is None) else None


class Tokens(Picture):
    """Dots with their trails; of tokens in more than three coordinates the first three. Of more than `frames.tokens` about so many."""

    options: ClassVar[tuple[str, ...]] = ("color", "size", "view", "bounds")

    def __init__(self, frames: Frames, **drawn: Any):
        super().__init__(frames)
        mu: Particles = frames[0]
        self._step = 1 if frames.tokens is None else -(-len(mu.points) // frames.tokens)
        self._states = frames.stack(lambda mu: mu.points)[:, :: self._step, :3]
        self._drawn = drawn
        self.projection: str | None = projection(mu.space, mu.dim)
        self.in_one: bool = mu.dim == 1
        self.size: tuple[float, float] = (4.0, 1.2 if mu.dim == 1 else 4.0)
        if mu.dim > 3 or mu.space.surface(mu.dim) is None:
            # One box for all frames: a camera that follows the tokens would hide that they move.
            self._drawn.setdefault("bounds", [self._states.min(axis=(0, 1)), self._states.max(axis=(0, 1))])

    def still(self, ax: Axes, i: int) -> None:
        mu: Particles = self.frames[i]
        if mu.dim > 3 or self._step > 1:
            weights = None if mu.weights is None else mu.weights[:: self._step]
            mu = Particles(mu.points[:: self._step, :3], weights, space=mu.space if mu.dim <= 3 else Euclidean())
        tokens(mu, ax, trail=self._states[max(0, i - self.frames.tail) : i + 1], **self._drawn)

    def overview(self, part: SubFigure) -> None:
        self._drawn.setdefault("size", 8.0 if len(self.frames) > 1 else 14.0)
        super().overview(part)

    def along(self, ax: Axes) -> None:
        ax.plot(self.frames.ts, self._states[..., 0], color=COLORS[0], linewidth=0.6, alpha=0.6)
        ax.set(xlabel="$t$", ylabel="$x$")


def _plane(ax: Axes, points: np.ndarray, steps: np.ndarray, dots: dict) -> None:
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


def _solid(ax: Any, lines: np.ndarray, points: np.ndarray, steps: np.ndarray, dots: dict, view: np.ndarray) -> None:
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


def _body(ax: Axes, surface: Surface, points: np.ndarray, steps: np.ndarray, dots: dict, view: np.ndarray) -> None:
    """A closed curve, or a convex surface seen from afar: an orthogonal projection, in which the body is a disc."""
    flat = points.shape[1] == 2
    page = np.eye(2, 3) if flat else eye(view)
    body = surface.body
    outline = surface.lines[:, 0] if body is None else body.outline(page[:, :2])
    ax.fill(*outline.T, facecolor="none" if flat else str(_FACE), edgecolor="0.55", linewidth=0.7, zorder=0)
    dimmed = _BEHIND * dots["color"] + (1 - _BEHIND) * np.array([_FACE, _FACE, _FACE, 1])
    # On the near side the normal looks to the eye; all of a curve is near.
    everything = points, steps, surface.lines
    faces = [np.ones(part.shape[:-1], bool) if body is None else body.normal(part) @ page[:, 2] >= 0 for part in everything]
    for near in (False, True):
        # Tokens pile up, and so would their opacity: what is behind is mixed with the face of the body instead.
        colors = dots["color"] if near else dimmed
        if not flat:
            gray = np.full((1, 4), [0.6 if near else 0.85] * 3 + [1])
            _trails(ax, _side(surface.lines @ page, faces[2] == near), gray, zorder=0.5)
        _trails(ax, _side(steps @ page, faces[1] == near), colors, zorder=1.0 + near)
        kept = faces[0] == near
        ax.scatter(*(points @ page)[kept, :2].T, s=dots["s"][kept], color=colors[kept], linewidths=0, zorder=2 + 2 * near)
    x, y = 1.04 * np.abs(outline).max(axis=0)
    ax.set(xlim=(-x, x), ylim=(-y, y), xticks=[], yticks=[], aspect="equal")
    ax.set_axis_off()


def _side(lines: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Projected lines `[t, n, 3]` as places on the page `[t, n, 2]`, NaN where they are on the other side."""
    return np.where(kept[..., None], lines[..., :2], np.nan)


def _trails(ax: Axes, steps: np.ndarray, colors: np.ndarray, zorder: float = 1.0) -> None:
    """One line per token, from states `[t, n, 2]`; a line is broken where a state is NaN."""
    from matplotlib.collections import LineCollection

    if len(steps) > 1:
        lines = LineCollection(list(steps.swapaxes(0, 1)), colors=colors, alpha=_TRAIL, linewidths=0.5, zorder=zorder)
        ax.add_collection(lines, autolim=False)


def _masses(mu: Particles) -> np.ndarray:
    """The weights in units of the average one."""
    return np.ones(len(mu.points)) if mu.weights is None else np.asarray(mu.weights, dtype=float) * len(mu.points)


def _colors(color: ArrayLike | None, n: int) -> np.ndarray:
    """One color per token, `[n, 4]`."""
    from matplotlib.colors import to_rgba_array

    try:
        colors = to_rgba_array(COLORS[0] if color is None else color)
    except (TypeError, ValueError, AttributeError):
        raise ValueError(check.refusal("color", "one color or one per token", color)) from None
    if len(colors) not in (1, n):
        raise ValueError(f"color must be one color or one per token, {n}, got {len(colors)}")
    return np.broadcast_to(colors, (n, 4))
