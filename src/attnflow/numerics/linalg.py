"""Linear algebra of small matrices: factorizations one by one, and square roots that are differentiable at repeated eigenvalues."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._types import ArrayLike
from attnflow.numerics.arrays import known, on_host, one_program, square


def one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` over the first axis of its arguments, one slice after another: as by `jax.vmap`, for functions that factor matrices.

    On CPU the factorization of a batch waits for the threads that run the program. Two independent ones at the same time can wait for each
    other forever where there are two cores; single matrices are factored in place.
    """
    return lambda *arrays: jax.lax.map(lambda rows: function(*rows), arrays)


@one_program
def psd_sqrt(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """The symmetric square root R of a symmetric positive semidefinite matrix X. Its derivative solves `R dR + dR R = dX`."""
    return _root(matrix)


@jax.custom_jvp
def _root(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors * jnp.sqrt(jnp.maximum(values, 0))[None]) @ vectors.T


@_root.defjvp
def _root_jvp(primals, tangents):
    root = _root(*primals)
    return root, _lyapunov(root, *tangents)


@jax.custom_jvp
def _lyapunov(root: Float[Array, "d d"], right: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """The solution Y of `R Y + Y R = right` for symmetric positive semidefinite R.

    In the eigenbasis of R it is a division by `r_i + r_j`, in which gaps between eigenvalues do not occur: unlike the derivative of `eigh`
    it is finite at R = I. Where both eigenvalues vanish the entry is set to zero, which is right for perturbations that keep the
    rank, the only ones a flow makes.
    """
    values, vectors = jnp.linalg.eigh(root)
    total = values[:, None] + values[None, :]
    seen = total > jnp.finfo(total.dtype).eps * total.max()
    solution = jnp.where(seen, (vectors.T @ right @ vectors) / jnp.where(seen, total, 1), 0)
    return vectors @ solution @ vectors.T


@_lyapunov.defjvp
def _lyapunov_jvp(primals, tangents):
    (root, right), (d_root, d_right) = primals, tangents
    solution = _lyapunov(root, right)
    return solution, _lyapunov(root, d_right - d_root @ solution - solution @ d_root)


def covariance(name: str, value: ArrayLike) -> Float[Array, "d d"]:
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
    return on_host(lambda a: (a + a.T) / 2, matrix)


def is_psd(matrix: Array) -> bool:
    """Whether a matrix is known to be symmetric positive semidefinite; False while it is being traced."""
    if not known(matrix):
        return False
    host = np.asarray(matrix)
    slack = 8 * len(host) * float(jnp.finfo(matrix.dtype).eps) * float(np.abs(host).max())
    # The first row decides for most matrices, and laws are built by the hundred.
    if np.abs(host[0] - host[:, 0]).max() > slack:
        return False
    host = host.astype(np.float64)
    return bool(np.abs(host - host.T).max() <= slack and np.linalg.eigvalsh((host + host.T) / 2)[0] >= -slack)
