"""What moves a measure: a map of rows of points, told the order of the points if it wants to know."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._check import function, instance, shown
from attnflow._types import ArrayLike, FieldLike, PyTree, RowFunction, Scalar
from attnflow.numerics.arrays import check_array, floats, rows
from attnflow.numerics.rows import times
from attnflow.sums import Engine, Request


class Reporting(eqx.Module):
    """What can say how it was computed. What is made of others names them in `parts`, and passes on what they say."""

    @property
    def parts(self) -> tuple["Reporting", ...]:
        """What this is made of."""
        return ()

    @property
    def report(self) -> dict[str, PyTree]:
        """Convergence figures of what was iterated, error estimates of what was approximated; nothing for closed forms. Those of several
        parts stand under their numbers."""
        if len(self.parts) == 1:
            return self.parts[0].report
        reports = {f"part {i}": part.report for i, part in enumerate(self.parts)}
        return {name: report for name, report in reports.items() if report}

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engines that its sums run on at the tokens it was made for."""
        return tuple(engine for part in self.parts for engine in part.engines)


class Velocity(Reporting):
    r"""A velocity $v(x)$ of one measure at one time; any map of rows of points is one too.

    A subclass must give `__call__(x, order=None)`: rows `x [m, d]` and the `order [m]` of their tokens in the sequence, which masked and
    positional laws need and all others ignore, to one row for each, `[m, e]`. The rest has defaults:

    - `report`, what was iterated or approximated to make the velocity: a dict of arrays, which `path.stats` shows;
    - `engines`, those that its sums were fitted to;
    - `parts`, the velocities that it is made of, whose reports and engines it passes on. `Of` is for a velocity made of one other.

    Velocities add; the methods below make new ones, which are `Affine` again where that is possible.
    """

    @abc.abstractmethod
    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m e"]:
        """The velocity at every row of `x`."""

    def __add__(self, other: "Velocity") -> "Velocity":
        return Summed((self, as_velocity(other)))

    def scaled(self, factor: Scalar) -> "Velocity":
        r"""$x \mapsto c\, v(x)$ with the `factor` $c$."""
        return Multiplied(self, factor)

    def then(self, matrix: Float[Array, "f e"]) -> "Velocity":
        r"""$x \mapsto B\, v(x)$ with the `matrix` $B$."""
        return Multiplied(self, matrix)

    def minus(self, matrix: Float[Array, "d d"]) -> "Velocity":
        r"""$x \mapsto v(x) - B x$ with the `matrix` $B$."""
        return Minus(self, matrix)

    def of(self, matrix: Float[Array, "d c"]) -> "Velocity":
        r"""$x \mapsto v(B x)$ with the `matrix` $B$."""
        return OfMatrix(self, matrix)

    def checked(self, dim: int) -> "Velocity":
        r"""The same velocity, which refuses what are not rows in $\mathbb{R}^d$, $d$ the `dim`, and an order of another length."""
        return Checked(self, dim)

    def step(self, size: Scalar) -> "Velocity":
        r"""The residual map $x \mapsto x + h\, v(x)$ with the `size` $h$."""
        return Residual(self, size)


class Affine(Velocity):
    r"""$x \mapsto M x + b$ on rows of points: the velocities under which a Gaussian stays Gaussian. Sums and multiples are affine again."""

    matrix: Float[Array, "e d"]
    offset: Float[Array, " e"]

    def __check_init__(self) -> None:
        check_array("matrix", self.matrix, "d d")
        check_array("offset", self.offset, "d")
        if self.matrix.shape[0] != self.offset.shape[0]:
            raise ValueError(f"matrix [d, d] and offset [d] must agree, got {list(self.matrix.shape)} and {list(self.offset.shape)}")

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m e"]:
        x = rows("x", x, self.matrix.shape[1])
        return x @ self.matrix.T + self.offset[None]

    def __add__(self, other: Velocity) -> Velocity:
        instance("other", other, Velocity, "an Affine map or another velocity")
        return Affine(self.matrix + other.matrix, self.offset + other.offset) if isinstance(other, Affine) else Summed((self, other))

    def scaled(self, factor: Scalar) -> "Affine":
        return Affine(factor * self.matrix, factor * self.offset)

    def then(self, matrix: Float[Array, "f e"]) -> "Affine":
        return Affine(matrix @ self.matrix, matrix @ self.offset)

    def checked(self, dim: int) -> "Affine":
        return self

    def minus(self, matrix: Float[Array, "d d"]) -> "Affine":
        return Affine(self.matrix - matrix, self.offset)

    def of(self, matrix: Float[Array, "d c"]) -> "Affine":
        return Affine(self.matrix @ matrix, self.offset)

    def compose(self, inner: "Affine") -> "Affine":
        r"""$x \mapsto M\, (\text{inner})(x) + b$: this map after another."""
        return Affine(self.matrix @ inner.matrix, self.matrix @ inner.offset + self.offset)

    def step(self, size: Scalar) -> "Affine":
        return Affine(jnp.eye(len(self.offset), dtype=self.offset.dtype) + size * self.matrix, size * self.offset)


