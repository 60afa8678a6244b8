"""Wasserstein distances that are exact."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._check import measure
from attnflow.measures import Gaussian, Measure
from attnflow.numerics.arrays import cast
from attnflow.numerics.linalg import psd_sqrt
from attnflow.numerics.special import safe_root
from attnflow.spaces import Sphere
from attnflow.transport.distances.circle import squared_on_the_circle
from attnflow.transport.distances.discrete import squared_by_simplex
from attnflow.transport.distances.line import squared_on_the_line


def wasserstein2(mu: Measure, nu: Measure) -> Float[Array, ""]:
    r"""$W_2(\mu, \nu) = \min\, (E\, d(x, y)^2)^{1/2}$ over couplings, with the geodesic distance $d$ of the space: $|x-y|$ in
    $\mathbb{R}^d$, the angle between $x$ and $y$ on the sphere.

    - On the line: any two of `Particles`, `Grid`, `Gaussian` and `GaussianMixture`, by quantile functions. Exact to round-off; for two
      mixtures, or one and a grid, by a quadrature whose error is below $10^{-10}$ of their variance in double precision.
    - Two Gaussians in $\mathbb{R}^d$: `bures`.
    - Two clouds or grids on the circle: exact, by the best shift of the quantile functions.
    - Two clouds in $\mathbb{R}^d$ or on $S^{d-1}$, at most $5000^2$ pairs: exact, by the network simplex of POT, with its optimality
      checked. It has first derivatives, but runs on the host: not under `jit`.
    - A grid in $\mathbb{R}^2$ or on $S^2$ counts as a cloud: the cells that have mass, each at its center. For each grid this leaves out
      at most the spread within a cell, $(\sum_a h_a^2 / 12)^{1/2}$ for the widths $h_a$ along the axes.
    - Two `Zonal` grids: mass moves along meridians, so that this is the distance of the distributions of the angle, on the line.

    On the line and the circle a grid is the density that is constant in each cell, in a `Zonal` one by angle.
    """
    mu, nu = _measures(mu, nu)
    left, right = mu.latitude(), nu.latitude()
    if left is not None and right is not None and mu.dim == nu.dim:
        return safe_root(squared_on_the_line(left, right))
    mu, nu = one_space(mu, nu)
    if mu.dim == 1:
        line = jnp.ones(1, mu.dtype)
        return safe_root(squared_on_the_line(mu.projected(line), nu.projected(line)))
    if isinstance(mu, Gaussian) and isinstance(nu, Gaussian):
        return bures(mu, nu)
    if not (mu.discrete and nu.discrete):
        raise TypeError(
            f"in R^{mu.dim} wasserstein2 is for two clouds or two Gaussians, got {type(mu).__name__} and {type(nu).__name__}; "
            "draw tokens with .sample(n, key=key), or use sliced_wasserstein2"
        )
    if mu.dim == 2 and isinstance(mu.space, Sphere):
        return safe_root(mu.space.radius**2 * squared_on_the_circle(mu.angles(), nu.angles()))
    return safe_root(squared_by_simplex(mu.support(), nu.support()))


def bures(mu: Measure, nu: Measure) -> Float[Array, ""]:
    r"""$(|m - n|^2 + \operatorname{tr} S + \operatorname{tr} T - 2 \operatorname{tr} (S^{1/2} T S^{1/2})^{1/2})^{1/2}$, the distance $W_2$
    of $\mathcal{N}(m, S)$ and $\mathcal{N}(n, T)$.

    For measures that are not Gaussian it is that of the Gaussians with their moments, which is at most their own distance.
    """
    mu, nu = _measures(mu, nu, "a measure, which has a mean and a covariance")
    _one_dimension(mu, nu)
    left, right = psd_sqrt(mu.cov), psd_sqrt(nu.cov)
    inner = left @ nu.cov @ left
    shape = jnp.trace(mu.cov) + jnp.trace(nu.cov) - 2 * jnp.trace(psd_sqrt((inner + inner.T) / 2))
    # The same as `min |S^1/2 - T^1/2 U|^2` over orthogonal U. A sum of squares keeps the digits where they are near; the formula above,
    # which loses half of them, has the derivatives.
    fixed_left, fixed_right = jax.lax.stop_gradient((left, right))
    u, _, v = jnp.linalg.svd(fixed_left @ fixed_right)
    stable = jnp.sum((fixed_left - fixed_right @ (u @ v).T) ** 2)
    return safe_root(jnp.sum((mu.mean - nu.mean) ** 2) + shape + stable - jax.lax.stop_gradient(shape))


def one_space(mu: Measure, nu: Measure) -> tuple[Measure, Measure]:
    """Both measures in one precision; an error unless they live on one space, and what they are made of are points of it."""
    mu, nu = _measures(mu, nu)
    _one_dimension(mu, nu)
    if mu.space.about != nu.space.about:
        spaces = [str(given.space).removeprefix("the ").removesuffix(" space") for given in (mu, nu)]
        raise ValueError(f"both measures must live on one space, got {spaces[0]} and {spaces[1]}; give both clouds the same space=")
    mu.check_places()
    nu.check_places()
    return cast((mu, nu), jnp.result_type(*jax.tree.leaves((mu, nu))))


def _measures(mu: Measure, nu: Measure, due: str = "one of Particles, Grid, Gaussian and GaussianMixture") -> tuple[Measure, Measure]:
    return measure("mu", mu, Measure, due), measure("nu", nu, Measure, due)


def _one_dimension(mu: Measure, nu: Measure) -> None:
    if mu.dim != nu.dim:
        raise ValueError(f"both measures must live in one space, got R^{mu.dim} and R^{nu.dim}")
