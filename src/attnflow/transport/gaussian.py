"""Closed forms of entropic transport between Gaussians."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._linalg import psd_sqrt
from attnflow.measures import Affine, Gaussian


def scaled_gaussian(A: Float[Array, "d d"], mu: Gaussian) -> Affine:
    """`m + W A (x - m)`, `W = S^1/2 w S^1/2`, `w = 2 (I + (I + 4N)^1/2)^-1`, `N = S^1/2 A S A^T S^1/2`: the average of y under the doubly
    stochastic scaling of `e^{<y, A x>}` on N(m, S).

    W solves `W + W A S A^T W = S`; no inverse of A, S or N is needed (after arXiv:2501.18322, matrix order corrected).
    """
    eye = jnp.eye(mu.dim, dtype=mu.dtype)
    root = psd_sqrt(mu.cov)
    inner = root @ A @ root
    w = 2 * jnp.linalg.inv(eye + psd_sqrt(eye + 4 * inner @ inner.T))
    matrix = root @ w @ root @ A
    return Affine(matrix, mu.mean - matrix @ mu.mean)
