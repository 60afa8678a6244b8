"""Square roots of positive semidefinite matrices, differentiable at repeated eigenvalues."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._arrays import known, square


@jax.custom_jvp
def psd_sqrt(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """The symmetric square root of a symmetric positive semidefinite matrix.

    Its derivative solves `R dR + dR R = dX`. In the eigenbasis of X that is a division by `r_i + r_j`, which does not see gaps between
    eigenvalues: unlike the derivative of `eigh` it is finite at X = I. Where both eigenvalues vanish the entry is set to zero, which
    is right for perturbations that keep the rank, the only ones a flow makes.
    """
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors * jnp.sqrt(jnp.maximum(values, 0))) @ vectors.T


@psd_sqrt.defjvp
def _psd_sqrt_jvp(primals, tangents):
    (matrix,), (direction,) = primals, tangents
    values, vectors = jnp.linalg.eigh(matrix)
    roots = jnp.sqrt(jnp.maximum(values, 0))
    gap = roots[:, None] + roots[None, :]
    seen = gap > jnp.finfo(gap.dtype).eps * gap.max()
    change = jnp.where(seen, (vectors.T @ direction @ vectors) / jnp.where(seen, gap, 1), 0)
    return (vectors * roots) @ vectors.T, vectors @ change @ vectors.T


def covariance(name: str, value) -> Float[Array, "d d"]:
    """A symmetric positive semidefinite matrix, checked when its value is known."""
    matrix = square(name, value)
    if known(matrix):
        host = np.asarray(matrix, dtype=np.float64)
        size = np.abs(host).max()
        slack = 50 * len(host) * float(jnp.finfo(matrix.dtype).eps) * size
        if np.abs(host - host.T).max() > slack:
            i, j = np.unravel_index(np.abs(host - host.T).argmax(), host.shape)
            raise ValueError(f"{name} must be symmetric, got {host[i, j]} at [{i}, {j}] but {host[j, i]} at [{j}, {i}]")
        lowest = np.linalg.eigvalsh(host)[0]
        if lowest < -slack:
            raise ValueError(f"{name} must be positive semidefinite, got smallest eigenvalue {lowest:.6g}")
    return (matrix + matrix.T) / 2


def is_psd(matrix: Array) -> bool:
    """Whether a matrix is known to be symmetric positive semidefinite; False while it is being traced."""
    if not known(matrix):
        return False
    host = np.asarray(matrix, dtype=np.float64)
    slack = 8 * len(host) * float(jnp.finfo(matrix.dtype).eps) * np.abs(host).max()
    return bool(np.abs(host - host.T).max() <= slack and np.linalg.eigvalsh((host + host.T) / 2)[0] >= -slack)
