"""What a measure is, and what a picture of one can say of itself: its density, its distribution on a line, itself as tokens."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import ArrayLike, Key, RowFunction, Scalar
from attnflow.measures.line import Distribution
from attnflow.measures.velocity import Velocity
from attnflow.numerics.arrays import floats, known
from attnflow.spaces import Space

_NORMAL = "a Gaussian or a GaussianMixture"


class Measure(eqx.Module):
    r"""A probability measure on a subset of $\mathbb{R}^d$: total mass 1, averages are integrals against it.

    A subclass must give

    - `mean` `[d]`, $m = \int y \,d\mu$, and `cov` `[d, d]`, $S = \int (y - m)(y - m)^\top d\mu$ (divided by the mass, not by n - 1), as
      fields or properties;
    - `space`: where it lives, such as `Euclidean()`;
    - `dim`: the dimension $d$;
    - `integrate(f)`.

    Every other method has a default, which refuses in one line what this picture cannot do. Two class variables say what it can:
    `smooth` measures have `log_density(x)` and `score(x)`; `discrete` ones are tokens, or cells that count as such, and have `particles()`.
    Bridges ask for `tokens(eps, key=key)`, distances for `projected(direction)`.
    """

    mean: eqx.AbstractVar[Float[Array, " d"]]
    cov: eqx.AbstractVar[Float[Array, "d d"]]
    space: eqx.AbstractVar[Space]
    smooth: ClassVar[bool] = False
    discrete: ClassVar[bool] = False

    @abc.abstractmethod
    def integrate(self, f: RowFunction) -> Float[Array, "..."]:
        r"""$\int f \,d\mu$, for a function of rows of points, `[n, d]` to `[n, ...]`: `f(points)[i]` belongs to `points[i]`."""

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

    def log_density(self, x: ArrayLike) -> Float[Array, " m"]:
        r"""$\log \rho(x)$ at every row of `x`."""
        raise self._cannot(_NORMAL, "af.log_density(mu, x, bandwidth) smooths tokens")

    def score(self, x: ArrayLike) -> Float[Array, "m d"]:
        r"""$\nabla\log\rho(x)$ at every row of `x`."""
        raise self._cannot(_NORMAL, "af.kernel_score(mu, eps) estimates that of tokens")

    def score_map(self) -> Velocity:
        r"""$x \mapsto \nabla\log\rho(x)$; `Affine` for a Gaussian."""
        return Score(self)

    def entropy(self) -> Float[Array, ""]:
        r"""$-\int \log\rho \,d\mu$."""
        raise self._cannot("Particles, a Grid, a Gaussian or a GaussianMixture", "draw tokens with .sample(n, key=key)")

    def fisher_information(self) -> Float[Array, ""]:
        r"""$\int |\nabla\log\rho|^2 \,d\mu$."""
        raise self._cannot("Particles, a Grid, a Gaussian or a GaussianMixture", "draw tokens with .sample(n, key=key)")

    def heat(self, t: Scalar) -> "Measure":
        r"""The measure after the heat flow $\partial_t \rho = \frac12 \Delta\rho$ for a time $t$."""
        raise self._cannot(_NORMAL, "use sinkhorn_step on tokens")

    @property
    def components(self) -> tuple[Float[Array, " k"], Float[Array, "k d"], Float[Array, "k d d"]]:
        """The weights, means and covariances of the Gaussians that it is made of."""
        raise self._cannot(_NORMAL)

    def each(self, change: Callable[[Array, Array], tuple[Array, Array]]) -> "Measure":
        r"""Every $\mathcal{N}(m, S)$ that it is made of replaced by $\mathcal{N}(\cdot)$ of `change(m, S)`."""
        raise self._cannot(_NORMAL, "use gradient_flow on tokens")

    def particles(self) -> Any:
        """A discrete measure as weighted `Particles`."""
        raise self._cannot("Particles or a Grid", "draw tokens with .sample(n, key=key)")

    def support(self) -> Any:
        """The tokens of a discrete measure that have mass, as `Particles`."""
        return self.particles()

    def tokens(self, eps: Float[Array, ""], *, key: Key | None) -> Any:
        r"""The measure as `Particles` for a bridge at temperature $\varepsilon$: its own tokens, those of a quadrature rule that is fine
        enough, or a sample."""
        raise self._cannot("Particles or a Grid in R^d, a Gaussian or a GaussianMixture", "give it a method tokens(eps, *, key)")

    def projected(self, direction: Float[Array, " d"]) -> Distribution:
        r"""The distribution of $\langle x, \theta\rangle$ on the line, $\theta$ the `direction`."""
        raise self._cannot("one of Particles, Grid, Gaussian and GaussianMixture", "give it a method projected(direction)")

    def angles(self) -> Distribution:
        r"""The distribution of the angle, in $[0, 2\pi)$, of a discrete measure on the circle."""
        return self.particles().angles()

    def latitude(self) -> Distribution | None:
        """The distribution of the angle to the first axis, for a measure on a sphere that is symmetric about it by construction."""
        return None

    def check_places(self) -> None:
        """Raise if its tokens or cells are not points of its space, which a distance needs."""

    def check_resolution(self, sharpness: float) -> None:
        """Raise if a kernel of width $k^{-1/2}$, $k$ the `sharpness`, is too narrow for it."""

    def _cannot(self, due: str, cure: str = "") -> TypeError:
        return TypeError(check.refusal("mu", due, self, cure))


class Score(Velocity):
    """The score of a measure that has one."""

    measure: Measure

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        return self.measure.score(x)


def values_of(f: RowFunction, points: Float[Array, "n d"]) -> Array:
    """A function at points, refused unless it gives one value for each of them."""
    values = check.function("f", f, "a function of rows of points")(points)
    if jnp.shape(values)[:1] != (len(points),):
        raise ValueError(f"f must give one value per row, [{len(points)}, ...], got shape {list(jnp.shape(values))}")
    return jnp.asarray(values)


def nonnegative(name: str, value: Scalar) -> Float[Array, ""]:
    """A number that is not negative."""
    number = floats(name, value, "")
    if known(number) and float(number) < 0:
        raise ValueError(f"{name} must not be negative, got {float(number)}")
    return number
