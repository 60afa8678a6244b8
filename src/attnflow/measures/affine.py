"""Affine maps of R^d: the velocities under which a Gaussian stays Gaussian."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._arrays import rows, stored
from attnflow._check import instance


class Affine(eqx.Module):
    r"""$x \mapsto M x + b$ on rows of points."""

    matrix: Float[Array, "d d"]
    offset: Float[Array, " d"]

    def __check_init__(self):
        stored("matrix", self.matrix, "d d")
        stored("offset", self.offset, "d")
        if self.matrix.shape != 2 * self.offset.shape:
            raise ValueError(f"matrix [d, d] and offset [d] must agree, got {list(self.matrix.shape)} and {list(self.offset.shape)}")

    def __call__(self, x: Float[Array, "m d"]) -> Float[Array, "m d"]:
        x = rows("x", x, len(self.offset))
        return x @ self.matrix.T + self.offset[None]

    def __add__(self, other: "Affine") -> "Affine":
        instance("other", other, Affine, "an Affine map")
        return Affine(self.matrix + other.matrix, self.offset + other.offset)

    def scaled(self, factor: float | Float[Array, ""]) -> "Affine":
        r"""$x \mapsto c\,(M x + b)$ with the `factor` $c$."""
        return Affine(factor * self.matrix, factor * self.offset)

    def after(self, matrix: Float[Array, "d d"]) -> "Affine":
        r"""$x \mapsto B (M x + b)$ with the `matrix` $B$."""
        return Affine(matrix @ self.matrix, matrix @ self.offset)

    def step(self, size: float | Float[Array, ""]) -> "Affine":
        r"""The residual map $x \mapsto x + h\,(M x + b)$ with the `size` $h$."""
        return Affine(jnp.eye(len(self.offset), dtype=self.offset.dtype) + size * self.matrix, size * self.offset)
