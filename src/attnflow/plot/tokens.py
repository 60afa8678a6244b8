"""Tokens in a picture: in R^1, R^2, R^3, on the circle and on S^2."""

from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.measures import Particles
from attnflow.plot.look import COLOURS, look, new_figure
from attnflow.spaces import Sphere

if TYPE_CHECKING:
    import matplotlib.axes

# How much of a colour is left on a trail, and on anything behind the sphere.
_TRAIL, _BEHIND = 0.35, 0.16


def tokens(
    mu: Particles,
    ax: "matplotlib.axes.Axes | None" = None,
    *,
    color: Any = None,
    size: float = 14.0,
    trail: Any = None,
    view: tuple[float, float] = (20.0, 30.0),
    bounds: Any = None,
) -> "matplotlib.axes.Axes":
    """Draw a cloud of tokens; the area of a dot is proportional to the mass of its token.

    **Arguments:**

    - `mu`: tokens in R^d with d <= 3, on the circle or on S^2.
    - `ax`: where to draw; a new figure if not given (`ax.figure.savefig(file)` writes it). R^3 needs `projection="3d"`.
    - `color`: one colour, or one a token.
    - `size`: the area of a dot of average mass, in square points.
    - `trail`: earlier states `[t, n, d]`, such as `path.states[:i + 1]`, drawn as a thin line behind each token.
    - `view`: elevation and azimuth of the eye in degrees, for R^3 and S^2. What is behind the sphere is dimmed.
    - `bounds`: the corners `[2, d]` of the box to show in R^d; by default that of the tokens and their trails.

    Returns the axes.
    """
    if not isinstance(mu, Particles):
        raise TypeError(f"tokens draws Particles, got {type(mu).__name__}; draw tokens from it with .sample(n, key=key)")
    on_sphere = isinstance(mu.space, Sphere)
    if mu.dim > 3:
        where = f"S^{mu.dim - 1} in R^{mu.dim}" if on_sphere else f"R^{mu.dim}"
        raise ValueError(
            f"tokens are drawn in R^1, R^2, R^3, on the circle and on S^2, got {where}; "
            "choose coordinates first, such as af.Particles(mu.points[:, :2])"
        )
    points = np.asarray(mu.points, dtype=float)
    steps = points[None] if trail is None else np.asarray(trail, dtype=float)
    if steps.shape[1:] != points.shape:
        raise ValueError(f"trail must have shape [t, {len(points)}, {mu.dim}], got {list(steps.shape)}")
    with look():
        if ax is None:
            ax = new_figure().add_subplot(projection=None if on_sphere or mu.dim < 3 else "3d")
        dots = {"s": size * _masses(mu), "color": _colours(color, len(points))}
        if on_sphere:
            _sphere(ax, points, steps, dots, view)
        elif mu.dim == 3:
            _solid(ax, points, steps, dots, view)
        else:
            _plane(ax, points, steps, dots)
        if not on_sphere:
            _limits(ax, np.concatenate([points[None], steps]).reshape(-1, mu.dim) if bounds is None else bounds)
    return ax


