"""The sphere S^2 in nearly equal cells: Voronoi cells around the points of a subdivided icosahedron, made centroidal by Lloyd's method."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attnflow._check import count
from attnflow._types import Key
from attnflow.measures.grid.axes import Axis, Parts, Resolution
from attnflow.measures.grid.links import listed
from attnflow.numerics.arrays import known
from attnflow.spaces import Sphere

# Rounds of Lloyd's method: enough that the middle of a cell and of each face are where a second-order scheme wants them.
_ROUNDS = 20


@dataclasses.dataclass(frozen=True)
class Icosphere(Axis):
    """The sphere $S^2$ in $10 f^2 + 2$ nearly equal cells, $f$ the `frequency`: the Voronoi cells of a subdivided icosahedron; densities
    are per area."""

    frequency: int
    names: ClassVar[tuple[str, ...]] = ("cell",)
    space: ClassVar[Sphere] = Sphere()
    dim = 3
    coordinate: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        count("frequency", self.frequency, 2)

    @property
    def cells(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return 10 * self.frequency**2 + 2

    @property
    def edges(self) -> None:
        return None

    @property
    def width(self) -> float:
        """The side of a square of the mean area of a cell."""
        return math.sqrt(4 * math.pi / self.cells)

    @property
    def resolution(self) -> tuple[Resolution, ...]:
        return (Resolution(self.width, "a cell", "frequency {}", self.frequency),)

    def parts(self) -> Parts:
        points, areas, lines, *rest = icosphere(self.frequency)
        return Parts(points, areas, listed(lines, len(points)), *rest)

    def locate(self, points: Float[Any, "m 3"]) -> np.ndarray:
        """The cell that each point lies in."""
        from scipy.spatial import KDTree

        if not known(points):
            raise ValueError("points find their cells on an Icosphere outside jit and grad only")
        return np.asarray(KDTree(icosphere(self.frequency)[0]).query(np.asarray(points))[1])

    def shares(self, number: Int[Array, " m"]) -> list[tuple[Int[Array, " m"], Any]]:
        return [(number, 1)]

    def sample(self, cell: Int[Array, " n"], part: Float[Array, " n"], *, key: Key) -> Float[Array, "n 3"]:
        """A point of a disk of the same area."""
        middle, area = (jnp.asarray(values, part.dtype)[cell] for values in icosphere(self.frequency)[:2])
        direction = self.space.nearest(self.space.project(middle, jax.random.normal(key, middle.shape, part.dtype)))
        return self.space.exp(middle, jnp.sqrt(area / jnp.pi * part)[:, None] * direction)


@functools.lru_cache(maxsize=4)
def icosphere(frequency: int) -> tuple[np.ndarray, ...]:
    """Points, areas of cells, the cells along the line across each face, lengths of faces, gaps, and tangents: see `Mesh`."""
    points = _subdivided(frequency)
    triangles = _triangles(points)
    for _ in range(_ROUNDS):
        points = _centroids(points, triangles)
    triangles = _triangles(points)
    centers = _circumcenters(points, triangles)
    left, right, first, second = _edges(triangles)
    lengths = _angle(centers[first], centers[second])
    tangents = np.stack([_towards(points[left], points[right]), -_towards(points[right], points[left])], axis=1)
    areas = np.zeros(len(points))
    for i, half in _halves(points, triangles):
        np.add.at(areas, i, np.abs(_area(points[i], half, centers)))
    lines = np.stack([_opposite(points, left, right), left, right, _opposite(points, right, left)], axis=1)
    return points, areas, lines, lengths, _angle(points[left], points[right]), tangents


def _subdivided(frequency: int) -> np.ndarray:
    """The corners of the icosahedron and the points of a triangular lattice on its faces, on the sphere."""
    golden = (1 + 5**0.5) / 2
    signs = np.array(list(itertools.product([-1.0, 1.0], [-golden, golden])))
    corners = np.concatenate([np.roll(np.insert(signs, 0, 0.0, axis=1), shift, axis=1) for shift in range(3)])
    corners = _unit(corners)
    faces = _triangles(corners)
    i, j = (index.ravel() for index in np.meshgrid(*2 * [np.arange(frequency + 1)], indexing="ij"))
    shares = np.stack([i, j, frequency - i - j], axis=1)[i + j <= frequency] / frequency
    points = _unit(np.einsum("sk,fkd->fsd", shares, corners[faces]).reshape(-1, 3))
    # Lattice points on an edge or a corner belong to several faces.
    _, index = np.unique(points.round(9) + 0.0, axis=0, return_index=True)
    return points[np.sort(index)]


def _triangles(points: np.ndarray) -> np.ndarray:
    """The Delaunay triangles of points on the sphere."""
    from scipy.spatial import ConvexHull

    return ConvexHull(points).simplices


def _circumcenters(points: np.ndarray, triangles: np.ndarray) -> np.ndarray:
    a, b, c = (points[triangles[:, i]] for i in range(3))
    normal = np.cross(b - a, c - a)
    return _unit(normal * np.sign(np.sum(normal * a, axis=1, keepdims=True)))


def _centroids(points: np.ndarray, triangles: np.ndarray) -> np.ndarray:
    """The centroids of the Voronoi cells, each cut into flat triangles."""
    centers, total = _circumcenters(points, triangles), np.zeros_like(points)
    for i, half in _halves(points, triangles):
        size = np.linalg.norm(np.cross(half - points[i], centers - points[i]), axis=1, keepdims=True)
        np.add.at(total, i, size * (points[i] + half + centers))
    return _unit(total)


def _halves(points: np.ndarray, triangles: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each corner and each edge from it, the number of the corner and the middle of the edge, in every triangle. With the circumcenter
    these are triangles; the two of a corner are the part of the triangle that is closer to it than to the others."""
    for corner, other in ((0, 1), (0, 2), (1, 2), (1, 0), (2, 0), (2, 1)):
        i = triangles[:, corner]
        yield i, _unit(points[i] + points[triangles[:, other]])


