"""Tokens without sampling noise: a smooth law as weighted tokens on a grid."""

import jax.numpy as jnp
import numpy as np

from attnflow._arrays import known
from attnflow.measures.base import Measure
from attnflow.measures.gaussian import Gaussian
from attnflow.measures.mixture import GaussianMixture
from attnflow.measures.particles import Particles

_MOST = 2**22


def quadrature(mu: Measure, nodes: int = 256, reach: float = 8.5) -> Particles:
    r"""The trapezoidal rule for `mu` as tokens: a grid of `nodes` an axis over every component's mean $\pm$ `reach` standard deviations,
    weighted with the density.

    For a smooth law the rule converges faster than any power of the spacing $h$: it integrates $e^{-|x-y|^2 / (2\varepsilon)}$ to about
    $e^{-2\pi^2 \varepsilon / h^2}$. Moved by a smooth map, the tokens stay as good a rule for the law moved with them, so that schemes can
    be compared below any sampling noise. For $d \le 3$ and covariances of full rank.
    """
    if not isinstance(mu, Gaussian | GaussianMixture) or not known(mu):
        raise TypeError(f"quadrature is for a Gaussian or a GaussianMixture with known values, got {type(mu).__name__}")
    if nodes < 2 or nodes**mu.dim > _MOST:
        raise ValueError(f"nodes must be at least 2, with at most {_MOST} in all, got {nodes} in R^{mu.dim}; draw tokens with .sample")
    law = GaussianMixture([1.0], mu.mean[None], mu.cov[None]) if isinstance(mu, Gaussian) else mu
    spread = reach * np.sqrt(np.diagonal(np.asarray(law.covs), axis1=1, axis2=2))
    low, high = (np.asarray(law.means) - spread).min(axis=0), (np.asarray(law.means) + spread).max(axis=0)
    axes = [np.linspace(a, b, nodes) for a, b in zip(low, high)]
    points = jnp.asarray(np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, mu.dim), mu.mean.dtype)
    log_density = law.log_density(points)
    return Particles(points, weights=jnp.exp(log_density - log_density.max()))
