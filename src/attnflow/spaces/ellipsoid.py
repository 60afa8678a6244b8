r"""The ellipsoid with axes along those of $\mathbb{R}^d$: where RMS normalization with a gain puts tokens."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._check import refusal
from attnflow._types import ArrayLike
from attnflow.numerics.arrays import constant, known, one_program
from attnflow.numerics.rows import as_row, dot, norm
from attnflow.spaces.base import OFF, Space
from attnflow.spaces.closest import closest
from attnflow.spaces.shortest import arc, shortest
from attnflow.spaces.surface import Surface, ellipsoid_surface

# Runge-Kutta steps along a geodesic.
_STEPS = 512


class Ellipsoid(Space):
    r"""$\{x : \sum_i (x_i / a_i)^2 = 1\}$, with the normal $n_i = x_i / a_i^2$ at $x$.

    **Arguments:** `axes`, the numbers $a_1, \dots, a_d > 0$, $d \ge 2$. `RMSNorm(gain, epsilon=0)` maps to the one with the axes
    $a_i = \sqrt{d}\, |g_i|$.

    - `nearest` is exact up to round-off, also at the center and far away; where several points are nearest, it is one of them.
    - `exp` is by 512 Runge-Kutta steps of order four: its error is below $10^{-12} (\kappa |v|)^5 / \kappa$, $\kappa$ the largest
      curvature $\max a / \min a^2$, plus round-off.
    - `distance` is on an ellipse the arc by a Gauss rule; else the length of the shortest path that descent finds among polynomials of
      degree 24, some milliseconds per pair. Up to a distance of the shortest axis its error is $10^{-8}$ if the axes are within a factor of
      5; at all distances, as measured on thousands of geodesics, it is $10^{-6}$ for axes within a factor of 2, $10^{-4}$ within 5, and
      $2 \cdot 10^{-2}$ within 10. Only first derivatives are right.
    """

    axes: tuple[float, ...] = eqx.field(static=True)
    compact = True

    def __init__(self, axes: ArrayLike):
        if (
            isinstance(axes, str)
            or not isinstance(axes, Sequence | np.ndarray | jax.Array)
            or getattr(axes, "ndim", 1) != 1
            or len(axes) < 2
        ):
            raise ValueError(refusal("axes", "at least two positive numbers, one per coordinate", axes))
        self.axes = tuple(constant(f"axes[{i}]", a) for i, a in enumerate(axes))

    @one_program
    def project(self, x: Float[Array, "*n d"], v: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        n = self._normal(x)
        return v - (dot(n, v) / dot(n, n))[..., None] * n

    @one_program
    def nearest(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        return closest(self.axes, x)[0]

    @one_program
    def exp(self, x: Float[Array, "*n d"], v: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        r"""By $x'' = -\frac{\langle v, Dv\rangle}{|Dx|^2} Dx$, $D = \mathrm{diag}(a_i^{-2})$, the acceleration normal to the surface."""
        h = 1 / _STEPS

        def force(x: Array, v: Array) -> Array:
            n = self._normal(x)
            return -(dot(v, self._normal(v)) / dot(n, n))[..., None] * n

        def step(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
            x, v = carry
            f1 = force(x, v)
            v2 = v + h / 2 * f1
            f2 = force(x + h / 2 * v, v2)
            v3 = v + h / 2 * f2
            f3 = force(x + h / 2 * v2, v3)
            v4 = v + h * f3
            f4 = force(x + h * v3, v4)
            x = x + h / 6 * (v + 2 * v2 + 2 * v3 + v4)
            x = x / norm(x / as_row(self.axes, x))
            return (x, self.project(x, v + h / 6 * (f1 + 2 * f2 + 2 * f3 + f4))), None

        return jax.lax.scan(step, (x, v), None, length=_STEPS)[0][0]

    @one_program
    def distance(self, x: Float[Array, "*n d"], y: Float[Array, "*n d"]) -> Float[Array, "*n"]:
        x, y = jnp.broadcast_arrays(x, y)
        rows = x.reshape(-1, x.shape[-1]), y.reshape(-1, x.shape[-1])
        found = arc((self.axes[0], self.axes[1]), *rows) if len(self.axes) == 2 else shortest(self.axes, *rows)
        return found.reshape(x.shape[:-1])

    def check(self, points: Float[Array, "n d"]) -> None:
        d = len(self.axes)
        if points.shape[1] != d:
            raise ValueError(f"an ellipsoid with {d} axes has points in R^{d}, got d = {points.shape[1]}; give one axis per coordinate")
        if known(points):
            level = np.linalg.norm(np.asarray(points, np.float64) / self.axes, axis=1)
            row = int(np.abs(level - 1).argmax())
            if not abs(level[row] - 1) <= OFF:
                raise ValueError(
                    f"points must lie on the ellipsoid, where |x / axes| = 1, got {level[row]:.8g} in row {row}; "
                    "bring them there with space.nearest(points)"
                )

    def dimension(self, dim: int) -> int:
        return dim - 1

    def surface(self, dim: int) -> Surface | None:
        return ellipsoid_surface(self.axes)

    def __str__(self) -> str:
        few = ", ".join(f"{a:.4g}" for a in self.axes[:4]) + (", ..." if len(self.axes) > 4 else "")
        return f"the Ellipsoid with axes ({few})"

    def _normal(self, x: Array) -> Array:
        """The normal, scaled so that on the shortest axis it is x."""
        return x * as_row((min(self.axes) / np.asarray(self.axes)) ** 2, x)
