"""Fields: velocities that may depend on the measure they move, and their compositions."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from attnflow import _check as check
from attnflow._arrays import floats, rows
from attnflow.measures import Affine, FlowingMeasure
from attnflow.measures.base import moved
from attnflow.sums import Engine, check_engine


class Field(eqx.Module):
    r"""$\Gamma_\mu(x)$ at time $t$. Subclass it to write one's own; fields add, and a map can follow a field.

    `field + other` moves with the sum of velocities; `field.then(map)` with $f(\Gamma_\mu(x))$, $f$ the `map`, such as the perceptron
    after attention.
    """

    @abc.abstractmethod
    def at(self, mu: FlowingMeasure, t: Any = 0.0, sums: Engine | None = None) -> Callable:
        """The velocity of the measure `mu` at time $t$: a callable on rows of points, an `Affine` map when `mu` is Gaussian.

        `sums` says how kernel sums are evaluated; `None` chooses by size.
        """

    @property
    def jumps(self) -> Float[Array, " k"] | None:
        """The times at which the velocity jumps, which the solver must not step across; `None` if there are none."""
        return None

    def then(self, map: Callable) -> "Then":
        r"""The field $f(\Gamma_\mu(x))$, $f$ the `map`."""
        check.function("map", map, "a map of rows of points, such as af.Perceptron(hidden, out)")
        return Then(self, map)

    def __add__(self, other: "Field") -> "Sum":
        check.field("what is added to a field", other)
        return Sum((self, other))

    def __radd__(self, other: "Field") -> "Sum":
        return Sum((check.field("what a field is added to", other), self))


def check_at(mu: Any, t: Any, sums: Any) -> None:
    """Raise unless a field can be asked for its velocity with these."""
    mu = check.measure("mu", mu, FlowingMeasure)
    floats("t", t, "")
    check_engine(sums)


class Sum(Field):
    """The sum of fields."""

    parts: tuple[Any, ...]

    def at(self, mu: FlowingMeasure, t: Any = 0.0, sums: Engine | None = None) -> "Affine | Combined":
        check_at(mu, t, sums)
        return combine([part.at(mu, t, sums) for part in self.parts], 1.0)

    @property
    def jumps(self) -> Float[Array, " k"] | None:
        return union(self.parts)


class Then(Field):
    """A map after a field: `x -> map(Gamma_mu(x))`."""

    field: Any
    map: Callable

    def at(self, mu: FlowingMeasure, t: Any = 0.0, sums: Engine | None = None) -> "Mapped":
        check_at(mu, t, sums)
        return Mapped(self.field.at(mu, t, sums), self.map)

    @property
    def jumps(self) -> Float[Array, " k"] | None:
        return union((self.field,))


class Combined(eqx.Module):
    """`factor` times the sum of velocities."""

    velocities: tuple[Any, ...]
    factor: float = eqx.field(static=True)

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        x = rows("x", x)
        return self.factor * sum((evaluate(velocity, x, order) for velocity in self.velocities), jnp.zeros_like(x))

    @property
    def needs_order(self) -> bool:
        return any(getattr(velocity, "needs_order", False) for velocity in self.velocities)

    @property
    def report(self) -> dict[str, PyTree]:
        """The figures of each part, under its number."""
        reports = {i: getattr(v, "report", {}) for i, v in enumerate(self.velocities)}
        return {f"part {i}": report for i, report in reports.items() if report}


class Mapped(eqx.Module):
    """A map after a velocity."""

    velocity: Any
    map: Callable

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        return self.map(evaluate(self.velocity, x, order))

    @property
    def needs_order(self) -> bool:
        return getattr(self.velocity, "needs_order", False)

    @property
    def report(self) -> dict[str, PyTree]:
        return getattr(self.velocity, "report", {})


def evaluate(velocity: Any, x: Float[Array, "m d"], order: Float[Array, " m"] | None) -> Float[Array, "m d"]:
    """A velocity at queries, told their order if it depends on it."""
    x, order = rows("x", x), query_order(order, x)
    return moved(velocity, x, order if getattr(velocity, "needs_order", False) else None)


def query_order(order: Any, x: Array) -> Float[Array, " m"] | None:
    """The order of queries, one number a row; `None` if it is not given."""
    if order is None:
        return None
    found = floats("order", order, "m")
    if len(found) != len(x):
        raise ValueError(f"order must have one number a row of x, {len(x)}, got {len(found)}")
    return found


def combine(velocities: list, factor: float) -> "Affine | Combined":
    """`factor` times the sum: affine if every part is."""
    affine = [v for v in velocities if isinstance(v, Affine)]
    if len(affine) == len(velocities):
        total = affine[0]
        for part in affine[1:]:
            total = total + part
        return total.scaled(factor)
    return Combined(tuple(velocities), factor)


def union(fields: tuple[Any, ...]) -> Float[Array, " k"] | None:
    """The jumps of all the fields together."""
    found = [jumps for jumps in (getattr(f, "jumps", None) for f in fields) if jumps is not None]
    return jnp.sort(jnp.concatenate(found)) if found else None
