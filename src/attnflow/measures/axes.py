"""What a grid is made over: intervals, the circle, the order of tokens, latitudes of a sphere, the sphere S^2."""

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True)
class Interval:
    """`cells` equal cells of [low, high] on the line, with walls that nothing passes. A wide one is free space."""

    low: float | int
    high: float | int
    cells: int

    def __post_init__(self):
        if not self.low < self.high:
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
    """`cells` equal cells of the order $[0, 1]$ of tokens in their sequence, along which nothing moves: only masks read it."""

    cells: int

    def __post_init__(self):
        _enough(self, 1)

    @property
    def width(self) -> float:
        return 1 / self.cells

    @property
    def centres(self) -> np.ndarray:
        return self.width * (np.arange(self.cells) + 0.5)


@dataclasses.dataclass(frozen=True)
class Zonal:
    r"""Laws on the sphere $S^{d-1}$ of $\mathbb{R}^d$ that are symmetric about the first axis: `cells` equal bands of the angle to it.

    A density is by surface area, a function of $x_1 = \cos\theta$, $\theta$ the angle. `nodes` are those of the quadrature around a band.
    """

    dim: int
    cells: int
    nodes: int = 32

    def __post_init__(self):
        if self.dim < 3:
            raise ValueError(f"a Zonal axis is for spheres in R^dim with dim >= 3, got {self.dim}; use Circle for dim = 2")
        if self.nodes < 2:
            raise ValueError(f"nodes must be at least 2, got {self.nodes}")
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
        if self.frequency < 2:
            raise ValueError(f"frequency must be at least 2, got {self.frequency}")

    @property
    def cells(self) -> int:
        return 10 * self.frequency**2 + 2

    @property
    def width(self) -> float:
        """The side of a square of the mean area of a cell."""
        return math.sqrt(4 * math.pi / self.cells)


Axis = Interval | Circle | Order | Zonal | Icosphere


def _enough(axis: Axis, least: int) -> None:
    if axis.cells < least:
        raise ValueError(f"a grid over {type(axis).__name__} needs at least {least} cells, got {axis.cells}")