def _edges(triangles: np.ndarray) -> tuple[np.ndarray, ...]:
    """The pairs of neighbors, and the two triangles of each pair."""
    pairs = np.sort(np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [2, 0]]]), axis=1)
    owner = np.tile(np.arange(len(triangles)), 3)
    rank = np.lexsort((pairs[:, 1], pairs[:, 0]))
    pairs, owner = pairs[rank], owner[rank]
    return pairs[::2, 0], pairs[::2, 1], owner[::2], owner[1::2]


def _opposite(points: np.ndarray, cell: np.ndarray, neighbor: np.ndarray) -> np.ndarray:
    """For each pair the neighbor of `cell` that lies most nearly opposite to `neighbor`."""
    both = np.concatenate([np.stack([cell, neighbor], 1), np.stack([neighbor, cell], 1)])
    rank = np.argsort(both[:, 0], kind="stable")
    start, count = np.searchsorted(both[rank, 0], np.arange(len(points))), np.bincount(both[:, 0], minlength=len(points))
    slots = np.arange(count.max())[None]
    around = both[rank, 1][np.minimum(start[:, None] + slots, len(both) - 1)]
    here, there = points[cell], _towards(points[cell], points[neighbor])
    directions = _towards(here[:, None], points[around[cell]])
    cosine = np.where(slots < count[cell][:, None], np.sum(directions * there[:, None], axis=-1), np.inf)
    return around[cell, np.argmin(cosine, axis=1)]


def _towards(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The unit tangent at x of the great circle to y."""
    return _unit(y - np.sum(x * y, axis=-1, keepdims=True) * x)


def _angle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return 2 * np.arctan2(np.linalg.norm(x - y, axis=-1), np.linalg.norm(x + y, axis=-1))


def _area(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The area of a spherical triangle, with the sign of its orientation (van Oosterom and Strackee 1983)."""
    triple = np.sum(a * np.cross(b, c), axis=1)
    return 2 * np.arctan2(triple, 1 + np.sum(a * b, axis=1) + np.sum(b * c, axis=1) + np.sum(c * a, axis=1))


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