def _plane(ax: Any, points: np.ndarray, steps: np.ndarray, dots: dict) -> None:
    """R^1 as a line, with trails and dots on it; R^2 with equal scales."""
    if points.shape[1] == 1:
        points, steps = np.pad(points, [(0, 0), (0, 1)]), np.pad(steps, [(0, 0), (0, 0), (0, 1)])
        ax.axhline(0, color="0.75", linewidth=0.6, zorder=0)
        ax.set(yticks=[], ylim=(-1, 1), xlabel="$x$")
        ax.spines["left"].set_visible(False)
    else:
        ax.set(xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
        _trails(ax, steps, dots["color"])
    ax.scatter(*points.T, linewidths=0, zorder=3, **dots)


def _solid(ax: Any, points: np.ndarray, steps: np.ndarray, dots: dict, view: tuple[float, float]) -> None:
    """R^3 in a box; matplotlib fades the far tokens."""
    if not hasattr(ax, "view_init"):
        raise ValueError('tokens in R^3 need three-dimensional axes, got flat ones; make them with projection="3d"')
    for path, colour in zip(steps.swapaxes(0, 1), dots["color"]) if len(steps) > 1 else ():
        ax.plot(*path.T, color=colour, alpha=_TRAIL, linewidth=0.5)
    ax.scatter(*points.T, linewidths=0, **dots)
    ax.set(xlabel="$x_1$", ylabel="$x_2$", zlabel="$x_3$")
    ax.view_init(*view)


def _sphere(ax: Any, points: np.ndarray, steps: np.ndarray, dots: dict, view: tuple[float, float]) -> None:
    """The circle, or S^2 seen from afar: an orthogonal projection, in which the sphere is a disc."""
    from matplotlib.patches import Circle

    flat = points.shape[1] == 2
    eye = np.eye(3)[:, :2] if flat else _projection(*view)
    (xy, depth), (lines, line_depth) = _seen(points, eye, flat), _seen(steps, eye, flat)
    ax.add_patch(Circle((0, 0), 1, facecolor="none" if flat else "0.975", edgecolor="0.55", linewidth=0.7, zorder=0))
    for near in (False, True):
        shade = 1.0 if near else _BEHIND
        if not flat:
            _graticule(ax, eye, near)
        side = (line_depth >= 0) == near
        _trails(ax, np.where(side[..., None], lines, np.nan), dots["color"], shade, zorder=1 + near)
        kept = (depth >= 0) == near
        ax.scatter(*xy[kept].T, s=dots["s"][kept], color=dots["color"][kept], alpha=shade, linewidths=0, zorder=2 + 2 * near)
    ax.set(xlim=(-1.04, 1.04), ylim=(-1.04, 1.04), aspect="equal")
    ax.set_axis_off()


def _graticule(ax: Any, eye: np.ndarray, near: bool) -> None:
    """Meridians and parallels every 30 degrees, fainter on the far side."""
    round_trip = np.linspace(0, 2 * np.pi, 181)
    c, s, zero = np.cos(round_trip), np.sin(round_trip), np.zeros_like(round_trip)
    meridians = [np.stack([c * np.cos(a), c * np.sin(a), s], axis=1) for a in np.arange(6) * np.pi / 6]
    parallels = [np.stack([c * np.cos(b), s * np.cos(b), zero + np.sin(b)], axis=1) for b in np.arange(-2, 3) * np.pi / 6]
    lines, depth = _seen(np.stack(meridians + parallels, axis=1), eye, False)
    lines = np.where(((depth >= 0) == near)[..., None], lines, np.nan)
    _trails(ax, lines, np.array([[0, 0, 0, 1.0]]), 0.4 if near else 0.12, zorder=0.5)


def _trails(ax: Any, steps: np.ndarray, colours: np.ndarray, shade: float = 1.0, zorder: float = 1) -> None:
    """One line a token, from states `[t, n, 2]`; a line is broken where a state is NaN."""
    from matplotlib.collections import LineCollection

    if len(steps) > 1:
        lines = LineCollection(list(steps.swapaxes(0, 1)), colors=colours, alpha=_TRAIL * shade, linewidths=0.5, zorder=zorder)
        ax.add_collection(lines, autolim=False)


def _projection(elevation: float, azimuth: float) -> np.ndarray:
    """The orthonormal columns right, up and towards the eye, in the convention of matplotlib's three-dimensional axes."""
    e, a = np.deg2rad(elevation), np.deg2rad(azimuth)
    right = [-np.sin(a), np.cos(a), 0]
    up = [-np.sin(e) * np.cos(a), -np.sin(e) * np.sin(a), np.cos(e)]
    return np.array([right, up, np.cross(right, up)]).T


def _seen(points: np.ndarray, eye: np.ndarray, flat: bool) -> tuple[np.ndarray, np.ndarray]:
    """Places on the page `[..., 2]` and depths `[...]`, positive towards the eye."""
    if flat:
        return points, np.zeros(points.shape[:-1])
    turned = points @ eye
    return turned[..., :2], turned[..., 2]


def _masses(mu: Particles) -> np.ndarray:
    """The weights in units of the average one."""
    return np.ones(len(mu.points)) if mu.weights is None else np.asarray(mu.weights, dtype=float) * len(mu.points)


def _colours(color: Any, n: int) -> np.ndarray:
    """One colour a token, `[n, 4]`."""
    from matplotlib.colors import to_rgba_array

    colours = to_rgba_array(COLOURS[0] if color is None else color)
    if len(colours) not in (1, n):
        raise ValueError(f"color must be one colour or one a token, {n}, got {len(colours)}")
    return np.broadcast_to(colours, (n, 4))


def _limits(ax: Any, points: Any) -> None:
    """The box of the points with a margin of 5 %; a side of no length gets a unit one."""
    points = np.asarray(points, dtype=float)
    low, high = points.min(axis=0), points.max(axis=0)
    margin = np.where(high > low, 0.05 * (high - low), 0.5)
    for name, a, b in zip("xyz", low - margin, high + margin):
        ax.set(**{f"{name}lim": (a, b)})
