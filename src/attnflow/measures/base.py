"""What a measure is, and what a measure that `solve` can move is."""

import abc
import json
import math
from collections.abc import Callable
from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from attnflow import _check as check
from attnflow.measures.closed_forms import ClosedForms
from attnflow.measures.tilt import Tilt, TiltedAtoms
from attnflow.measures.velocity import Affine, Velocity, as_velocity, checked
from attnflow.numerics.arrays import positive
from attnflow.spaces import Space
from attnflow.sums import Atoms, Logit, Mask, Request, warn_of_round_off


class Measure(ClosedForms):
    """A probability measure on a subset of R^d: total mass 1, averages are integrals against it.

    `mean` is `m = integral of y`, `cov` is `S = integral of (y - m)(y - m)^T` (divided by the mass, not by n - 1).
    """

    mean: eqx.AbstractVar[Float[Array, " d"]]
    cov: eqx.AbstractVar[Float[Array, "d d"]]
    space: eqx.AbstractVar[Space]

    @abc.abstractmethod
    def integrate(self, f: Callable[[Float[Array, "n d"]], Float[Array, "n ..."]]) -> Float[Array, "..."]:
        r"""$\int f \,d\mu$, for a function of rows of points: `f(points)[i]` belongs to `points[i]`."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """The dimension $d$ of the ambient space."""

    @property
    def dtype(self) -> jnp.dtype:
        """The precision of its numbers."""
        return self.mean.dtype

    def _repr_html_(self) -> str:
        """A line and a figure, for notebooks."""
        import attnflow as af

        return af.plot.notebook.html(self)


class Noise(eqx.Module):
    """Brownian motion `sigma dB` of every token, or `1/2 sigma^2 Laplace` of the law."""

    sigma: Float[Array, ""]
    key: PRNGKeyArray | None


class FlowingMeasure(Measure):
    """A measure that can be a state of `solve`.

    The unknowns of the differential equation are `state`; everything else (weights, token order, the space) travels along
    unchanged. The measure knows how a velocity moves it, not where the velocity comes from.
    """

    # The pictures by name, for those that are read from files.
    kinds: ClassVar[dict[str, type["FlowingMeasure"]]] = {}

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        FlowingMeasure.kinds[cls.__name__] = cls

    @property
    @abc.abstractmethod
    def state(self) -> PyTree[Float[Array, "..."]]:
        """The evolving arrays."""

    @abc.abstractmethod
    def with_state(self, state: PyTree[Float[Array, "..."]]) -> "FlowingMeasure":
        """The same measure with other evolving arrays."""

    @abc.abstractmethod
    def rate(self, velocity: Velocity | Callable) -> PyTree[Float[Array, "..."]]:
        r"""The rate of change of the state when mass moves along the `velocity` $v$: $\partial_t \mu + \operatorname{div}(\mu v) = 0$."""

    @abc.abstractmethod
    def push(self, map: Velocity | Callable) -> "FlowingMeasure":
        """The push-forward of the measure under a map of points."""

    @abc.abstractmethod
    def retract(self, state: PyTree[Float[Array, "..."]]) -> PyTree[Float[Array, "..."]]:
        """A state with round-off and truncation error removed: back on the space, symmetric."""

    @staticmethod
    @abc.abstractmethod
    def error_norm(scaled_error: PyTree[Float[Array, "..."]]) -> Float[Array, ""]:
        """The number that the step size controller keeps below 1, from errors in units of the tolerance."""

    @abc.abstractmethod
    def frame(self, states: PyTree) -> dict[str, tuple[tuple[str, ...], Any]]:
        """Stacked states as named variables with named axes, for `Path.to_xarray`."""

    @classmethod
    def from_frame(cls, about: dict[str, Any], variables: dict[str, Any]) -> "FlowingMeasure":
        """The measure of the first frame of a file, from what the file says of it and the variables of `frame`."""
        raise ValueError(f"a {cls.__name__} is not read from files: it has no from_frame")

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
        return {"picture": type(self).__name__, "space": json.dumps(self.space.about)}

    # What attention asks of a picture.

    # Whether averages are over atoms, so that logits beyond all digits may be held; moments of other pictures see their size.
    by_atoms: ClassVar[bool] = True

    def atoms(self, mask: Mask | None = None, ordered: bool = False) -> Atoms:
        """The measure as weighted keys of a sum, under a mask or if `ordered` with their order; for pictures that are sums of points."""
        raise TypeError(
            f"mu must be tokens or cells for this, got a {type(self).__name__}, which has no atoms; draw tokens with mu.sample(n, key=key)"
        )

    @property
    def pairs(self) -> int:
        """How many pairs of atoms there are; 0 for a picture without."""
        return 0

    def keys_for(self, logit: Logit, inner: Affine | None = None, mask: Mask | None = None, sums: Request | None = None) -> Atoms:
        """The keys as a law sees them: in order under a mask that goes by order, so that a streamed sum can skip what nobody sees; with
        the values `inner(y)` to average, where there is such a map."""
        atoms = self.atoms(mask, logit.positional)
        if mask is not None and not mask.by_rows:
            assert atoms.order is not None
            ranks = jnp.argsort(atoms.order)
            points, weights, order = (leaf[ranks] for leaf in (atoms.points, atoms.log_weights, atoms.order))
            atoms = atoms._replace(points=points, log_weights=weights, order=order)
        warn_of_round_off(logit, atoms, sums)
        return atoms if inner is None else atoms._replace(values=inner(atoms.points))

    def tilt(self, logit: Logit, inner: Affine | None = None, mask: Mask | None = None, sums: Request | None = None) -> Tilt:
        r"""The tilts $e^{\ell(x, y)} \,d\mu(y)$ of the measure; means are of `inner(y)` if such a map is given."""
        return TiltedAtoms(logit, self.keys_for(logit, inner, mask, sums), sums)

    def attend(self, normalize: Any, logit: Logit, inner: Affine | None, mask: Mask | None, sums: Request | None) -> Velocity:
        """The average of a normalization over this picture: of its keys, unless it has a closed form."""
        return normalize.average(logit, self.keys_for(logit, inner, mask, sums), sums)

    def check_law(self, law: Any) -> None:
        """Raise if this picture cannot carry a law with a logit, a value, a mask and a normalization."""

    def check_symmetry(self, law: Any) -> None:
        """Raise if the value and the logit of a law break a symmetry that this picture stands for."""

    def around(self, average: Velocity) -> Velocity:
        """An average over the keys of this picture as its queries need it."""
        return average

    @property
    def order_axis(self) -> Any:
        """Where the order of tokens lies, if that is an axis of its own."""
        return None

    @property
    def sharpest(self) -> float:
        """The largest sharpness of a kernel that the picture resolves: that of a kernel as wide as its cells."""
        return math.inf

    # What the solver asks of a picture.

    # Whether a measure of this picture that a map has moved is one of this picture again, without a closure.
    exact: ClassVar[bool] = True

    def report(self, velocity: Velocity | Callable) -> dict[str, PyTree]:
        """Figures of how well this picture carries a velocity, for `path.stats`; nothing for one without a closure."""
        return {}

    def noise(self, sigma: Any, key: Any) -> Noise:
        """Noise of this size on this picture; only tokens draw it from a key."""
        check.key("key", key, optional=True)
        return Noise(positive("noise", sigma).astype(self.dtype), None)

    def default_step(self, noise: Noise | None, length: float) -> float | None:
        """The fixed step over a time of this length, where steps are fixed if the user does not say; `None` for adaptive ones."""
        return None

    def motion(self, velocity: Callable, noise: Noise | None = None) -> diffrax.AbstractTerm:
        """The differential equation of the state, for a velocity `velocity(mu, t)` and noise: its diffrax terms."""
        if noise is not None:
            raise ValueError(f"a {type(self).__name__} takes no noise")
        return diffrax.ODETerm(lambda t, state, args: self._rate(velocity, t, state))  # pyright: ignore[reportArgumentType]

    def _rate(self, velocity: Callable, t: Any, state: PyTree) -> PyTree:
        """A stage of a step may lie a little off the space: the velocity is that at the point it belongs to."""
        mu = self.with_state(self.retract(state))
        return mu.rate(velocity(mu, t))

    def default_solver(self, noise: Noise | None = None) -> diffrax.AbstractSolver:
        """The stepper used when `solve` is not given one."""
        return diffrax.Tsit5()

    def own_steps(self, longest: Any) -> diffrax.AbstractStepSizeController | None:
        """The controller of a picture whose steps follow from a bound of its own; `None` if they follow from tolerances."""
        return None


def values_of(f: Any, points: Float[Array, "n d"]) -> Any:
    """A function at points, refused unless it gives something for each of them."""
    values = check.function("f", f, "a function of rows of points")(points)
    if jnp.shape(values)[:1] != (len(points),):
        raise ValueError(f"f must give one value a row, [{len(points)}, ...], got shape {list(jnp.shape(values))}")
    return values


def moved(velocity: Any, points: Float[Array, "n d"], order: Float[Array, " n"] | None = None) -> Float[Array, "n d"]:
    """A velocity or a map at tokens or cells with their order; refused unless it gives a row for each of them."""
    return checked(velocity, as_velocity(velocity)(points, order), points)
