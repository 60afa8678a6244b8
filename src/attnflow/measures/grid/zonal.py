"""Bands of latitude on a sphere of any dimension, for densities that are symmetric about an axis."""

import dataclasses
import functools
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attnflow._check import count
from attnflow._types import Key
from attnflow.measures.grid.axes import EvenAxis, Resolution, enough
from attnflow.measures.velocity import Of, Velocity
from attnflow.numerics.arrays import known
from attnflow.numerics.rows import array_namespace
from attnflow.spaces import Sphere


@dataclasses.dataclass(frozen=True)
class Zonal(EvenAxis):
    r"""Densities on the sphere $S^{d-1}$ of $\mathbb{R}^d$ that are symmetric about the first axis: `cells` equal bands of the angle to it.

    A density is per surface area, a function of $x_1 = \cos\theta$, $\theta$ the angle. `nodes`: how many the quadrature around
    a band has.
    """

    dim: int = dataclasses.field()
    cells: int = dataclasses.field()
    nodes: int = dataclasses.field(default=32, kw_only=True)
    names: ClassVar[tuple[str, ...]] = ("angle",)
    space: ClassVar[Sphere] = Sphere()
    coordinate: ClassVar[str | None] = None
    regular = False
    bands = True
    high = math.pi

    def __post_init__(self) -> None:
        if count("dim", self.dim) < 3:
            raise ValueError(f"a Zonal axis is for spheres in R^dim with dim >= 3, got {self.dim}; use Circle for dim = 2")
        count("nodes", self.nodes, 2)
        enough(self, 4)

    @property
    def volumes(self) -> np.ndarray:
        r"""The areas of the bands, $|S^{d-2}| \int \sin^{d-2} a \,da$."""
        nodes, weights = np.polynomial.legendre.leggauss(8 + self.dim)
        inside = self.centers[:, None] + 0.5 * self.width * nodes[None]
        return self._around * 0.5 * self.width * (np.sin(inside) ** (self.dim - 2) @ weights)

    @property
    def areas(self) -> np.ndarray:
        return self._around * np.sin(self.edges) ** (self.dim - 2)

    @property
    def _around(self) -> float:
        """The area of $S^{d-2}$."""
        return 2 * math.pi ** ((self.dim - 1) / 2) / math.gamma((self.dim - 1) / 2)

    @property
    def resolution(self) -> tuple[Resolution, ...]:
        return (Resolution(math.pi / self.nodes, "the gap of nodes", "{} nodes", self.nodes), *super().resolution)

    def locate(self, points: Float[Any, "m d"]) -> Any:
        xp = array_namespace(points)
        return xp.arctan2(xp.sqrt((points[:, 1:] ** 2).sum(axis=1)), points[:, 0])

    def chart(self, coordinate: Float[Any, " m"]) -> Any:
        """The points on the meridian in the plane of the first two axes."""
        return self._meridian(np.cos(coordinate), np.sin(coordinate))

    def along(self, coordinate: Float[np.ndarray, " m"]) -> np.ndarray:
        return self._meridian(-np.sin(coordinate), np.cos(coordinate))

    def _meridian(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return np.pad(np.stack([first, second], axis=1), ((0, 0), (0, self.dim - 2)))

    def sample(self, cell: Int[Array, " n"], part: Float[Array, " n"], *, key: Key) -> Float[Array, "n d"]:
        angle = self.within(cell, part)[:, None]
        around = self.space.nearest(jax.random.normal(key, (len(cell), self.dim - 1), part.dtype))
        return jnp.concatenate([jnp.cos(angle), jnp.sin(angle) * around], axis=1)

    def keys(self, points: Float[Array, "n d"], log_weights: Float[Array, " n"]) -> tuple[Float[Array, "k d"], Float[Array, " k"]]:
        r"""Points around each band, as a query on the meridian sees them: at $(\cos a, s \sin a, \dots)$ with $s$ the cosine of the angle
        around."""
        cosines, shares = (jnp.asarray(values, points.dtype) for values in rule_around(self.dim, self.nodes))
        x, y = points[:, :1], points[:, 1:2]
        across = jnp.sqrt(jnp.maximum(1 - cosines**2, 0))
        columns = [jnp.broadcast_to(x, (len(x), self.nodes)), y * cosines[None], y * across[None]]
        around = jnp.stack(columns + [jnp.zeros_like(columns[0])] * (self.dim - 3), axis=-1)
        logs = log_weights[:, None] + jnp.log(shares)[None]
        return around.reshape(-1, self.dim), logs.reshape(-1)

    def around(self, velocity: Velocity) -> "AroundAxis":
        return AroundAxis(velocity)

    def symmetric(self, moment: Float[Array, " d"] | Float[Array, "d d"]) -> Any:
        """Averaged over the turns about the first axis, which leave of a vector its first coordinate and of a matrix diag(a, b, ..., b)."""
        first = jnp.eye(self.dim, dtype=moment.dtype)[0]
        if moment.ndim == 1:
            return moment * first
        across = (jnp.trace(moment) - moment[0, 0]) / (self.dim - 1)
        return jnp.diag(jnp.where(first > 0, moment[0, 0], across))

    def check_law(self, law: Any) -> None:
        if getattr(getattr(law, "normalize", None), "doubly", False):
            raise ValueError("Sinkhorn has no zonal form here; use a Grid over [af.Icosphere(frequency)] for S^2, or tokens")
        if not known(law.logit, law.value):
            return
        for name, matrix in (("K^T Q", np.asarray(law.logit.A)), ("V", np.asarray(law.value))):
            if np.abs(matrix - np.diag(np.append(matrix[0, 0], np.full(len(matrix) - 1, matrix[-1, -1])))).max() > 0:
                raise ValueError(f"a Zonal grid is for laws symmetric about the first axis, got {name} that is not diag(a, b, ..., b)")


@functools.lru_cache
def rule_around(dim: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and weights of a Gauss rule for averages over S^{dim-2} of functions of one coordinate: the weight is
    `(1 - s^2)^{(dim-4)/2}`, Chebyshev's for dim = 3, Gegenbauer's beyond."""
    if dim == 3:
        angle = (np.arange(nodes) + 0.5) * np.pi / nodes
        return np.cos(angle), np.full(nodes, 1 / nodes)
    # Golub and Welsch: the rule is the spectrum of the matrix of the recurrence of Gegenbauer polynomials with parameter a.
    a, k = (dim - 3) / 2, np.arange(1, nodes)
    beside = np.sqrt(k * (k + 2 * a - 1) / (4 * (k + a) * (k + a - 1)))
    values, vectors = np.linalg.eigh(np.diag(beside, 1) + np.diag(beside, -1))
    return values, vectors[0] ** 2


class AroundAxis(Of):
    """An average over a zonal density, at queries anywhere on the sphere.

    The keys of a `Zonal` grid lie as a query on the meridian of the first two axes sees them, on one side of it: there the average is right
    in the plane of the meridian, and by symmetry it has no other component. Other queries are turned to the meridian and back.
    """

    velocity: Velocity

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        across = x[:, 1:]
        square = jnp.sum(across**2, axis=1, keepdims=True)
        some = square > 0
        radius = jnp.sqrt(jnp.where(some, square, 1))
        turned = jnp.concatenate([x[:, :1], jnp.where(some, radius, 0), jnp.zeros_like(x[:, 2:])], axis=1)
        found = self.velocity(turned)
        return jnp.concatenate([found[:, :1], found[:, 1:2] * jnp.where(some, across / radius, 0)], axis=1)
