r"""$\mathbb{R}^d$."""

from jaxtyping import Array, Float

from attnflow.spaces.base import Space
from attnflow.spaces.norm import norm


class Euclidean(Space):
    r"""$\mathbb{R}^d$ with its usual distance."""

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
