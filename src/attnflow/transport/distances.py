"""Wasserstein distances where they are exact and cheap."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._linalg import psd_sqrt
from attnflow.measures import Gaussian, Measure, Particles


def wasserstein2(mu: Measure, nu: Measure) -> Float[Array, ""]:
    """`W2(mu, nu) = min (E |x-y|^2)^1/2` over couplings: exact for two clouds on the line, by sorting, and for two Gaussians."""
    if mu.dim != nu.dim:
        raise ValueError(f"both measures must live in one space, got R^{mu.dim} and R^{nu.dim}")
    if isinstance(mu, Gaussian) and isinstance(nu, Gaussian):
        return bures(mu, nu)
    if isinstance(mu, Particles) and isinstance(nu, Particles) and mu.dim == 1:
        return _on_the_line(mu, nu)
    raise TypeError(
        f"wasserstein2 is for two Gaussians or two clouds in R^1, got {type(mu).__name__} and {type(nu).__name__} in R^{mu.dim}"
    )


def bures(mu: Gaussian, nu: Gaussian) -> Float[Array, ""]:
    """`(|m - n|^2 + tr S + tr T - 2 tr (S^1/2 T S^1/2)^1/2)^1/2` for N(m, S) and N(n, T)."""
    root = psd_sqrt(mu.cov)
    inner = root @ nu.cov @ root
    shape = jnp.trace(mu.cov) + jnp.trace(nu.cov) - 2 * jnp.trace(psd_sqrt((inner + inner.T) / 2))
    return jnp.sqrt(jnp.sum((mu.mean - nu.mean) ** 2) + jnp.maximum(shape, 0))


def _on_the_line(mu: Particles, nu: Particles) -> Float[Array, ""]:
    """The monotone coupling: between two levels of mass at which either quantile function jumps, both are constant."""
    x, p = _sorted(mu)
    y, q = _sorted(nu)
    levels = jnp.sort(jnp.concatenate([p, q]))
    mass = jnp.diff(levels, prepend=0.0)
    middle = levels - mass / 2
    i = jnp.minimum(jnp.searchsorted(p, middle), len(p) - 1)
    j = jnp.minimum(jnp.searchsorted(q, middle), len(q) - 1)
    return jnp.sqrt(jnp.vdot(mass, (x[i] - y[j]) ** 2))


def _sorted(mu: Particles) -> tuple[Array, Array]:
    """Tokens in order, with the mass up to each."""
    rows = jnp.argsort(mu.points[:, 0])
    return mu.points[rows, 0], jnp.cumsum(jnp.exp(mu.log_weights)[rows])
