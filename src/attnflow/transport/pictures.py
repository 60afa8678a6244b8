"""Every picture of a measure as what distances work on: a law on the line, angles on the circle, tokens in space.

A grid is the density that is constant in each cell where that has a quantile function, on the line and on the circle; in the plane and on
S^2 it is tokens at the middles of its cells.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._arrays import known
from attnflow.measures import Gaussian, GaussianMixture, Grid, Interval, Measure, Order, Particles, Zonal
from attnflow.transport.line import Bars, Normals, Tokens, root

PICTURES = "Particles, Grid, Gaussian and GaussianMixture"


def projected(mu: Measure, direction: Float[Array, " d"]) -> Tokens | Bars | Normals:
    """The law of `<x, direction>`."""
    if isinstance(mu, Grid) and mu.dim == 1:
        bars, back = bars_of(mu), direction[0] < 0
        edges = bars.edges * direction[0]
        return Bars(jnp.where(back, edges[::-1], edges), jnp.where(back, bars.w[::-1], bars.w))
    if isinstance(mu, Particles | Grid):
        return Tokens(mu.points @ direction, mu.weights)
    if isinstance(mu, Gaussian):
        return Normals(jnp.ones(1, mu.dtype), (mu.mean @ direction)[None], root(direction @ mu.cov @ direction)[None])
    if isinstance(mu, GaussianMixture):
        return Normals(mu.weights, mu.means @ direction, root(jnp.einsum("kij,i,j->k", mu.covs, direction, direction)))
    raise TypeError(f"expected one of {PICTURES}, got {type(mu).__name__}")


def angles(mu: Particles | Grid) -> Tokens | Bars:
    """The law of the angle of a measure on the circle."""
    return bars_of(mu) if isinstance(mu, Grid) else Tokens(jnp.arctan2(*mu.points.T[::-1]), mu.weights)


def bars_of(mu: Grid) -> Bars:
    """The density that is constant in each cell of an `Interval`, or of the angle of a `Circle` or a `Zonal` axis."""
    axis: Any = mu.axes[0]
    low = axis.low if isinstance(axis, Interval) else 0.0
    return Bars(jnp.asarray(low + axis.width * np.arange(axis.cells + 1), mu.dtype), mu.weights)


def tokens_of(mu: Any) -> Any:
    """A grid as weighted tokens at the middles of its cells; any other measure as it is."""
    check_cells(mu)
    return mu.particles() if isinstance(mu, Grid) else mu


def occupied(cloud: Particles) -> Particles:
    """The tokens that have mass; all of them inside `grad`, where weights have no values yet."""
    if cloud.weights is None or not known(cloud):
        return cloud
    rows = np.flatnonzero(np.asarray(cloud.weights))
    return eqx.tree_at(lambda c: (c.points, c.weights), cloud, (cloud.points[rows], cloud.weights[rows]))


def check_cells(mu: Any) -> None:
    """Raise if mu is a grid whose cells are not places in the space of its tokens."""
    axis = mu.axes[0] if isinstance(mu, Grid) else None
    if isinstance(axis, Order):
        raise ValueError(
            "a distance does not see the order of tokens, got a Grid over Order and Interval; "
            "forget the order first: af.Grid(mu.mass.sum(axis=0) / mu.axes[1].width, mu.axes[1:])"
        )
    if isinstance(axis, Zonal):
        raise ValueError(
            "a cell of a Zonal grid is a band, not a place for a token; draw tokens with .sample(n, key=key), "
            "or give wasserstein2 two Zonal grids"
        )
