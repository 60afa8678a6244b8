"""What a space is: four operations on rows of points, and what follows from them."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._check import did_you_mean, instance, shown
from attnflow.numerics.arrays import known
from attnflow.spaces.surface import Surface

# Points this far off their space, relative to their size, may have been rounded to single precision, and are moved back to it. Points
# farther off are a mistake.
OFF = 1e-5
# The spaces by name, as in files.
_SPACES: dict[str, type["Space"]] = {}


class Space(eqx.Module):
    r"""A submanifold of $\mathbb{R}^d$. Points `x` and vectors `v` are rows, arrays `[..., d]` of any number of axes.

    A space of your own implements `project`, `nearest`, `exp` and `distance`, made of `jax.numpy`. All else has a default, which you may
    replace by something faster or more exact. Numbers of a space are fields with Python values, `eqx.field(static=True)`. Files store the
    name of the class and these numbers: a run is read back once the class is imported.
    """

    compact: ClassVar[bool] = False
    """Whether it is compact, so that nothing can blow up."""
    flat: ClassVar[bool] = False
    r"""Whether it is $\mathbb{R}^d$ itself: velocities are not projected, and what holds there alone (kernel densities, frames) may
    be used."""
    radius: ClassVar[float | None] = None
    """The radius of a sphere about 0, `None` for every other space. What holds on the unit sphere alone requires 1."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        known_as = _SPACES.setdefault(cls.__name__, cls)
        # A class that is defined again, as when a cell of a notebook is run twice, replaces the old one.
        if known_as.__module__ != cls.__module__:
            raise TypeError(f"there is a space called {cls.__name__!r} in {known_as.__module__}, got another; give it a name of its own")
        _SPACES[cls.__name__] = cls

    @abc.abstractmethod
    def project(self, x: Float[Array, "*n d"], v: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """The orthogonal projection of `v` onto the tangent space at `x`."""

    @abc.abstractmethod
    def nearest(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """The point of the space closest to `x`."""

    @abc.abstractmethod
    def exp(self, x: Float[Array, "*n d"], v: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """The end of the geodesic that leaves `x` with tangent velocity `v`, after unit time."""

    @abc.abstractmethod
    def distance(self, x: Float[Array, "*n d"], y: Float[Array, "*n d"]) -> Float[Array, "*n"]:
        """The geodesic distance, row by row."""

    def retract(self, x: Float[Array, "*n d"], v: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """A first-order approximation of `exp`: a step in the ambient space, then back to the nearest point."""
        return self.nearest(x + v)

    def check(self, points: Float[Array, "n d"]) -> None:
        """Raise a `ValueError` if the points have a wrong dimension, or if a point whose value is known is off the space: by default by
        more than `1e-5` times its size, or `1e-5` if that is smaller than 1."""
        if known(points):
            host = np.asarray(points, np.float64)
            away = np.linalg.norm(host - self.place(host), axis=1) / np.maximum(np.linalg.norm(host, axis=1), 1)
            row = int(away.argmax())
            if not away[row] <= OFF:
                raise ValueError(f"points must lie on {self}, got one {away[row]:.3g} off in row {row}; give space.nearest(points)")

    def place(self, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """`nearest` for points on the host, in double precision where JAX has it. In NumPy it compiles nothing."""
        return np.asarray(self.nearest(jnp.asarray(points)), np.float64)

    def dimension(self, dim: int) -> int:
        r"""The dimension of the space in $\mathbb{R}^d$, $d$ = `dim`: by default the rank of the projection at one of its points."""
        with jax.ensure_compile_time_eval():
            point = self.nearest(jnp.asarray(np.random.default_rng(0).normal(size=dim)))
            return round(float(jnp.trace(self.project(jnp.broadcast_to(point[None], (dim, dim)), jnp.eye(dim)))))

    def tangents(self, points: Float[Array, "n d"]) -> Float[Array, "n k d"]:
        """An orthonormal basis of the tangent space at each point: by default eigenvectors of the projection. It must not be
        differentiated: not every space has a smooth frame."""
        n, d = points.shape
        rows = jnp.broadcast_to(points[:, None], (n, d, d))
        projections = self.project(rows, jnp.broadcast_to(jnp.eye(d, dtype=points.dtype)[None], (n, d, d)))
        vectors = jnp.linalg.eigh(projections)[1]
        return jnp.swapaxes(vectors, 1, 2)[:, d - self.dimension(d) :]

    def chord(self, distance: float) -> float:
        """The Euclidean distance of points at this geodesic distance, if one determines the other, as on a sphere; else the distance
        itself, an upper bound. Tokens no farther apart than this are in one cluster."""
        return distance

    def surface(self, dim: int) -> Surface | None:
        r"""What is drawn of the space behind tokens in $\mathbb{R}^d$, $d$ = `dim` being 2 or 3; `None` for nothing."""
        return None

    @property
    def about(self) -> dict[str, Any]:
        """The name of the class and its numbers, as data for a file: `{"name": ..., "numbers": {...}}`. The numbers are the arguments by
        which `space_from` makes the space again: by default its fields, with arrays as lists."""
        named = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"name": type(self).__name__, "numbers": {name: _data(name, value) for name, value in named.items()}}

    def __str__(self) -> str:
        return f"the {type(self).__name__}"


def space_from(about: Mapping[str, Any] | str) -> Space:
    """The space that `Space.about` describes; for a name alone, that with the default numbers. Lists become tuples. The class must have
    been imported; no code is read from a file."""
    about = {"name": about} if isinstance(about, str) else instance("about", about, Mapping, "what Space.about gives")
    name, numbers = about.get("name"), about.get("numbers", {})
    if name not in _SPACES:
        cure = did_you_mean(name, _SPACES) or "import the module that defines it first"
        raise ValueError(f"about must have the name of a space, got {shown(name)}; {cure}")
    instance("numbers", numbers, Mapping, "the numbers of a space by name")
    return _SPACES[name](**{key: _tuples(value) for key, value in numbers.items()})


def _data(name: str, value: object) -> Any:
    """A number, or a list of them, that JSON can store."""
    if isinstance(value, jax.Array | np.ndarray | np.generic) and known(value):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [_data(name, entry) for entry in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a file holds the numbers of a space, got {shown(value)} as its {name}; give the class a property about of its own")


def _tuples(value: object) -> object:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
