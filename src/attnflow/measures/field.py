"""Fields: velocities that may depend on the measure they move, and their compositions."""

import abc
from typing import Any, cast

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import FieldLike, RowFunction, Scalar
from attnflow.measures.flowing import FlowingMeasure
from attnflow.measures.velocity import Mapped, Velocity, total, velocity_of
from attnflow.numerics.arrays import floats
from attnflow.sums import Request, check_request


class Field(eqx.Module):
    r"""$\Gamma_\mu(x)$ at time $t$: what `solve` and `layers` move a measure with.

    A subclass must give `at(mu, t, sums)`, the velocity of the measure `mu` at the time $t$: any function of rows of points,
    `velocity(x) -> [m, d]` for `x [m, d]`, or a `Velocity`, which may depend on the order of its queries and report how it was computed.
    A Gaussian is moved by `Affine` velocities alone. `jumps` has a default. Its numbers are arrays, so that changing them does not
    compile again.

    Fields add, are multiplied by numbers, and a map can follow a field: `field + other` moves with the sum of velocities, `2 * field` with
    twice the velocity, `field.then(map)` with $f(\Gamma_\mu(x))$, $f$ the `map`, such as the perceptron after attention.
    """

    @abc.abstractmethod
    def at(self, mu: FlowingMeasure, t: Scalar = 0.0, sums: Request | None = None) -> Velocity:
        """The velocity of the measure `mu` at time $t$. `sums` says how kernel sums are evaluated; `None` chooses by size."""

    @property
    def jumps(self) -> Float[Array, " k"] | None:
        """The times at which the velocity jumps, which the solver does not step across; `None` if there are none."""
        return None

    def then(self, map: RowFunction) -> "Then":
        r"""The field $f(\Gamma_\mu(x))$, $f$ the `map`."""
        check.function("map", map, "a map of rows of points, such as af.Perceptron(hidden, out)")
        return Then(self, map)

    def __add__(self, other: "Field") -> "Sum":
        return Sum((self, check.field("what is added to a field", other)))

    def __radd__(self, other: "Field | int") -> "Field":
        # `sum(fields)` begins with 0.
        return self if isinstance(other, int) and other == 0 else Sum((check.field("what a field is added to", cast(Field, other)), self))

    def __mul__(self, factor: Scalar) -> "Multiple":
        return Multiple(self, floats("what a field is multiplied by", factor, ""))

    def __rmul__(self, factor: Scalar) -> "Multiple":
        return self * factor


def check_at(mu: Any, t: Scalar, sums: Any) -> None:
    """Raise unless a field can be asked for its velocity with these."""
    check.measure("mu", mu, FlowingMeasure)
    floats("t", t, "")
    check_request(sums)


class Sum(Field):
    """The sum of fields."""

    parts: tuple[FieldLike, ...]

    def at(self, mu: FlowingMeasure, t: Scalar = 0.0, sums: Request | None = None) -> Velocity:
        check_at(mu, t, sums)
        return total([velocity_of(part, mu, t, sums) for part in self.parts])

    @property
    def jumps(self) -> Float[Array, " k"] | None:
        return union(self.parts)


class Multiple(Field):
    """A field times a number."""

    field: FieldLike
    factor: Float[Array, ""]

    def at(self, mu: FlowingMeasure, t: Scalar = 0.0, sums: Request | None = None) -> Velocity:
        check_at(mu, t, sums)
        return velocity_of(self.field, mu, t, sums).scaled(self.factor.astype(mu.dtype))

    @property
    def jumps(self) -> Float[Array, " k"] | None:
        return union((self.field,))


class Then(Field):
    """A map after a field: `x -> map(Gamma_mu(x))`."""

    field: FieldLike
    map: RowFunction

    def at(self, mu: FlowingMeasure, t: Scalar = 0.0, sums: Request | None = None) -> Mapped:
        check_at(mu, t, sums)
        return Mapped(velocity_of(self.field, mu, t, sums), self.map)

    @property
    def jumps(self) -> Float[Array, " k"] | None:
        return union((self.field,))


def union(fields: tuple[FieldLike, ...]) -> Float[Array, " k"] | None:
    """The jumps of all the fields together."""
    found = [jumps for jumps in (getattr(f, "jumps", None) for f in fields) if jumps is not None]
    return jnp.sort(jnp.concatenate(found)) if found else None
