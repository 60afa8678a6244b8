"""Rows of equal cells: on the line, on the circle, and along the order of tokens."""

import dataclasses
import math
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attnflow._check import refusal
from attnflow.measures.grid.axes import EvenAxis, Resolution, enough
from attnflow.numerics.arrays import known
from attnflow.numerics.rows import array_namespace
from attnflow.spaces import Sphere


@dataclasses.dataclass(frozen=True)
class Interval(EvenAxis):
    """`cells` equal cells of [low, high] on the line, with walls that nothing passes. A wide one is free space."""

    low: float | int = dataclasses.field()
    high: float | int = dataclasses.field()
    cells: int = dataclasses.field()

    def __post_init__(self) -> None:
        if not _real("low", self.low) < _real("high", self.high):
            raise ValueError(f"an Interval goes from low to high, got {self.low} and {self.high}")
        enough(self, 2)


@dataclasses.dataclass(frozen=True)
class Circle(EvenAxis):
    r"""`cells` equal arcs of the unit circle in $\mathbb{R}^2$; densities are per arc length, `centers` are angles from $0$ to $2\pi$."""

    cells: int
    names: ClassVar[tuple[str, ...]] = ("angle",)
    space: ClassVar[Sphere] = Sphere()
    dim = 2
    coordinate: ClassVar[str | None] = "angle"
    periodic = True
    high = 2 * math.pi

    def __post_init__(self) -> None:
        enough(self, 4)

    def locate(self, points: Float[Any, "m 2"]) -> Any:
        return array_namespace(points).arctan2(points[:, 1], points[:, 0]) % (2 * math.pi)

    def chart(self, coordinate: Float[Any, " m"]) -> Any:
        xp = array_namespace(coordinate)
        return xp.stack([xp.cos(coordinate), xp.sin(coordinate)], axis=1)

    def along(self, coordinate: Float[np.ndarray, " m"]) -> np.ndarray:
        return np.stack([-np.sin(coordinate), np.cos(coordinate)], axis=1)


@dataclasses.dataclass(frozen=True)
class Order(EvenAxis):
    r"""`cells` equal cells of the order of tokens in their sequence, $[0, L]$ with $L$ the `length`, along which nothing moves: only masks
    read it.

    Tokens with `order="fraction"` lie in $[0, 1]$, those at the positions $0, \dots, n - 1$ in $[0, n]$.
    """

    cells: int
    length: float | int = 1
    names: ClassVar[tuple[str, ...]] = ("order",)
    dim = 0
    coordinate: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        if not _real("length", self.length) > 0:
            raise ValueError(f"the length of an Order must be positive and finite, got {self.length}")
        enough(self, 1)

    @property
    def high(self) -> float | int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.length

    @property
    def resolution(self) -> tuple[Resolution, ...]:
        return ()

    @property
    def edges(self) -> np.ndarray:
        """Where cells begin and end; those at whole numbers exactly there."""
        return np.arange(self.cells + 1) * self.length / self.cells

    def shares(self, number: Float[Array, " m"]) -> list[tuple[Int[Array, " m"], Any]]:
        """A token belongs to its own cell."""
        return [(jnp.searchsorted(jnp.asarray(self.edges[1:-1], number.dtype), number, side="right"), 1)]

    def check(self, points: Float[Any, " m"] | Float[Any, "m 1"]) -> None:
        if not known(points):
            return
        low, high = (float(bound(np.asarray(points))) for bound in (np.min, np.max))
        # A length that is not exact in single precision may be passed by its round-off.
        if low < 0 or high > self.length * (1 + 1e-6):
            raise ValueError(
                f"order must lie in [0, {self.length:g}], that of the grid, got {low:g} to {high:g}; give af.Particles(order='fraction'), "
                "or af.Order(cells, length=n) for the positions 0, 1, ..., n - 1"
            )


def _real(name: str, value: float | int) -> float | int:
    if not isinstance(value, float | int | np.number) or not math.isfinite(value):
        raise ValueError(refusal(name, "a finite number", value))
    return value
