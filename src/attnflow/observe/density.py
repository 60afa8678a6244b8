"""The entropy of a density; that of a cloud of tokens, whose density is by a Gaussian kernel, with sums on every engine."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._arrays import floats, positive
from attnflow.measures import Gaussian, GaussianMixture, Grid, Particles
from attnflow.spaces import Euclidean
from attnflow.sums import Atoms, Engine, check_engine, isotropic, log_integral


def log_density(mu: Particles, x: Any, bandwidth: Any, sums: Engine | None = None) -> Float[Array, " m"]:
    r"""$\log \int \mathcal{N}(x; y, h^2 I) \,d\mu(y)$ at every row of `x`: the density of the cloud, smoothed by the heat flow for time
    $h^2$.

    **Arguments:** `x` is `[m, d]`; `bandwidth` is $h$. For tokens in $\mathbb{R}^d$.
    """
    check_engine(sums)
    h, x = _bandwidth(mu, bandwidth), floats("x", x, "m d").astype(mu.dtype)
    if x.shape[1] != mu.dim:
        raise ValueError(f"x must have rows in R^{mu.dim} like the tokens, got {list(x.shape)}")
    inner = log_integral(isotropic(h**-2, mu.dim), x, Atoms(mu.points, mu.log_weights), sums)
    return inner - 0.5 * mu.dim * jnp.log(2 * jnp.pi * h**2)


def entropy(mu: Any, bandwidth: Any = None, sums: Engine | None = None) -> Float[Array, ""]:
    r"""$-\int \log\rho \,d\mu$, the differential entropy.

    - Of a `Grid`: $\rho$ is its density, by length, area or surface area (and order); then there is no bandwidth.
    - Of `Particles` in $\mathbb{R}^d$: an estimate, $\rho$ the density smoothed with the bandwidth $h$. A token counts in its own density,
      so that for small $h$ it falls to $\log n + \frac{d}{2} \log(2\pi h^2)$, whatever the law.
    """
    mu = check.measure("mu", mu, (Particles, Grid), "Particles or a Grid")
    check_engine(sums)
    if isinstance(mu, Grid):
        if bandwidth is not None:
            raise ValueError(f"a Grid has a density of its own, got bandwidth {check.shown(bandwidth)}; leave it out")
        some = mu.weights > 0
        return -jnp.vdot(mu.weights, jnp.log(jnp.where(some, mu.weights / mu.mesh.volumes, 1)))
    if bandwidth is None:
        raise ValueError("the entropy of Particles needs the width of a kernel, got none; give bandwidth=h")
    density = log_density(mu, mu.points, bandwidth, sums)
    return -mu.integrate(lambda _: density)


def _bandwidth(mu: Particles, bandwidth: Any) -> Array:
    mu = check.measure("mu", mu, Particles, "Particles, tokens in R^d")
    if not isinstance(mu.space, Euclidean):
        raise TypeError(f"mu: a kernel density is for tokens in R^d, got Particles on the {type(mu.space).__name__}")
    return positive("bandwidth", bandwidth).astype(mu.dtype)


def fisher_information(mu: Any, bandwidth: Any = None, sums: Engine | None = None) -> Float[Array, ""]:
    r"""$\int |\nabla\log\rho|^2 \,d\mu$: along the heat flow with generator $\Delta$ the entropy grows at this rate.

    - Of a `Gaussian` with covariance $S$: $\operatorname{tr} S^{-1}$.
    - Of a `Grid`: the sum over faces of $\frac{a}{g} (\rho_l - \rho_r)(\log\rho_l - \log\rho_r)$ with the area $a$ and the gap $g$ between
      the middles, second order in the cell; a face next to an empty cell counts nothing.
    - Of `Particles` in $\mathbb{R}^d$: an estimate, $\rho$ the density smoothed with the bandwidth $h$.
    """
    check_engine(sums)
    if isinstance(mu, Gaussian | Grid) and bandwidth is not None:
        raise ValueError(f"a {type(mu).__name__} has a density of its own, got bandwidth {check.shown(bandwidth)}; leave it out")
    if isinstance(mu, Gaussian):
        return jnp.trace(jnp.linalg.inv(mu.cov))
    if isinstance(mu, Grid):
        left, right = mu.mesh.links.sides(mu.weights / mu.mesh.volumes)
        some = (left > 0) & (right > 0)
        logs = jnp.log(jnp.where(some, left, 1)) - jnp.log(jnp.where(some, right, 1))
        rates = mu.mesh.areas / mu.mesh.gaps * (left - right) * logs
        # Each face is read from both of its cells, so that none counts twice.
        return 0.5 * jnp.sum(mu.mesh.links.collect(rates, rates))
    if isinstance(mu, GaussianMixture):
        raise TypeError("mu must be a Gaussian, a Grid or Particles, got GaussianMixture; give it to af.theory.fisher_information")
    mu = check.measure("mu", mu, Particles)
    if bandwidth is None:
        raise ValueError("the Fisher information of Particles needs the width of a kernel, got none; give bandwidth=h")
    _bandwidth(mu, bandwidth)
    slope = jax.grad(lambda x: jnp.sum(log_density(mu, x, bandwidth, sums)))(mu.points)
    return mu.integrate(lambda _: jnp.sum(slope**2, axis=1))
