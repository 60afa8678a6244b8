"""Tokens without sampling noise: a smooth measure as weighted tokens on a grid, and integrals against it."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._check import count, measure, warn
from attnflow._types import RowFunction, Scalar
from attnflow.measures.base import Measure
from attnflow.measures.particles import Particles
from attnflow.numerics.arrays import known, positive

# The most nodes per axis, by dimension: 2^22 in all.
_MOST_NODES = {1: 2**22, 2: 2**11, 3: 161}
# Nodes per axis of the rule for an integral, by dimension.
_NODES = {1: 1000, 2: 150, 3: 50}
# The error of an integral above which a rule is called too coarse.
_COARSE = 1e-6


def quadrature(mu: Measure, nodes: int = 256, *, reach: Scalar = 8.5) -> Particles:
    r"""The trapezoidal rule for `mu` as tokens: a grid of `nodes` per axis over every component's mean $\pm$ `reach` standard deviations,
    weighted with the density.

    For a smooth density the rule converges faster than any power of the spacing $h$: it integrates $e^{-|x-y|^2 / (2\varepsilon)}$ to about
    $e^{-2\pi^2 \varepsilon / h^2}$. Moved by a smooth map, the tokens stay as good a rule for the measure moved with them, so that schemes
    can be compared below any sampling noise. For $d \le 3$ and covariances of full rank. A grid too coarse for the density itself warns:
    its sums are off by $e^{-2\pi^2 \langle k, S k\rangle}$, $k$ a frequency of the grid and $S$ a covariance.
    """
    mu = measure("mu", mu, Measure, "a Gaussian or a GaussianMixture")
    _, means, covs = mu.components
    if not known(mu):
        raise TypeError("mu must have known values, got traced ones; call quadrature outside jit and grad")
    if mu.dim not in _MOST_NODES:
        raise ValueError(f"quadrature is for measures on R^1, R^2 and R^3, got R^{mu.dim}; draw tokens with mu.sample(n, key=key)")
    if not 2 <= count("nodes", nodes, 0) <= _MOST_NODES[mu.dim]:
        raise ValueError(
            f"nodes must be between 2 and {_MOST_NODES[mu.dim]} per axis in R^{mu.dim}, got {nodes}; or draw tokens with .sample"
        )
    means, covs = np.asarray(means), np.asarray(covs)
    if not (least := np.linalg.eigvalsh(covs).min()) > 0:
        raise ValueError(f"quadrature is for covariances of full rank, got smallest eigenvalue {least:.6g}")
    spread = float(positive("reach", reach)) * np.sqrt(np.diagonal(covs, axis1=1, axis2=2))
    low, high = (means - spread).min(axis=0), (means + spread).max(axis=0)
    _check_spacing(covs.astype(np.float64), (high - low) / (nodes - 1), nodes)
    axes = [np.linspace(a, b, nodes) for a, b in zip(low, high)]
    points = jnp.asarray(np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, mu.dim), mu.dtype)
    log_density = mu.log_density(points)
    return Particles(points, weights=jnp.exp(log_density - log_density.max()))


def integral(mu: Measure, f: RowFunction) -> Float[Array, ""]:
    r"""$\int f \,d\mu$ by the trapezoidal rule, for functions of $\log\rho$: these have poles in the complex plane where the terms of a
    mixture cancel, near which a Gauss rule converges slowly."""
    if mu.dim not in _NODES:
        raise ValueError(f"this is integrated on a grid, in up to {max(_NODES)} dimensions, got {mu.dim}")
    return quadrature(mu, _NODES[mu.dim]).integrate(f)


def _check_spacing(covs: Float[np.ndarray, "k d d"], spacing: Float[np.ndarray, " d"], nodes: int) -> None:
    """Warn if the grid does not resolve a component: by Poisson's formula the rule sees its characteristic function `e^{-|.|^2/2}` at the
    frequencies of the grid, where only zero counts."""
    turns = np.array(list(itertools.product(range(-2, 3), repeat=len(spacing))))
    waves = 2 * np.pi * turns[np.any(turns != 0, axis=1)] / spacing
    least = float(np.einsum("wi,kij,wj->kw", waves, covs, waves).min())
    if math.exp(-least / 2) > _COARSE:
        needed = math.ceil((nodes - 1) * math.sqrt(-2 * math.log(_COARSE) / least)) + 1
        warn(
            f"quadrature with {nodes} nodes per axis does not resolve the density: its integrals are off by about "
            f"{math.exp(-least / 2):.0e}; use at least {needed} nodes"
            + ("" if needed <= _MOST_NODES[len(spacing)] else ", which are too many: draw tokens with mu.sample")
        )
