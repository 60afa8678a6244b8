"""A Gaussian, moved by affine velocities."""

import itertools
from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from attnflow import _check as check
from attnflow._arrays import array, floats
from attnflow._linalg import covariance, psd_sqrt
from attnflow.measures.base import FlowingMeasure, Measure, Noise, Velocity, affine_only, values_of
from attnflow.measures.particles import Particles
from attnflow.spaces import Euclidean

# Gauss-Hermite nodes an axis, by dimension: exact to degree 2k - 1, at most about 17,000 nodes in all.
_NODES = {1: 64, 2: 40, 3: 20, 4: 11, 5: 7, 6: 5}


class Gaussian(FlowingMeasure):
    r"""$\mathcal{N}(m, S)$ on $\mathbb{R}^d$; $S$ may be singular.

    **Arguments:** `mean` `[d]` and `cov` `[d, d]`, symmetric positive semidefinite.
    """

    mean: Float[Array, " d"]
    cov: Float[Array, "d d"]
    space: Euclidean

    def __init__(self, mean: Any, cov: Any):
        mean, cov = floats("mean", mean, "d"), covariance("cov", cov)
        if len(mean) != len(cov):
            raise ValueError(f"mean and cov must agree in dimension, got {list(mean.shape)} and {list(cov.shape)}")
        dtype = jnp.result_type(mean, cov)
        self.mean, self.cov, self.space = array(mean, dtype), array(cov, dtype), Euclidean()

    @property
    def dim(self) -> int:
        return self.mean.shape[0]

    @classmethod
    def matching(cls, mu: Measure) -> "Gaussian":
        """The Gaussian with the mean and covariance of another measure."""
        mu = check.measure("mu", mu, Measure, "a measure, which has a mean and a covariance")
        return cls(mu.mean, mu.cov)

    def integrate(self, f: Callable[[Float[Array, "n d"]], Float[Array, "n ..."]]) -> Float[Array, "..."]:
        r"""$E f$, by a tensor Gauss-Hermite rule: for smooth $f$ and $d \le 6$."""
        nodes, weights = _hermite(self.dim)
        points = self.mean[None] + jnp.asarray(nodes, self.dtype) @ psd_sqrt(self.cov)
        return jnp.tensordot(jnp.asarray(weights, self.dtype), values_of(f, points), axes=1)

    def sample(self, n: int, *, key: PRNGKeyArray) -> Particles:
        """$n$ independent tokens."""
        check.count("n", n)
        check.key("key", key)
        return Particles(self.mean[None] + jax.random.normal(key, (n, self.dim), self.dtype) @ psd_sqrt(self.cov))

    @property
    def state(self) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        return self.mean, self.cov

    def with_state(self, state: tuple[Float[Array, " d"], Float[Array, "d d"]]) -> "Gaussian":
        return eqx.tree_at(lambda mu: (mu.mean, mu.cov), self, state)

    def rate(self, velocity: Velocity) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        r"""$m' = M m + b$, $S' = M S + S M^\top$."""
        affine = affine_only(velocity, "Gaussian")
        flux = affine.matrix @ self.cov
        return affine.matrix @ self.mean + affine.offset, flux + flux.T

    def push(self, map: Velocity) -> "Gaussian":
        r"""$\mathcal{N}(M m + b, M S M^\top)$."""
        affine = affine_only(map, "Gaussian")
        return self.with_state((affine.matrix @ self.mean + affine.offset, affine.matrix @ self.cov @ affine.matrix.T))

    def settle(self, state: tuple[Float[Array, " d"], Float[Array, "d d"]]) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        mean, cov = state
        return mean, (cov + cov.T) / 2

    def motion(self, velocity: Callable, noise: Noise | None = None) -> diffrax.AbstractTerm:
        r"""With noise the covariance gains $\sigma^2 I$ in unit time."""
        if noise is None:
            return super().motion(velocity)
        gain = noise.sigma.astype(self.dtype) ** 2 * jnp.eye(self.dim, dtype=self.dtype)

        def rate(t: Any, state: Any, args: Any) -> Any:
            mean, cov = self._rate(velocity, t, state)
            return mean, cov + gain

        return diffrax.ODETerm(rate)  # pyright: ignore[reportArgumentType]

    @staticmethod
    def error_norm(scaled_error: tuple[Float[Array, " d"], Float[Array, "d d"]]) -> Float[Array, ""]:
        mean, cov = scaled_error
        worst = jnp.sqrt(jnp.maximum(jnp.max(mean**2), jnp.max(cov**2)))
        return jnp.where(jnp.isnan(worst), jnp.inf, worst)

    def frame(self, states: Any) -> dict[str, tuple[tuple[str, ...], Any]]:
        return {"mean": (("time", "coordinate"), states[0]), "cov": (("time", "coordinate", "coordinate_"), states[1])}


def _hermite(dim: int) -> tuple[np.ndarray, np.ndarray]:
    if dim not in _NODES:
        raise ValueError(
            f"integrate on a Gaussian uses quadrature up to dimension {max(_NODES)}, got {dim}; "
            "draw tokens with .sample(n, key=key) and integrate on those"
        )
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES[dim])
    grid = np.array(list(itertools.product(nodes, repeat=dim)))
    mass = np.prod(np.array(list(itertools.product(weights / weights.sum(), repeat=dim))), axis=1)
    return grid, mass
