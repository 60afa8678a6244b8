"""The density of tokens, smoothed by a Gaussian kernel, with sums on every engine."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._types import ArrayLike
from attnflow.measures import Measure, Particles
from attnflow.measures.velocity import Velocity
from attnflow.numerics.arrays import rows
from attnflow.sums import Atoms, Request, average, isotropic, log_integral


def smoothed(mu: Measure, eps: Float[Array, ""], sums: Request | None) -> Any:
    r"""$\rho \ast \mathcal{N}(0, \varepsilon I)$, with its `log_density` and `score_map`: the heat flow for time $\varepsilon$, and for
    tokens a sum over them."""
    return KernelDensity(mu, eps, sums) if isinstance(mu, Particles) else mu.heat(eps)


class KernelDensity(eqx.Module):
    r"""$\int \mathcal{N}(x; y, \varepsilon I) \,d\mu(y)$ of tokens in $\mathbb{R}^d$. A token counts in its own density."""

    measure: Particles
    eps: Float[Array, ""]
    sums: Request | None

    def log_density(self, x: ArrayLike) -> Float[Array, " m"]:
        """The logarithm of the density at every row of `x`."""
        mu = self.measure
        inner = log_integral(isotropic(1 / self.eps, mu.dim), self.rows(x), Atoms(mu.points, mu.log_weights), self.sums)
        return inner - 0.5 * mu.dim * jnp.log(2 * jnp.pi * self.eps)

    def score_map(self) -> Velocity:
        """Its score."""
        return KernelScore(self)

    def entropy(self) -> Float[Array, ""]:
        """Its cross-entropy with the tokens, an estimate of the entropy of the density that they are a sample of."""
        logs = self.log_density(self.measure.points)
        return -self.measure.integrate(lambda _: logs)

    def fisher_information(self) -> Float[Array, ""]:
        """The mean square of its score at the tokens."""
        return self.measure.integrate(lambda x: jnp.sum(self.score_map()(x) ** 2, axis=1))

    def rows(self, x: ArrayLike) -> Float[Array, "m d"]:
        """Points `[m, d]`, refused unless they are in the space of the tokens."""
        return rows("x", x, self.measure.dim).astype(self.measure.dtype)


class KernelScore(Velocity):
    """The score of a kernel density, `(E[y|x] - x) / eps`."""

    density: KernelDensity

    def __call__(self, x: ArrayLike, order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        mu, eps, points = self.density.measure, self.density.eps, self.density.rows(x)
        # About the mean: far from the origin the difference of average and x would have lost its digits.
        u, keys = points - mu.mean[None], Atoms(mu.points - mu.mean[None], mu.log_weights)
        _, mean = average(isotropic(1 / eps, mu.dim), u, keys, self.density.sums)
        return (mean - u) / eps
