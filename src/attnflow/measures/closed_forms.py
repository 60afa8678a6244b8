"""What a picture of a measure can say of itself: its density, its law on a line, itself as tokens. Each of these says what the picture
cannot do, unless the picture does it."""

from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray

from attnflow._check import refusal
from attnflow.measures.line import Law
from attnflow.measures.velocity import Velocity
from attnflow.numerics.arrays import floats, known

_NORMAL = "a Gaussian or a GaussianMixture"


class ClosedForms(eqx.Module):
    """`smooth` measures have `log_density(x)` and `score(x)` in closed form; `discrete` ones are tokens, or cells that count as such."""

    smooth: ClassVar[bool] = False
    discrete: ClassVar[bool] = False

    def log_density(self, x: Any) -> Float[Array, " m"]:
        r"""$\log \rho(x)$ at every row of `x`."""
        raise self._cannot(_NORMAL, "af.log_density(mu, x, bandwidth) smooths tokens")

    def score(self, x: Any) -> Float[Array, "m d"]:
        r"""$\nabla\log\rho(x)$ at every row of `x`."""
        raise self._cannot(_NORMAL, "af.kernel_score(mu, eps) estimates that of tokens")

    def score_map(self) -> Velocity:
        r"""$x \mapsto \nabla\log\rho(x)$; `Affine` for a Gaussian."""
        return Score(self)

    def entropy(self) -> Float[Array, ""]:
        r"""$-\int \log\rho \,d\mu$."""
        raise self._cannot("Particles, a Grid or a Gaussian", "draw tokens with .sample(n, key=key)")

    def fisher_information(self) -> Float[Array, ""]:
        r"""$\int |\nabla\log\rho|^2 \,d\mu$."""
        raise self._cannot("Particles, a Grid, a Gaussian or a GaussianMixture", "af.fisher_information(mu, bandwidth) smooths tokens")

    def heat(self, t: Any) -> Any:
        r"""The measure after the heat flow $\partial_t \rho = \frac12 \Delta\rho$ for a time $t$."""
        raise self._cannot(_NORMAL, "use sinkhorn_step on tokens")

    @property
    def components(self) -> tuple[Float[Array, " k"], Float[Array, "k d"], Float[Array, "k d d"]]:
        """The weights, means and covariances of the Gaussians that it is made of."""
        raise self._cannot(_NORMAL)

    def each(self, change: Any) -> Any:
        r"""Every $\mathcal{N}(m, S)$ that it is made of replaced by $\mathcal{N}(\cdot)$ of `change(m, S)`."""
        raise self._cannot(_NORMAL, "use gradient_flow on tokens")

    def particles(self) -> Any:
        """A discrete measure as weighted tokens."""
        raise self._cannot("Particles or a Grid", "draw tokens with .sample(n, key=key)")

    def support(self) -> Any:
        """The tokens of a discrete measure that its mass is on."""
        return self.particles()

    def tokens(self, eps: Float[Array, ""], key: PRNGKeyArray | None) -> Any:
        r"""The measure as tokens for a bridge at temperature $\varepsilon$: its own, those of a rule fine enough, or a sample."""
        raise self._cannot("Particles or a Grid in R^d, a Gaussian or a GaussianMixture", "give it a method tokens(eps, key)")

    def projected(self, direction: Float[Array, " d"]) -> Law:
        r"""The law of $\langle x, \theta\rangle$ on the line, $\theta$ the `direction`."""
        raise self._cannot("one of Particles, Grid, Gaussian and GaussianMixture", "give it a method projected(direction)")

    def angles(self) -> Law:
        r"""The law of the angle, in $[0, 2\pi)$, of a discrete measure on the circle."""
        return self.particles().angles()

    def latitude(self) -> Law | None:
        """The law of the angle to the first axis, for a measure on a sphere that is symmetric about it by construction."""
        return None

    def check_places(self) -> None:
        """Raise if what it is made of are not places in its space, which a distance needs."""

    def check_resolution(self, sharpness: float) -> None:
        """Raise if a kernel of width $k^{-1/2}$, $k$ the `sharpness`, is too narrow for it."""

    def _cannot(self, due: str, cure: str = "") -> TypeError:
        return TypeError(refusal("mu", due, self, cure))


class Score(Velocity):
    """The score of a measure that has one."""

    measure: Any

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        return self.measure.score(x)


def duration(t: Any) -> Float[Array, ""]:
    """A time that is not negative."""
    t = floats("t", t, "")
    if known(t) and float(t) < 0:
        raise ValueError(f"t must not be negative, got {float(t)}")
    return t
