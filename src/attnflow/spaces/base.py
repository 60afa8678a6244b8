"""What a space is: five operations on rows of points."""

import abc
from typing import ClassVar

import equinox as eqx
from jaxtyping import Array, Float


class Space(eqx.Module):
    """A submanifold of R^d. Points `x` and vectors `v` are rows, `[..., d]`. On a `compact` one nothing can blow up."""

    compact: ClassVar[bool] = False

    @abc.abstractmethod
    def project(self, x: Float[Array, "*n d"], v: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """The orthogonal projection of `v` to the tangent space at `x`."""

    @abc.abstractmethod
    def nearest(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """The point of the space closest to `x`."""

    @abc.abstractmethod
    def exp(self, x: Float[Array, "*n d"], v: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """The end of the geodesic that leaves `x` with tangent velocity `v`, after unit time."""

    @abc.abstractmethod
    def distance(self, x: Float[Array, "*n d"], y: Float[Array, "*n d"]) -> Float[Array, "*n"]:
        """The geodesic distance, row by row."""

    @abc.abstractmethod
    def check(self, points: Float[Array, "n d"]) -> None:
        """Raise a `ValueError` if a point with a known value is off the space."""

    def retract(self, x: Float[Array, "*n d"], v: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """The first-order stand-in for `exp`: step in the ambient space, then return to the nearest point."""
        return self.nearest(x + v)