class Of(Velocity):
    """A velocity made of one other."""

    velocity: eqx.AbstractVar[Velocity]

    @property
    def parts(self) -> tuple[Velocity, ...]:
        return (self.velocity,)


class Multiplied(Of):
    """`x -> B v(x)`, B a number or a matrix."""

    velocity: Velocity
    factor: Scalar | Float[Array, "f e"]

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m f"]:
        found = self.velocity(x, order)
        return times(found, jnp.asarray(self.factor)) if jnp.ndim(self.factor) else self.factor * found


class Minus(Of):
    """`x -> v(x) - B x`."""

    velocity: Velocity
    matrix: Float[Array, "d d"]

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        x = rows("x", x, len(self.matrix))
        return self.velocity(x, order) - times(x, self.matrix)


class OfMatrix(Of):
    """`x -> v(B x)`."""

    velocity: Velocity
    matrix: Float[Array, "d c"]

    def __call__(self, x: Float[Array, "m c"], order: Float[Array, " m"] | None = None) -> Float[Array, "m e"]:
        return self.velocity(rows("x", x, self.matrix.shape[1]) @ self.matrix.T, order)


class Checked(Of):
    """A velocity that checks what it is given."""

    velocity: Velocity
    dim: int = eqx.field(static=True)

    def __call__(self, x: ArrayLike, order: ArrayLike | None = None) -> Float[Array, "m e"]:
        points = rows("x", x, self.dim)
        return self.velocity(points, query_order(order, points))


class Residual(Of):
    """`x -> x + h v(x)`."""

    velocity: Velocity
    size: Scalar

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        return x + self.size * self.velocity(x, order)


class Mapped(Of):
    """`x -> f(v(x))`, a map of rows after a velocity."""

    velocity: Velocity
    map: RowFunction

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        return self.map(self.velocity(x, order))


class Summed(Velocity):
    """The sum of velocities."""

    velocities: tuple[Velocity, ...]

    @property
    def parts(self) -> tuple[Velocity, ...]:
        return self.velocities

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m e"]:
        first, *others = (velocity(x, order) for velocity in self.velocities)
        return sum(others, first)


class Plain(Velocity):
    """A function of rows of points that is no `Velocity` of ours; what it gives is checked."""

    function: Callable

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        return _one_row_each(self.function, self.function(x), x)

    @property
    def report(self) -> dict[str, PyTree]:
        return getattr(self.function, "report", {})


def _one_row_each(velocity: Callable, found: Array, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """What a velocity or a map gave at the rows `x`, refused unless it is a row for each of them."""
    if jnp.shape(found) != x.shape:
        name = getattr(velocity, "__name__", type(velocity).__name__)
        raise ValueError(f"the velocity or map {name} must give one row per point, {list(x.shape)}, got {list(jnp.shape(found))}")
    return found


def as_velocity(found: Velocity | RowFunction) -> Velocity:
    """What a field, or a user, gives for a velocity: a `Velocity` as it is, a function of rows wrapped and checked when it is called."""
    if isinstance(found, Velocity):
        return found
    return Plain(function("velocity", found, "a map of rows of points", "field.at(mu, t) makes the velocity of a field"))


def moved(velocity: Velocity | RowFunction, points: Float[Array, "n d"], order: Float[Array, " n"] | None = None) -> Float[Array, "n d"]:
    """A velocity or a map at tokens or cells with their order; refused unless it gives a row for each of them."""
    return _one_row_each(velocity, as_velocity(velocity)(points, order), points)


def velocity_of(field: FieldLike, mu: Any, t: Scalar = 0.0, sums: Request | None = None) -> Velocity:
    """The velocity of a field, which may be a user's own, at a measure."""
    return as_velocity(field.at(mu, t, sums))


def total(velocities: list[Velocity]) -> Velocity:
    """The sum: affine if every part is."""
    first, *others = velocities
    if not others:
        return first
    if all(isinstance(velocity, Affine) for velocity in velocities):
        return sum(others, first)
    return Summed(tuple(velocities))


def affine_only(map: Velocity | RowFunction, picture: str) -> Affine:
    """`map`, refused unless it is affine."""
    map = map.function if isinstance(map, Plain) else map
    if not isinstance(map, Affine):
        raise TypeError(f"velocity: a {picture} stays one only under an Affine map, got {shown(map)}; move Particles with it instead")
    return map


def query_order(order: ArrayLike | None, x: Array) -> Float[Array, " m"] | None:
    """The order of queries, one number per row; `None` if it is not given."""
    if order is None:
        return None
    found = floats("order", order, "m")
    if len(found) != len(x):
        raise ValueError(f"order must have one number per row of x, {len(x)}, got {len(found)}")
    return found
