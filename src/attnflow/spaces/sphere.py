"""The sphere of any radius in R^d."""

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._types import Scalar
from attnflow.numerics.arrays import constant, known, one_program
from attnflow.numerics.rows import dot, norm
from attnflow.spaces.base import OFF, Space
from attnflow.spaces.surface import Surface, ellipsoid_surface


class Sphere(Space):
    r"""The sphere $|x| = r$ about 0, by default the unit sphere: $P_x v = v - \langle x, v\rangle\, x / r^2$, geodesics are great circles.

    **Arguments:** `radius`, the number $r > 0$. `RMSNorm` without a gain puts tokens on the sphere of radius $\sqrt{d}$.
    """

    radius: float = eqx.field(static=True)  # pyright: ignore[reportIncompatibleVariableOverride]
    compact = True

    def __init__(self, radius: Scalar = 1.0):
        self.radius = constant("radius", radius)

    @one_program
    def project(self, x: Float[Array, "*n d"], v: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        return v - self._in_radii(self._in_radii(dot(x, v)))[..., None] * x

    @one_program
    def nearest(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        return self._times_radius(x / norm(x))

    @one_program
    def exp(self, x: Float[Array, "*n d"], v: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        angle = self._in_radii(norm(v))
        return self.nearest(jnp.cos(angle) * x + jnp.sinc(angle / jnp.pi) * v)

    @one_program
    def distance(self, x: Float[Array, "*n d"], y: Float[Array, "*n d"]) -> Float[Array, "*n"]:
        # arccos<x, y> loses half the digits near 0 and pi; this form keeps them.
        return self._times_radius(2 * jnp.arctan2(norm(x - y), norm(x + y))[..., 0])

    def check(self, points: Float[Array, "n d"]) -> None:
        if points.shape[1] < 2:
            raise ValueError(f"the sphere needs points in R^d with d >= 2, got d = {points.shape[1]}")
        if known(points):
            radii = np.linalg.norm(np.asarray(points, dtype=np.float64), axis=1)
            row = int(np.abs(radii - self.radius).argmax())
            if not abs(radii[row] / self.radius - 1) <= OFF:
                name, made = ("unit sphere", "") if self.radius == 1 else (f"sphere of radius {self.radius:.8g}", f"{self.radius!r}")
                raise ValueError(
                    f"points must lie on the {name}, got norm {radii[row]:.8g} in row {row}; "
                    f"normalize them with af.Sphere({made}).nearest(points)"
                )

    def place(self, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        lengths = np.linalg.norm(points, axis=1, keepdims=True)
        return np.where(lengths > 0, self.radius * points / np.where(lengths > 0, lengths, 1), points)

    def dimension(self, dim: int) -> int:
        return dim - 1

    def chord(self, distance: float) -> float:
        return 2 * self.radius * math.sin(min(distance / self.radius, math.pi) / 2)

    def surface(self, dim: int) -> Surface | None:
        return ellipsoid_surface((self.radius,) * dim)

    def __str__(self) -> str:
        return "the Sphere" if self.radius == 1 else f"the Sphere of radius {self.radius:.8g}"

    # On the unit sphere nothing is multiplied, so that its programs are as small as they can be.
    def _in_radii(self, lengths: Array) -> Array:
        return lengths if self.radius == 1 else lengths / self.radius

    def _times_radius(self, numbers: Array) -> Array:
        return numbers if self.radius == 1 else self.radius * numbers
