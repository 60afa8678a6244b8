"""Closed forms of entropic transport between Gaussians."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow.measures import Affine, Gaussian
from attnflow.numerics.arrays import one_program
from attnflow.numerics.linalg import psd_sqrt


@one_program
def scaled_gaussian(A: Float[Array, "d d"], mu: Gaussian, nu: Gaussian | None = None) -> Affine:
    """`n + W A (x - m)`: the average of y under the scaling of `e^{<y, A x>}` to the marginals N(m, S) of x and N(n, T) of y, the first
    itself if there is no second.

    W, the covariance of y given x, solves `W + W A S A^T W = T`: see `conditional_shape`. No inverse of A, S or T is needed (after
    arXiv:2501.18322, matrix order corrected).
    """
    nu = mu if nu is None else nu
    w, root = conditional_shape(A, mu, nu)
    matrix = root @ w @ root @ A
    return Affine(matrix, nu.mean - matrix @ mu.mean)


@one_program
def conditional_shape(A: Float[Array, "d d"], mu: Gaussian, nu: Gaussian) -> tuple[Float[Array, "d d"], Float[Array, "d d"]]:
    """w and `T^1/2` with `W = T^1/2 w T^1/2`: `w = 2 (I + (I + 4N)^1/2)^-1`, `N = T^1/2 A S A^T T^1/2`."""
    eye, root = jnp.eye(mu.dim, dtype=mu.dtype), psd_sqrt(nu.cov)
    inner = root @ A @ psd_sqrt(mu.cov)
    return 2 * jnp.linalg.inv(eye + psd_sqrt(eye + 4 * inner @ inner.T)), root
