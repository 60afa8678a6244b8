"""What a measure that `solve` can move is."""

import abc
import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import Key, PyTree, RowFunction, Scalar
from attnflow.measures.base import Measure
from attnflow.measures.tilt import Tilt, TiltedAtoms
from attnflow.measures.velocity import Affine, Velocity
from attnflow.numerics.arrays import positive
from attnflow.sums import Atoms, Logit, Mask, Quadratic, Request, warn_of_round_off

# The velocity of a measure at a time, `drift(mu, t)`.
Drift = Callable[[Any, Any], Velocity]
# Stacked arrays by name, each with the names of its axes.
Frame = dict[str, tuple[tuple[str, ...], Any]]

# What is for type checkers alone: at run time these are `Any`.
if TYPE_CHECKING:
    from typing import Self as Self

    class NormalizationLike(Protocol):
        """What a picture asks of a normalization."""

        def average(self, logit: Logit, atoms: Atoms, sums: Request | None) -> Velocity: ...

        def gaussian(self, logit: Quadratic, mu: Any) -> Affine: ...

    class LawLike(Protocol):
        """What a picture with a symmetry asks of a law."""

        @property
        def logit(self) -> Logit: ...
        @property
        def value(self) -> Array: ...

    class AttentionLike(LawLike, Protocol):
        """What a picture asks of an attention law."""

        @property
        def mask(self) -> Mask | None: ...
else:
    NormalizationLike = LawLike = AttentionLike = Self = Any


class Noise(eqx.Module):
    """Brownian motion `sigma dB` of every token, or `1/2 sigma^2 Laplace` of the density."""

    sigma: Float[Array, ""]
    key: Key | None


class FlowingMeasure(Measure):
    """A measure that can be a state of `solve`.

    The unknowns of the differential equation are `state`, a pytree of arrays; everything else (weights, token order, the space) travels
    along unchanged. The measure knows how a velocity moves it, not where the velocity comes from.

    A subclass must give what a `Measure` must, and

    - `state` and `with_state(state)`, inverse to each other;
    - `rate(velocity)`: the rate of change of the state, of the same structure, for a `velocity(x, order=None)` of rows `[m, d]`;
    - `push(map)`: the measure after a map of rows of points;
    - `retract(state)`: the state as it is, or brought back to where states lie;
    - `error_norm(scaled_error)`, such as the largest entry;
    - `frame(states)`: how stacked states are stored, and `from_frame` if paths of it are read back.

    This is enough for `solve` with a field that returns any function of rows. For attention it is a sum over weighted points, given by
    `atoms(mask, ordered)` (then softmax and all other normalizations work), or has closed forms, `tilt` and `attend`. The rest has
    defaults: no noise (`motion`), adaptive steps of Tsit5 (`default_solver`, `default_step`, `own_steps`), nothing to report.
    """

    # The pictures by name, for those that are read from files.
    kinds: ClassVar[dict[str, type["FlowingMeasure"]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        FlowingMeasure.kinds[cls.__name__] = cls

    @property
    @abc.abstractmethod
    def state(self) -> PyTree:
        """The evolving arrays."""

    @abc.abstractmethod
    def with_state(self, state: PyTree) -> Self:
        """The same measure with other evolving arrays."""

    @abc.abstractmethod
    def rate(self, velocity: Velocity | RowFunction) -> PyTree:
        r"""The rate of change of the state when mass moves along the `velocity` $v$: $\partial_t \mu + \operatorname{div}(\mu v) = 0$."""

    @abc.abstractmethod
    def push(self, map: Velocity | RowFunction) -> Self:
        """The push-forward of the measure under a map of points."""

    @abc.abstractmethod
    def retract(self, state: PyTree) -> PyTree:
        """A state with round-off and truncation error removed: back on the space, symmetric."""

    @staticmethod
    @abc.abstractmethod
    def error_norm(scaled_error: PyTree) -> Float[Array, ""]:
        """The number that the step size controller keeps below 1, from errors in units of the tolerance."""

    @abc.abstractmethod
    def frame(self, states: PyTree) -> Frame:
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
        """Whether all states stay within a bound, as on a compact space: then nothing blows up."""
        return self.space.compact

    @property
    def about(self) -> dict[str, Any]:
        """What a file says of the measure besides its arrays."""
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
        """How many pairs of atoms there are; 0 for a picture without atoms."""
        return 0

    def keys_for(self, logit: Logit, inner: Affine | None = None, mask: Mask | None = None, sums: Request | None = None) -> Atoms:
        """The keys as a law sees them: in order under a mask that goes by order, so that a streamed sum can skip what no query sees; with
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

    def attend(self, normalize: NormalizationLike, logit: Logit, inner: Affine | None, mask: Mask | None, sums: Request | None) -> Velocity:
        """The average of a normalization over this picture: of its keys, unless it has a closed form."""
        return normalize.average(logit, self.keys_for(logit, inner, mask, sums), sums)

    def check_law(self, law: AttentionLike) -> None:
        """Raise if this picture cannot carry a law with a logit, a value, a mask and a normalization."""

    def check_symmetry(self, law: LawLike) -> None:
        """Raise if the value and the logit of a law break a symmetry that this picture assumes."""

    def around(self, average: Velocity) -> Velocity:
        """An average over the keys of this picture as its queries need it."""
        return average

    @property
    def order_axis(self) -> Any:
        """The axis of the order of tokens, if there is one."""
        return None

    @property
    def sharpest(self) -> float:
        """The largest sharpness of a kernel that the picture resolves: that of a kernel as wide as its cells."""
        return math.inf

    # What the solver asks of a picture.

    # Whether a measure of this picture that a map has moved is one of this picture again, without a closure.
    exact: ClassVar[bool] = True

    def report(self, velocity: Velocity | RowFunction) -> dict[str, PyTree]:
        """Figures on how well this picture carries a velocity, for `path.stats`; nothing for a picture without a closure."""
        return {}

    def noise(self, sigma: Scalar, *, key: Key | None) -> Noise:
        """Noise of this size on this picture; only tokens draw it from a key."""
        check.key("key", key, optional=True)
        return Noise(positive("noise", sigma).astype(self.dtype), None)

    def default_step(self, noise: Noise | None, length: float) -> float | None:
        """The fixed step over a time of this length, where steps are fixed if the user does not say; `None` for adaptive ones."""
        return None

    def motion(self, velocity: Drift, noise: Noise | None = None) -> diffrax.AbstractTerm[Any, Any]:
        """The differential equation of the state, for a velocity `velocity(mu, t)` and noise: its diffrax terms."""
        if noise is not None:
            raise ValueError(f"a {type(self).__name__} takes no noise")
        return diffrax.ODETerm(lambda t, state, args: self._rate(velocity, t, state))  # pyright: ignore[reportArgumentType]

    def _rate(self, velocity: Drift, t: Scalar, state: PyTree) -> PyTree:
        """A stage of a step may lie a little off the space: the velocity is the one at the state that it retracts to."""
        mu = self.with_state(self.retract(state))
        return mu.rate(velocity(mu, t))

    def default_solver(self, noise: Noise | None = None) -> diffrax.AbstractSolver[Any]:
        """The stepper used when `solve` is not given one."""
        return diffrax.Tsit5()

    def own_steps(self, longest: Scalar) -> diffrax.AbstractStepSizeController[Any, Any] | None:
        """The controller of a picture whose steps follow from a bound of its own; `None` if they follow from tolerances."""
        return None
