"""What figures draw of a space."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Surface(NamedTuple):
    """What is drawn of a space behind its tokens.

    - `lines [t, m, d]`: m lines of t points each: the curve itself in R^2, a net on the surface in R^3.
    - `body`: for the boundary of a convex body in R^3. With it the space is drawn in parallel projection, and what is behind it is dimmed;
      without it, in three-dimensional axes.
    """

    lines: Float[np.ndarray, "t m d"]
    body: "Body | None" = None


class Body(NamedTuple):
    """A convex body. `outline(page)`: that of its projection onto the plane of two orthonormal columns `[3, 2]`, points `[t, 2]`.
    `normal(points)`: the outer normals at points `[..., 3]` of its boundary, of any length."""

    outline: Callable[[Float[np.ndarray, "3 2"]], Float[np.ndarray, "t 2"]]
    normal: Callable[[Float[np.ndarray, "... 3"]], Float[np.ndarray, "... 3"]]


def ellipsoid_surface(axes: tuple[float, ...]) -> Surface | None:
    """The ellipse, or the ellipsoid with its meridians and parallels every 30 degrees; `None` in more dimensions."""
    turn = np.linspace(0, 2 * np.pi, 181)
    c, s = np.cos(turn), np.sin(turn)
    if len(axes) == 2:
        return Surface((np.stack([c, s], axis=1) * axes)[:, None])
    if len(axes) > 3:
        return None
    meridians = [np.stack([c * np.cos(a), c * np.sin(a), s], axis=1) for a in np.arange(6) * np.pi / 6]
    heights = np.sin(np.arange(-2, 3) * np.pi / 6)
    parallels = [np.stack([c * np.sqrt(1 - h**2), s * np.sqrt(1 - h**2), 0 * c + h], axis=1) for h in heights]

    def outline(page: np.ndarray) -> np.ndarray:
        # The farthest point of the body in the direction u of the page is M u / <u, M u>^(1/2), with M the squared axes on the page.
        squares = page.T @ (np.square(axes)[:, None] * page)
        far = squares @ np.stack([c, s])
        return (far / np.sqrt(c * far[0] + s * far[1])).T

    return Surface(np.stack(meridians + parallels, axis=1) * axes, Body(outline, lambda points: points / np.square(axes)))
