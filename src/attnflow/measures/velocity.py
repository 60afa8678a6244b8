"""What moves a measure: a map of rows of points, told the order of the points if it wants to know."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from attnflow._check import function, instance, shown
from attnflow.numerics.arrays import check_array, floats, rows
from attnflow.numerics.rows import times


class Velocity(eqx.Module):
    r"""A velocity $v(x)$ of one measure at one time; any map of rows of points is one too.

    A subclass gives `__call__(x, order=None)`: rows `x [m, d]` and the `order [m]` of their tokens in the sequence, which masked and
    positional laws need and all others ignore; the result has one row for each. What was iterated or approximated to make the velocity
    stands in `report`, the engines that its sums were fitted to in `engines`. A velocity made of others passes both on.
    """

    @abc.abstractmethod
    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m e"]:
        """The velocity at every row of `x`."""

    @property
    def report(self) -> dict[str, PyTree]:
        """Convergence figures of what was iterated, error estimates of what was approximated; nothing for closed forms."""
        return {}

    @property
    def engines(self) -> tuple[Any, ...]:
        """The engines that the sums of this velocity run on at the tokens it was made for."""
        return ()

    def __add__(self, other: "Velocity") -> "Velocity":
        return Summed((self, as_velocity(other)))

    def scaled(self, factor: float | Float[Array, ""]) -> "Velocity":
        r"""$x \mapsto c\, v(x)$ with the `factor` $c$."""
        return Scaled(self, factor)

    def after(self, matrix: Float[Array, "f e"]) -> "Velocity":
        r"""$x \mapsto B\, v(x)$ with the `matrix` $B$."""
        return Turned(self, matrix)

    def less(self, matrix: Float[Array, "d d"]) -> "Velocity":
        r"""$x \mapsto v(x) - B x$ with the `matrix` $B$."""
        return Less(self, matrix)

    def before(self, matrix: Float[Array, "d c"]) -> "Velocity":
        r"""$x \mapsto v(B x)$ with the `matrix` $B$."""
        return Before(self, matrix)

    def on(self, dim: int) -> "Velocity":
        r"""The same velocity, which refuses what are not rows in $\mathbb{R}^d$, $d$ the `dim`, and an order of another length."""
        return OnRows(self, dim)

    def step(self, size: float | Float[Array, ""]) -> "Velocity":
        r"""The residual map $x \mapsto x + h\, v(x)$ with the `size` $h$."""
        return Residual(self, size)


class Affine(Velocity):
    r"""$x \mapsto M x + b$ on rows of points: the velocities under which a Gaussian stays Gaussian. Sums and multiples are affine again."""

    matrix: Float[Array, "e d"]
    offset: Float[Array, " e"]

    def __check_init__(self):
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

    def scaled(self, factor: float | Float[Array, ""]) -> "Affine":
        return Affine(factor * self.matrix, factor * self.offset)

    def after(self, matrix: Float[Array, "f e"]) -> "Affine":
        return Affine(matrix @ self.matrix, matrix @ self.offset)

    def on(self, dim: int) -> "Affine":
        return self

    def less(self, matrix: Float[Array, "d d"]) -> "Affine":
        return Affine(self.matrix - matrix, self.offset)

    def before(self, matrix: Float[Array, "d c"]) -> "Affine":
        return Affine(self.matrix @ matrix, self.offset)

    def of(self, inner: "Affine") -> "Affine":
        """This map after another."""
        return Affine(self.matrix @ inner.matrix, self.matrix @ inner.offset + self.offset)

    def step(self, size: float | Float[Array, ""]) -> "Affine":
        return Affine(jnp.eye(len(self.offset), dtype=self.offset.dtype) + size * self.matrix, size * self.offset)


class Of(Velocity):
    """A velocity made of another, `velocity`, whose report and engines are its own."""

    velocity: eqx.AbstractVar[Velocity]

    @property
    def report(self) -> dict[str, PyTree]:
        return self.velocity.report

    @property
    def engines(self) -> tuple[Any, ...]:
        return self.velocity.engines


class Scaled(Of):
    """`x -> c v(x)`."""

    velocity: Velocity
    factor: float | Float[Array, ""]

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m e"]:
        return self.factor * self.velocity(x, order)


class Turned(Of):
    """`x -> B v(x)`."""

    velocity: Velocity
    matrix: Float[Array, "f e"]

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m f"]:
        return times(self.velocity(x, order), self.matrix)


class Less(Of):
    """`x -> v(x) - B x`."""

    velocity: Velocity
    matrix: Float[Array, "d d"]

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        x = rows("x", x, len(self.matrix))
        return self.velocity(x, order) - times(x, self.matrix)


class Before(Of):
    """`x -> v(B x)`."""

    velocity: Velocity
    matrix: Float[Array, "d c"]

    def __call__(self, x: Float[Array, "m c"], order: Float[Array, " m"] | None = None) -> Float[Array, "m e"]:
        return self.velocity(rows("x", x, self.matrix.shape[1]) @ self.matrix.T, order)


class OnRows(Of):
    """A velocity that looks at what it is given."""

    velocity: Velocity
    dim: int = eqx.field(static=True)

    def __call__(self, x: Any, order: Any = None) -> Float[Array, "m e"]:
        x = rows("x", x, self.dim)
        return self.velocity(x, query_order(order, x))


class Residual(Of):
    """`x -> x + h v(x)`."""

    velocity: Velocity
    size: float | Float[Array, ""]

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        return x + self.size * self.velocity(x, order)


class Mapped(Of):
    """`x -> f(v(x))`, a map of rows after a velocity."""

    velocity: Velocity
    map: Callable

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        return self.map(self.velocity(x, order))


class Summed(Velocity):
    """The sum of velocities; the figures of each stand under its number."""

    velocities: tuple[Velocity, ...]

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m e"]:
        first, *others = (velocity(x, order) for velocity in self.velocities)
        return sum(others, first)

    @property
    def report(self) -> dict[str, PyTree]:
        reports = {f"part {i}": velocity.report for i, velocity in enumerate(self.velocities)}
        return {name: report for name, report in reports.items() if report}

    @property
    def engines(self) -> tuple[Any, ...]:
        return tuple(engine for velocity in self.velocities for engine in velocity.engines)


class Plain(Velocity):
    """A function of rows of points that is no `Velocity` of ours; what it gives is checked."""

    function: Callable

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        return checked(self.function, self.function(x), x)

    @property
    def report(self) -> dict[str, PyTree]:
        return getattr(self.function, "report", {})


def checked(velocity: Any, found: Any, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """What a velocity or a map gave at the rows `x`, refused unless it is a row for each of them."""
    if jnp.shape(found) != x.shape:
        name = getattr(velocity, "__name__", type(velocity).__name__)
        raise ValueError(f"the velocity or map {name} must give one row a point, {list(x.shape)}, got {list(jnp.shape(found))}")
    return found


def as_velocity(found: Any) -> Velocity:
    """What a field, or a user, gives for a velocity: a `Velocity` as it is, a function of rows wrapped and checked when it is called."""
    if isinstance(found, Velocity):
        return found
    return Plain(function("velocity", found, "a map of rows of points", "field.at(mu, t) makes the velocity of a field"))


def velocity_of(field: Any, mu: Any, t: Any = 0.0, sums: Any = None) -> Velocity:
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


def affine_only(map: Any, picture: str) -> Affine:
    """`map`, refused unless it is affine."""
    map = map.function if isinstance(map, Plain) else map
    if not isinstance(map, Affine):
        raise TypeError(f"velocity: a {picture} stays one only under an Affine map, got {shown(map)}; move Particles with it instead")
    return map


def query_order(order: Any, x: Array) -> Float[Array, " m"] | None:
    """The order of queries, one number a row; `None` if it is not given."""
    if order is None:
        return None
    found = floats("order", order, "m")
    if len(found) != len(x):
        raise ValueError(f"order must have one number a row of x, {len(x)}, got {len(found)}")
    return found
