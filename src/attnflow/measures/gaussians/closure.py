r"""The closure that moves a mixture: a velocity that is not affine does not keep a mixture one.

Each component moves by the moments that its own Gaussian gives,

$$m' = E\,v, \qquad S' = E[v\,(x - m)^\top] + E[v\,(x - m)^\top]^\top,$$

by the cubature of degree three, $2d$ nodes $m \pm \sqrt{d}\,R_j$ of equal weight with the columns $R_j$ of the symmetric root of $S$
(Arasaratnam and Haykin 2009, doi:10.1109/TAC.2009.2019800). It is exact for affine velocities, and never forms a grid, so that $d$ may be
in the hundreds.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow.measures.gaussians.base import State
from attnflow.numerics.arrays import one_program
from attnflow.numerics.linalg import one_by_one

# Where the velocity is compared with its affine fit, on the way from the mean to the nodes.
_ALONG = (-1.0, -0.5, 0.5, 1.0)


def cross(dim: int) -> Float[np.ndarray, "m d"]:
    """The nodes of the cubature for a standard normal distribution, all of one side first."""
    return np.sqrt(dim) * np.concatenate([np.eye(dim), -np.eye(dim)])


def lines(dim: int) -> Float[np.ndarray, "m d"]:
    """The mean, then the points along the way to the nodes and beyond the mean, row `j` of each block on the axis `j`."""
    return np.concatenate([np.zeros((1, dim)), *(c * np.sqrt(dim) * np.eye(dim) for c in _ALONG)])


@one_program
def rates(means: Float[Array, "k d"], nodes: Float[Array, "k m d"], found: Float[Array, "k m d"]) -> State:
    flux = jnp.einsum("kmi,kmj->kij", found, nodes - means[:, None]) / nodes.shape[1]
    return jnp.mean(found, axis=1), flux + jnp.swapaxes(flux, 1, 2)


@one_program
def moments(points: Float[Array, "k m d"]) -> State:
    means = jnp.mean(points, axis=1)
    apart = points - means[:, None]
    return means, jnp.einsum("kmi,kmj->kij", apart, apart) / points.shape[1]


@one_program
def residual(weights: Float[Array, " k"], covs: Float[Array, "k d d"], found: Float[Array, "k m d"]) -> Float[Array, ""]:
    """With the values `b + o_j` and `b - o_j` at the two nodes of an axis, the affine fit at `m + c sqrt(d) R_j` is `mean b + c (P o)_j`,
    P the projection to the range of the covariance."""
    dim = covs.shape[-1]
    values, vectors = one_by_one(jnp.linalg.eigh)(jax.lax.stop_gradient(covs))
    seen = values > dim * jnp.finfo(values.dtype).eps * values[:, -1:]
    spans = jnp.einsum("kia,ka,kja->kij", vectors, seen.astype(values.dtype), vectors)
    blocks = found[:, 1:].reshape(len(found), len(_ALONG), dim, dim)
    below, above = blocks[:, 0], blocks[:, -1]
    middle, slope = jnp.mean((above + below) / 2, axis=1), jnp.einsum("kij,kje->kie", spans, (above - below) / 2)
    along = jnp.asarray(_ALONG, found.dtype)[None, :, None, None]
    fit = (middle[:, None, None] + along * slope[:, None]).reshape(len(found), -1, dim)
    off = found - jnp.concatenate([middle[:, None], fit], axis=1)
    missed, size = (jnp.sum(weights * jnp.mean(jnp.sum(part**2, axis=2), axis=1)) for part in (off, found))
    return jnp.sqrt(missed / jnp.where(size > 0, size, 1))
