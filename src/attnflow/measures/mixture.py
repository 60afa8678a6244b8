"""Mixtures of Gaussians: densities and scores in closed form. A target and a start, not a state of the solver."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from attnflow import _check as check
from attnflow._arrays import array, floats, known, one_program, shares
from attnflow._linalg import covariance
from attnflow.measures.base import Measure
from attnflow.measures.gaussian import Gaussian
from attnflow.measures.particles import Particles


class GaussianMixture(Measure):
    r"""$\sum_k w_k\, \mathcal{N}(m_k, S_k)$ with positive definite covariances.

    **Arguments:** `weights` `[k]` (non-negative, divided by their sum), `means` `[k, d]`, `covs` `[k, d, d]`.
    """

    weights: Float[Array, " k"]
    means: Float[Array, "k d"]
    covs: Float[Array, "k d d"]

    def __init__(self, weights: Any, means: Any, covs: Any):
        weights, means, covs = (
            shares("weights", weights),
            floats("means", means, "k d"),
            floats("covs", covs, "k d d"),
        )
        k, d = means.shape
        if weights.shape != (k,) or covs.shape != (k, d, d):
            raise ValueError(
                "weights [k], means [k, d] and covs [k, d, d] must agree, "
                f"got {list(weights.shape)}, {list(means.shape)} and {list(covs.shape)}"
            )
        covs = _stacked([covariance(f"covs[{i}]", cov) for i, cov in enumerate(np.asarray(covs) if known(covs) else covs)])
        if known(covs):
            lowest = np.linalg.eigvalsh(np.asarray(covs))[:, 0]
            if lowest.min() <= 0:
                raise ValueError(f"covs must be positive definite, got smallest eigenvalue {lowest.min():.6g} in [{lowest.argmin()}]")
        dtype = jnp.result_type(weights, means, covs)
        self.weights = array(weights, dtype)
        self.means, self.covs = array(means, dtype), array(covs, dtype)

    @property
    def dim(self) -> int:
        return self.means.shape[1]

    @property
    def mean(self) -> Float[Array, " d"]:
        return self.weights @ self.means

    @property
    @one_program
    def cov(self) -> Float[Array, "d d"]:
        spread = self.means - self.mean[None]
        return jnp.tensordot(self.weights, self.covs, axes=1) + spread.T @ (spread * self.weights[:, None])

    def integrate(self, f: Callable[[Float[Array, "n d"]], Float[Array, "n ..."]]) -> Float[Array, "..."]:
        r"""$E f$, by Gauss-Hermite quadrature on each component: for smooth $f$ and $d \le 6$."""
        check.function("f", f, "a function of rows of points")
        parts = jnp.stack([Gaussian(m, s).integrate(f) for m, s in zip(self.means, self.covs)])
        return jnp.tensordot(self.weights, parts, axes=1)

    def log_density(self, x: Any) -> Float[Array, " m"]:
        r"""$\log \rho(x)$."""
        terms, _ = self._components(x)
        return jax.nn.logsumexp(terms, axis=0)

    def density(self, x: Any) -> Float[Array, " m"]:
        r"""$\rho(x)$."""
        return jnp.exp(self.log_density(x))

    def score(self, x: Any) -> Float[Array, "m d"]:
        r"""$\nabla\log\rho(x) = -\sum_k p(k|x)\, S_k^{-1} (x - m_k)$."""
        terms, pulls = self._components(x)
        return -jnp.einsum("km,kmd->md", jax.nn.softmax(terms, axis=0), pulls)

    def sample(self, n: int, *, key: PRNGKeyArray) -> Particles:
        """$n$ independent tokens."""
        check.count("n", n)
        check.key("key", key)
        pick, move = jax.random.split(key)
        component = jax.random.choice(pick, len(self.weights), (n,), p=self.weights)
        normal = jax.random.normal(move, (n, self.dim), self.means.dtype)
        points = self.means[component] + jnp.einsum("nij,nj->ni", jnp.linalg.cholesky(self.covs)[component], normal)
        return Particles(points)

    def _components(self, x: Any) -> tuple[Float[Array, "k m"], Float[Array, "k m d"]]:
        """`log w_k N(x; m_k, S_k)` and `S_k^-1 (x - m_k)`."""
        x = array(floats("x", x, "m d"), self.means.dtype)
        if x.shape[1] != self.dim:
            raise ValueError(f"x must have rows in R^{self.dim} like the mixture, got {list(x.shape)}")
        return _terms(self.weights, self.means, self.covs, x)


@one_program
def _terms(
    weights: Float[Array, " k"], means: Float[Array, "k d"], covs: Float[Array, "k d d"], x: Float[Array, "m d"]
) -> tuple[Float[Array, "k m"], Float[Array, "k m d"]]:
    def one(mean: Array, cov: Array) -> tuple[Array, Array]:
        factor = jnp.linalg.cholesky(cov)
        pull = jax.scipy.linalg.cho_solve((factor, True), (x - mean[None]).T).T
        log_norm = jnp.log(jnp.diagonal(factor)).sum() + 0.5 * len(mean) * np.log(2 * np.pi)
        return -0.5 * jnp.sum((x - mean[None]) * pull, axis=1) - log_norm, pull

    logs, pulls = jax.vmap(one)(means, covs)
    return logs + jnp.log(weights)[:, None], pulls


def _stacked(matrices: list[Array]) -> Array:
    """Matrices on a new first axis; on the host, if they are there."""
    return array(np.stack([np.asarray(m) for m in matrices])) if known(matrices) else jnp.stack(matrices)
