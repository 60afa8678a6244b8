"""What a grid is made over: intervals, the circle, the order of tokens, latitudes of a sphere, the sphere S^2."""

import dataclasses
import math

import numpy as np
from jaxtyping import Array, Float

from attnflow._arrays import known
from attnflow._check import count, refusal


@dataclasses.dataclass(frozen=True)
class Interval:
    """`cells` equal cells of [low, high] on the line, with walls that nothing passes. A wide one is free space."""

    low: float | int
    high: float | int
    cells: int

    def __post_init__(self):
        if not _real("low", self.low) < _real("high", self.high):
            raise ValueError(f"an Interval goes from low to high, got {self.low} and {self.high}")
        _enough(self, 2)

    @property
    def width(self) -> float:
        """The length of a cell."""
        return (self.high - self.low) / self.cells

    @property
    def centres(self) -> np.ndarray:
        return self.low + self.width * (np.arange(self.cells) + 0.5)


@dataclasses.dataclass(frozen=True)
class Circle:
    r"""`cells` equal arcs of the unit circle in $\mathbb{R}^2$; densities are by arc length."""

    cells: int

    def __post_init__(self):
        _enough(self, 4)

    @property
    def width(self) -> float:
        return 2 * math.pi / self.cells

    @property
    def centres(self) -> np.ndarray:
        r"""The angles of the middles of the cells, from $0$ to $2\pi$."""
        return self.width * (np.arange(self.cells) + 0.5)


@dataclasses.dataclass(frozen=True)
class Order:
    r"""`cells` equal cells of the order of tokens in their sequence, $[0, L]$ with $L$ the `length`, along which nothing moves: only masks
    read it.

    Tokens with `order="fraction"` lie in $[0, 1]$, those at the positions $0, \dots, n - 1$ in $[0, n]$.
    """

    cells: int
    length: float | int = 1

    def __post_init__(self):
        if not _real("length", self.length) > 0:
            raise ValueError(f"the length of an Order must be positive and finite, got {self.length}")
        _enough(self, 1)

    @property
    def width(self) -> float:
        return self.length / self.cells

    @property
    def centres(self) -> np.ndarray:
        return self.width * (np.arange(self.cells) + 0.5)

    @property
    def edges(self) -> np.ndarray:
        """Where cells begin and end; those at whole numbers exactly there."""
        return np.arange(self.cells + 1) * self.length / self.cells

    def check(self, order: Float[Array, " m"]) -> None:
        """Raise if tokens or queries lie outside."""
        if not known(order):
            return
        low, high = (float(bound(np.asarray(order))) for bound in (np.min, np.max))
        # A length that is not exact in single precision may be passed by its round-off.
        if low < 0 or high > self.length * (1 + 1e-6):
            raise ValueError(
                f"order must lie in [0, {self.length:g}], that of the grid, got {low:g} to {high:g}; give af.Particles(order='fraction'), "
                "or af.Order(cells, length=n) for the positions 0, 1, ..., n - 1"
            )


@dataclasses.dataclass(frozen=True)
class Zonal:
    r"""Laws on the sphere $S^{d-1}$ of $\mathbb{R}^d$ that are symmetric about the first axis: `cells` equal bands of the angle to it.

    A density is by surface area, a function of $x_1 = \cos\theta$, $\theta$ the angle. `nodes` are those of the quadrature around a band.
    """

    dim: int
    cells: int
    nodes: int = 32

    def __post_init__(self):
        if count("dim", self.dim) < 3:
            raise ValueError(f"a Zonal axis is for spheres in R^dim with dim >= 3, got {self.dim}; use Circle for dim = 2")
        count("nodes", self.nodes, 2)
        _enough(self, 4)

    @property
    def width(self) -> float:
        return math.pi / self.cells

    @property
    def centres(self) -> np.ndarray:
        """The angles to the first axis."""
        return self.width * (np.arange(self.cells) + 0.5)


@dataclasses.dataclass(frozen=True)
class Icosphere:
    """The sphere $S^2$ in $10 f^2 + 2$ nearly equal cells, $f$ the `frequency`: the Voronoi cells of a subdivided icosahedron; densities
    are by area."""

    frequency: int

    def __post_init__(self):
        count("frequency", self.frequency, 2)

    @property
    def cells(self) -> int:
        return 10 * self.frequency**2 + 2

    @property
    def width(self) -> float:
        """The side of a square of the mean area of a cell."""
        return math.sqrt(4 * math.pi / self.cells)


Axis = Interval | Circle | Order | Zonal | Icosphere


def _real(name: str, value: float | int) -> float | int:
    if not isinstance(value, float | int | np.number) or not math.isfinite(value):
        raise ValueError(refusal(name, "a finite number", value))
    return value


def _enough(axis: Axis, least: int) -> None:
    if count("cells", axis.cells, 0) < least:
        raise ValueError(f"a grid over {type(axis).__name__} needs at least {least} cells, got {axis.cells}")
