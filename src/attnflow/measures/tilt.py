"""A measure tilted by a logit: what softmax, unnormalized attention and energies ask of every picture."""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._types import PyTree
from attnflow.measures.velocity import Reporting, Velocity
from attnflow.sums import Atoms, Engine, Logit, Pairs, Request, accuracy, average, fitted, log_integral


class Tilt(Reporting):
    r"""The measures $e^{\ell(x, y)} \,d\mu(y) / Z(x)$ for one logit, by their normalizers $Z(x) = \int e^{\ell(x,y)} \,d\mu(y)$ and means.

    A picture whose tilts have a closed form returns a subclass of its own from `tilt`.
    """

    @abc.abstractmethod
    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> tuple[Float[Array, " m"], Float[Array, "m e"]]:
        r"""$\log Z$ and the mean at every query."""

    def log_norm(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, " m"]:
        r"""$\log Z$ alone."""
        return self(x, order)[0]

    @property
    def mean(self) -> Velocity:
        """The map from a query to the mean of its tilt."""
        return TiltedMean(self)

    def integral(self, log_scale: Float[Array, ""]) -> Velocity:
        r"""$x \mapsto e^c \int e^{\ell(x, y)}\, y \,d\mu(y)$, $c$ the `log_scale`."""
        return TiltedIntegral(self, log_scale)


class TiltedAtoms(Tilt):
    """The tilts of tokens or cells, by sums."""

    logit: Logit
    atoms: Atoms
    sums: Request | None

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> tuple[Float[Array, " m"], Float[Array, "m e"]]:
        return average(self.logit, x, self.atoms, self.sums, order)

    def log_norm(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, " m"]:
        return log_integral(self.logit, x, self.atoms, self.sums, order)

    @property
    def report(self) -> dict[str, PyTree]:
        return accuracy(self._own, self.sums)

    @property
    def engines(self) -> tuple[Engine, ...]:
        return (fitted(self._own, self.sums),)

    @property
    def _own(self) -> Pairs:
        """The keys as queries, at which figures are taken."""
        return Pairs(self.logit, self.atoms.points, self.atoms, self.atoms.order)


class OfTilt(Velocity):
    """A velocity made of a tilt."""

    tilt: eqx.AbstractVar[Tilt]

    @property
    def parts(self) -> tuple[Tilt, ...]:
        return (self.tilt,)


class TiltedMean(OfTilt):
    """`x -> integral e^l y dmu / Z(x)`."""

    tilt: Tilt

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m e"]:
        return self.tilt(x, order)[1]


class TiltedIntegral(OfTilt):
    """`x -> e^c integral e^l y dmu`."""

    tilt: Tilt
    log_scale: Float[Array, ""]

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m e"]:
        log_norm, mean = self.tilt(x, order)
        return jnp.exp(log_norm + self.log_scale)[:, None] * mean
