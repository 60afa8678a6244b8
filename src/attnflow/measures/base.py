"""What a measure is, and what a measure that `solve` can move is."""

import abc
from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from attnflow._check import function, shown
from attnflow.measures.affine import Affine
from attnflow.spaces import Space

Velocity = Callable[[Float[Array, "m d"]], Float[Array, "m d"]]


class Measure(eqx.Module):
    """A probability measure on a subset of R^d: total mass 1, averages are integrals against it.

    `mean` is `m = integral of y`, `cov` is `S = integral of (y - m)(y - m)^T` (divided by the mass, not by n - 1).
    """

    mean: eqx.AbstractVar[Float[Array, " d"]]
    cov: eqx.AbstractVar[Float[Array, "d d"]]

    @abc.abstractmethod
    def integrate(self, f: Callable[[Float[Array, "n d"]], Float[Array, "n ..."]]) -> Float[Array, "..."]:
        r"""$\int f \,d\mu$, for a function of rows of points: `f(points)[i]` belongs to `points[i]`."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """The dimension $d$ of the ambient space."""


class Noise(eqx.Module):
    """Brownian motion `sigma dB` of every token, or `1/2 sigma^2 Laplace` of the law."""

    sigma: Float[Array, ""]
    key: PRNGKeyArray | None


class FlowingMeasure(Measure):
    """A measure that can be a state of `solve`.

    The unknowns of the differential equation are `state`; everything else (weights, token order, the space) travels along
    unchanged. The measure knows how a velocity moves it, not where the velocity comes from.
    """

    space: eqx.AbstractVar[Space]

    @property
    @abc.abstractmethod
    def state(self) -> PyTree[Float[Array, "..."]]:
        """The evolving arrays."""

    @abc.abstractmethod
    def with_state(self, state: PyTree[Float[Array, "..."]]) -> "FlowingMeasure":
        """The same measure with other evolving arrays."""

    @abc.abstractmethod
    def rate(self, velocity: Velocity) -> PyTree[Float[Array, "..."]]:
        r"""The rate of change of the state when mass moves along the `velocity` $v$: $\partial_t \mu + \operatorname{div}(\mu v) = 0$."""

    @abc.abstractmethod
    def push(self, map: Velocity) -> "FlowingMeasure":
        """The push-forward of the measure under a map of points."""

    @abc.abstractmethod
    def settle(self, state: PyTree[Float[Array, "..."]]) -> PyTree[Float[Array, "..."]]:
        """A state with round-off and truncation error removed: back on the space, symmetric."""

    @staticmethod
    @abc.abstractmethod
    def error_norm(scaled_error: PyTree[Float[Array, "..."]]) -> Float[Array, ""]:
        """The number that the step size controller keeps below 1, from errors in units of the tolerance."""

    @abc.abstractmethod
    def frame(self, states: PyTree) -> dict[str, tuple[tuple[str, ...], Any]]:
        """Stacked states as named variables with named axes, for `Path.to_xarray`."""

    @property
    def dtype(self) -> jnp.dtype:
        """The precision of the state."""
        return jax.tree.leaves(self.state)[0].dtype

    @property
    def bounded(self) -> bool:
        """Whether no state leaves every bound, as on a compact space: then nothing blows up."""
        return self.space.compact

    @property
    def about(self) -> dict[str, Any]:
        """What a file says of the measure beside its arrays."""
        return {"picture": type(self).__name__, "space": type(self.space).__name__}

    def motion(self, velocity: Callable, noise: Noise | None = None) -> diffrax.AbstractTerm:
        """The differential equation of the state, for a velocity `velocity(mu, t)` and noise: its diffrax terms."""
        if noise is not None:
            raise ValueError(f"a {type(self).__name__} takes no noise")
        return diffrax.ODETerm(lambda t, state, args: self._rate(velocity, t, state))  # pyright: ignore[reportArgumentType]

    def _rate(self, velocity: Callable, t: Any, state: PyTree) -> PyTree:
        """A stage of a step may lie a little off the space: the velocity is that at the point it belongs to."""
        mu = self.with_state(self.settle(state))
        return mu.rate(velocity(mu, t))

    def default_solver(self, noise: Noise | None = None) -> diffrax.AbstractSolver:
        """The stepper used when `solve` is not given one."""
        return diffrax.Tsit5()

    def own_steps(self, longest: Any) -> diffrax.AbstractStepSizeController | None:
        """The controller of a picture whose steps follow from a bound of its own; `None` if they follow from tolerances."""
        return None


def values_of(f: Any, points: Float[Array, "n d"]) -> Any:
    """A function at points, refused unless it gives something for each of them."""
    values = function("f", f, "a function of rows of points")(points)
    if jnp.shape(values)[:1] != (len(points),):
        raise ValueError(f"f must give one value a row, [{len(points)}, ...], got shape {list(jnp.shape(values))}")
    return values


def moved(velocity: Any, points: Float[Array, "n d"], order: Float[Array, " n"] | None = None) -> Float[Array, "n d"]:
    """A velocity or a map at tokens or cells, told their order if it asks for it; refused unless it gives a row for each of them."""
    function("velocity", velocity, "a map of rows of points", "field.at(mu, t) makes the velocity of a field")
    found = velocity(points) if order is None else velocity(points, order)
    if jnp.shape(found) != points.shape:
        name = getattr(velocity, "__name__", type(velocity).__name__)
        raise ValueError(f"the velocity or map {name} must give one row a point, {list(points.shape)}, got {list(jnp.shape(found))}")
    return found


def affine_only(map: Any, picture: str) -> Affine:
    """`map`, refused unless it is affine."""
    if not isinstance(map, Affine):
        raise TypeError(f"velocity: a {picture} stays one only under an Affine map, got {shown(map)}; move Particles with it instead")
    return map
