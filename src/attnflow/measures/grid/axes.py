"""What a grid is made over: the contract of an axis."""

import abc
import dataclasses
import json
from typing import Any, ClassVar, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attnflow._check import count
from attnflow._types import Key
from attnflow.measures.grid.links import Links, Rows
from attnflow.measures.velocity import Velocity
from attnflow.numerics.arrays import known
from attnflow.spaces import Euclidean, Space


class Parts(NamedTuple):
    """The cells of an axis and the faces between them, on the host: see `Mesh`."""

    points: np.ndarray
    volumes: np.ndarray
    links: Links
    areas: np.ndarray
    gaps: np.ndarray
    tangents: np.ndarray


class Resolution(NamedTuple):
    """A `gap` that no kernel may be narrower than, what it is, and the number that makes it smaller, such as `"{} cells"` and its value."""

    gap: float
    what: str
    unit: str
    number: int


class Axis(abc.ABC):
    r"""An axis of a grid: a row of cells on the line with walls at both ends, unless a subclass says otherwise.

    A subclass is a frozen dataclass of numbers, and must give

    - `cells`: how many there are, a field or a property;
    - `edges`: where they begin and end, rising numbers `[cells + 1]` on the host.

    This is complete: `Grid` takes it wherever it takes an `Interval`. Class variables that have defaults:

    - `names` of the axis in stored arrays, for the first and the second such axis of a grid.
    - `space`, and `dim`, how many coordinates a point on it has: 1 on the line; 0 if nothing moves along it, as along the order of tokens
      (`Order`, and subclasses of it).
    - `coordinate`: what the number that gives a point on it is called; `None` if there is no such number.
    - `regular`: equal cells, on the line or the circle, over which sums are fast; `periodic`: the last cell lies before the first.
    - `bands`: a cell is the set of all rotations of its middle about the first axis of the space, and densities are symmetric about it.

    On a curve it also gives `locate`, `chart` and `along`, from points to numbers, back, and the tangent; in a curved space `volumes` and
    `areas`. Cells that do not lie in a row have no `edges`, and give `parts`, `locate`, `shares` and `sample`: see `Icosphere`.

    A file holds the name of the class and its numbers; `axes_from` makes axes of them.
    """

    cells: int
    names: ClassVar[tuple[str, ...]] = ("x", "y")
    space: ClassVar[Space] = Euclidean()
    dim: int = 1
    coordinate: ClassVar[str | None] = "coordinate"
    regular: ClassVar[bool] = False
    periodic: ClassVar[bool] = False
    bands: ClassVar[bool] = False
    kinds: ClassVar[dict[str, type["Axis"]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if Axis.kinds.setdefault(cls.__name__, cls).__module__ != cls.__module__:
            raise TypeError(
                f"there is already an axis called {cls.__name__}, in {Axis.kinds[cls.__name__].__module__}; choose another name"
            )
        Axis.kinds[cls.__name__] = cls

    @property
    @abc.abstractmethod
    def edges(self) -> np.ndarray | None:
        """Where cells begin and end, `[cells + 1]`; `None` if they do not lie in a row."""

    @property
    def moves(self) -> bool:
        """Whether tokens move along it."""
        return self.dim > 0

    @property
    def centers(self) -> np.ndarray:
        """The middles of the cells."""
        assert self.edges is not None
        return (self.edges[:-1] + self.edges[1:]) / 2

    @property
    def widths(self) -> np.ndarray:
        """The lengths of the cells."""
        assert self.edges is not None
        return np.diff(self.edges)

    @property
    def width(self) -> float:
        """The length of the longest cell."""
        return float(self.widths.max())

    @property
    def gaps(self) -> np.ndarray:
        """From middle to middle across each face; at the ends, where nothing passes, any positive numbers."""
        return np.concatenate([self.widths[:1], np.diff(self.centers), self.widths[-1:]])

    @property
    def volumes(self) -> np.ndarray:
        """The volumes of the cells, which masses are divided by for a density."""
        return self.widths

    @property
    def areas(self) -> np.ndarray:
        """The areas of the faces at the edges."""
        return np.ones(self.cells + 1)

    @property
    def resolution(self) -> tuple[Resolution, ...]:
        """What a kernel must be wider than."""
        return (Resolution(self.width, "a cell", "{} cells", self.cells),)

    def locate(self, points: Float[Any, "m d"]) -> Any:
        """The number along the axis of each point, `[m]`: by NumPy if `points` are on the host."""
        return points[:, 0]

    def chart(self, coordinate: Float[Any, " m"]) -> Any:
        """The points with these numbers along the axis, `[m, d]`."""
        return coordinate[:, None]

    def along(self, coordinate: Float[np.ndarray, " m"]) -> np.ndarray:
        """The unit vectors in which the coordinate grows, `[m, d]`."""
        return np.ones((len(coordinate), 1))

    def parts(self) -> Parts:
        """The cells and the `cells + 1` faces, of which the first and the last are walls or, on a periodic axis, the same face."""
        ends = np.arange(-1, self.cells + 1)
        ends = ends % self.cells if self.periodic else np.clip(ends, 0, self.cells - 1)
        along, passed = self.along(self.centers), np.diff(ends) != 0
        tangents = np.stack([along[ends[:-1]], along[ends[1:]]], axis=1)
        links = Rows((self.cells,), (0,), circle=self.periodic)
        return Parts(self.chart(self.centers), self.volumes, links, self.areas * passed, self.gaps, tangents)

    def shares(self, number: Float[Array, " m"]) -> list[tuple[Int[Array, " m"], Any]]:
        """The cells that take the mass of a token at each number along the axis, and their shares: the two with the nearest middles, in
        proportion (cloud in cell), which keeps the mean. What would leave through a wall stays in front of it."""
        at = self._place(number)
        at = at if self.periodic else jnp.clip(at, 0, self.cells - 1)
        below = jnp.floor(at)
        part, cell = at - below, below.astype(int)
        after = (cell + 1) % self.cells if self.periodic else jnp.minimum(cell + 1, self.cells - 1)
        return [(cell % self.cells, 1 - part), (after, part)]

    def _place(self, number: Float[Array, " m"]) -> Float[Array, " m"]:
        """The number along the axis counted in cells, 0 at the first middle."""
        return jnp.interp(number, jnp.asarray(self.centers, number.dtype), jnp.arange(self.cells, dtype=number.dtype))

    def within(self, cell: Int[Array, " n"], part: Float[Array, " n"]) -> Float[Array, " n"]:
        """The number along the axis before which a `part` of a cell lies."""
        edges = jnp.asarray(self.edges, part.dtype)
        return edges[cell] + part * (edges[cell + 1] - edges[cell])

    def sample(self, cell: Int[Array, " n"], part: Float[Array, " n"], *, key: Key) -> Float[Array, "n d"]:
        """A point in each cell, from a uniform number in [0, 1) and, if that is not enough, a key."""
        return self.chart(self.within(cell, part))

    def check(self, points: Float[Any, "m d"]) -> None:
        """Raise if a token or query that is known lies outside."""
        if self.dim != 1 or not known(points):
            return
        assert self.edges is not None
        (low, high), numbers = self.edges[[0, -1]], self.locate(np.asarray(points))
        if numbers.min() < low or numbers.max() > high:
            name = type(self).__name__
            raise ValueError(f"points must lie in [{low:g}, {high:g}], got {numbers.min():.6g} to {numbers.max():.6g}; widen the {name}")

    def keys(self, points: Float[Array, "n d"], log_weights: Float[Array, " n"]) -> tuple[Float[Array, "k d"], Float[Array, " k"]]:
        """The cells as weighted points, for an integral over them."""
        return points, log_weights

    def around(self, velocity: Velocity) -> Velocity:
        """An average over `keys`, as it is at any point of the space."""
        return velocity

    def symmetric(self, moment: Float[Array, " d"] | Float[Array, "d d"]) -> Any:
        """A mean or a covariance of the middles of cells, averaged over the points of each cell."""
        return moment

    def check_law(self, law: Any) -> None:
        """Raise if a law would not keep the symmetry of the cells."""
        return


def axes_to(axes: tuple[Axis, ...]) -> str:
    """Axes as a file describes them: the name of each and its numbers."""
    return json.dumps([[type(axis).__name__, dataclasses.asdict(cast(Any, axis))] for axis in axes])


def axes_from(text: str) -> list[Axis]:
    """The axes that `axes_to` described."""
    return [Axis.kinds[name](**numbers) for name, numbers in json.loads(text)]


class EvenAxis(Axis):
    """`cells` of one width from `low` to `high`."""

    low: float | int = 0
    high: float | int
    regular = True

    @property
    def width(self) -> float:
        """The length of a cell."""
        return (self.high - self.low) / self.cells

    @property
    def edges(self) -> np.ndarray:
        return np.linspace(self.low, self.high, self.cells + 1)

    @property
    def centers(self) -> np.ndarray:
        return self.low + self.width * (np.arange(self.cells) + 0.5)

    @property
    def widths(self) -> np.ndarray:
        return np.full(self.cells, self.width)

    @property
    def gaps(self) -> np.ndarray:
        return np.full(self.cells + 1, self.width)

    def _place(self, number: Float[Array, " m"]) -> Float[Array, " m"]:
        return (number - self.low) / self.width - 0.5


def enough(axis: Axis, least: int) -> None:
    """Raise unless an axis has this many cells."""
    if count("cells", axis.cells, 0) < least:
        raise ValueError(f"a grid over {type(axis).__name__} needs at least {least} cells, got {axis.cells}")
