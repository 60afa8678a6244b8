"""The unit sphere S^{d-1} in R^d."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._arrays import known, one_program
from attnflow._rows import dot
from attnflow.spaces.base import Space
from attnflow.spaces.norm import norm

# Data that went through single precision is still on the sphere; it is normalised again. What is farther off is a mistake.
_OFF = 1e-5


class Sphere(Space):
    r"""The unit sphere: $P_x v = v - \langle x, v\rangle\, x$, geodesics are great circles."""

    compact = True

    @one_program
    def project(self, x: Float[Array, "*n d"], v: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        return v - dot(x, v)[..., None] * x

    @one_program
    def nearest(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        return x / norm(x)

    @one_program
    def exp(self, x: Float[Array, "*n d"], v: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        angle = norm(v)
        return self.nearest(jnp.cos(angle) * x + jnp.sinc(angle / jnp.pi) * v)

    @one_program
    def distance(self, x: Float[Array, "*n d"], y: Float[Array, "*n d"]) -> Float[Array, "*n"]:
        # arccos<x, y> loses half the digits near 0 and pi; this form keeps them.
        return 2 * jnp.arctan2(norm(x - y), norm(x + y))[..., 0]

    def check(self, points: Float[Array, "n d"]) -> None:
        if points.shape[1] < 2:
            raise ValueError(f"the sphere needs points in R^d with d >= 2, got d = {points.shape[1]}")
        if known(points):
            radii = np.linalg.norm(np.asarray(points, dtype=np.float64), axis=1)
            row = int(np.abs(radii - 1).argmax())
            if abs(radii[row] - 1) > _OFF:
                raise ValueError(
                    f"points must lie on the unit sphere, got norm {radii[row]:.8g} in row {row}; "
                    "normalise them with af.Sphere().nearest(points)"
                )
