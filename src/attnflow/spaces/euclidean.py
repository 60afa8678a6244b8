r"""$\mathbb{R}^d$."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow.numerics.rows import norm
from attnflow.spaces.base import Space


class Euclidean(Space):
    r"""$\mathbb{R}^d$ with its usual distance."""

    flat = True

    def project(self, x: Float[Array, "*n d"], v: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        return v

    def nearest(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        return x

    def exp(self, x: Float[Array, "*n d"], v: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        return x + v

    def distance(self, x: Float[Array, "*n d"], y: Float[Array, "*n d"]) -> Float[Array, "*n"]:
        return norm(x - y)[..., 0]

    def check(self, points: Float[Array, "n d"]) -> None:
        return None

    def place(self, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        return points

    def dimension(self, dim: int) -> int:
        return dim

    def tangents(self, points: Float[Array, "n d"]) -> Float[Array, "n d d"]:
        return jnp.broadcast_to(jnp.eye(points.shape[1], dtype=points.dtype)[None], (*points.shape, points.shape[1]))

    def __str__(self) -> str:
        return "the Euclidean space"
