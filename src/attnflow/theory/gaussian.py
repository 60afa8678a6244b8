"""The covariance under softmax attention with V = I and the dot product, in closed form (arXiv:2501.18322)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._types import ArrayLike, Scalar
from attnflow.numerics.arrays import floats, square
from attnflow.numerics.linalg import covariance, psd_sqrt


def softmax_covariance(cov: ArrayLike, A: ArrayLike, t: Scalar) -> Float[Array, "d d"]:
    r"""$S(t) = (S_0^{-1} - (A + A^\top)\, t)^{-1} = S_0^{1/2} (I - t\, S_0^{1/2} (A + A^\top) S_0^{1/2})^{-1} S_0^{1/2}$, for $t$ before
    the blow-up (arXiv:2501.18322)."""
    root, drive = _drive(cov, A)
    eye = jnp.eye(len(root), dtype=root.dtype)
    return root @ jnp.linalg.solve(eye - floats("t", t, "") * drive, root)


def softmax_blow_up_time(cov: ArrayLike, A: ArrayLike) -> Float[Array, ""]:
    r"""The time when $S_0^{-1} - (A + A^\top)\, t$ loses positivity; infinity if it never does (arXiv:2501.18322)."""
    _, drive = _drive(cov, A)
    largest = jnp.linalg.eigvalsh(drive)[-1]
    return jnp.where(largest > 0, 1 / largest, jnp.inf)


def _drive(cov: ArrayLike, A: ArrayLike) -> tuple[Float[Array, "d d"], Float[Array, "d d"]]:
    """`S_0^{1/2}` and `S_0^{1/2} (A + A^T) S_0^{1/2}`."""
    root, A = psd_sqrt(covariance("cov", cov)), square("A", A)
    if A.shape != root.shape:
        raise ValueError(f"cov and A must have one dimension, got {len(root)} and {len(A)}")
    return root, root @ (A + A.T) @ root
