"""Attention on the sphere at low temperature: the Laplace principle, and where tokens go (arXiv:2605.10931).

With the logit `beta <B y, x> = <y, z>`, `z = beta B^T x`, the average `m = integral e^{<y,z>} y dmu / integral e^{<y,z>} dmu` tends to the
key `z / |z|` as beta grows, if mu has a positive density; tokens then follow `x' = P_x V B^T x / |B^T x|`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._types import ArrayLike
from attnflow.numerics.arrays import floats, known, one_program, square


def uniform_mean(z: ArrayLike) -> Float[Array, "n d"]:
    r"""$\frac{z}{|z|} I_{d/2}(|z|) / I_{d/2-1}(|z|)$: the average over the uniform measure on $S^{d-1}$ with weights
    $e^{\langle y, z\rangle}$, for rows $z$.

    It is the mean of the distribution of von Mises and Fisher. A measure of density $e^{\langle c, y\rangle}$ has the average at $z + c$.
    """
    rows = floats("z", z, "n d")
    if rows.shape[1] < 2:
        raise ValueError(f"the sphere lies in R^d with d >= 2, got rows of length {rows.shape[1]}")
    return _uniform_mean(rows)


@one_program
def _uniform_mean(z: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """The ratio `r_v = I_v(k) / I_{v-1}(k)` by `r_v = 1 / (2v/k + r_{v+1})` from large v down to d/2, from a bound of Amos (1974), which
    each step contracts. It is `k/(2v) (1 + O(k^2))` for small k."""
    dim, square = z.shape[1], jnp.sum(z**2, axis=1, keepdims=True)
    kappa = jnp.sqrt(jnp.where(square > 0, square, 1))
    steps = 50 + (10 * jnp.sqrt(jnp.max(kappa))).astype(int)
    top = dim / 2 + steps
    bound = kappa / (top - 0.5 + jnp.sqrt((top + 0.5) ** 2 + kappa**2))
    ratio = jax.lax.fori_loop(0, steps, lambda i, ratio: 1 / (2 * (top - 1 - i) / kappa + ratio), bound)
    return jnp.where(square > 0, ratio / kappa, 1 / dim) * z


def laplace_mean(z: ArrayLike, score: ArrayLike = 0.0) -> Float[Array, "n d"]:
    r"""$y\, (1 - \frac{d-1}{2k}) + s(y)/k$, with $k = |z|$, $y = z/k$ and the `score` $s$: the average to first order in $1/k$, for rows
    $z$.

    `score [n, d]` is the gradient on the sphere of the logarithm of the density, at $y$. The Laplace principle says that the average tends
    to $y$; this is how fast: by $\frac1k ((\frac{d-1}{2})^2 + |s|^2)^{1/2}$, up to $O(k^{-2})$.
    """
    rows = floats("z", z, "n d")
    kappa = jnp.linalg.norm(rows, axis=1, keepdims=True)
    if known(kappa) and float(jnp.min(kappa)) == 0:
        raise ValueError("the Laplace principle needs rows that are not zero, got one")
    slope = floats("score", score, "n d" if np.ndim(score) else "")
    if slope.ndim and slope.shape != rows.shape:
        raise ValueError(f"score must be {list(rows.shape)} like z, got {list(slope.shape)}")
    return rows / kappa * (1 - (rows.shape[1] - 1) / (2 * kappa)) + slope / kappa


def spectral_projector(matrix: ArrayLike) -> Float[Array, "d d"]:
    """The projector onto the eigenspace of the eigenvalue of largest real part, along the other invariant subspaces.

    It is oblique unless the matrix is normal. The eigenvalue must be real and semisimple: otherwise directions turn, or are approached
    like $1/t$ and from one vector of a Jordan chain only. Decided on the host: the matrix must have known values.
    """
    M = np.asarray(square("matrix", matrix), dtype=float)
    size = max(np.linalg.norm(M, 2), np.finfo(float).tiny)
    values = np.linalg.eigvals(M)
    top = values.real.max()
    # Eigenvalues of a defective matrix are known to about the root of round-off.
    leading = values[values.real > top - 1e-6 * size]
    if np.abs(leading.imag).max() > 1e-6 * size:
        raise ValueError(f"the dominant eigenvalue must be real, got {leading[np.abs(leading.imag).argmax()]:.6g}: directions turn forever")
    left, singular, right = np.linalg.svd(M - leading.real.mean() * np.eye(len(M)))
    if np.sum(singular <= 1e-6 * size) < len(leading):
        raise ValueError(f"the dominant eigenvalue must be semisimple, got {top:.6g} with too few eigenvectors")
    null, conull = right[len(M) - len(leading) :].T, left[:, len(M) - len(leading) :]
    return jnp.asarray(null @ np.linalg.solve(conull.T @ null, conull.T))


def cold_limit(x: ArrayLike, B: ArrayLike, V: ArrayLike) -> Float[Array, "n d"]:
    r"""$\Pi x / |\Pi x|$: where $x' = P_x V B^\top x / |B^\top x|$ takes $x$ as $t$ grows, $\Pi$ the spectral projector of $V B^\top$
    (arXiv:2605.10931).

    In the time $s$ with $ds = dt / |B^\top x|$ the flow is that of directions under $y' = V B^\top y$, in which $\Pi y$ outgrows all else.
    The measure tends to the push-forward of the initial one under this map; an orthogonal projector onto the same eigenspace would give
    another measure.
    """
    points, B, V = floats("x", x, "n d"), square("B", B), square("V", V)
    if not points.shape[1] == len(B) == len(V):
        raise ValueError(f"x, B and V must have one dimension, got {points.shape[1]}, {len(B)} and {len(V)}")
    kept = points @ spectral_projector(V @ B.T).astype(points.dtype).T
    length = jnp.linalg.norm(kept, axis=1, keepdims=True)
    if known(length) and float(jnp.min(length)) == 0:
        raise ValueError("a token without a component along the dominant directions has another limit, got one")
    return kept / length


def concentration_rate(B: ArrayLike, V: ArrayLike) -> Float[Array, ""]:
    r"""$(\lambda_1 - \lambda_2) / |B|$: at least how fast $|x - \Pi x| / |\Pi x|$ falls along $x' = P_x V B^\top x / |B^\top x|$, up to a
    constant.

    $\lambda_1$ is the dominant eigenvalue of $V B^\top$, $\lambda_2$ the largest real part of the others: in the time $s$ with
    $ds = dt / |B^\top x|$ the ratio falls like $e^{-(\lambda_1 - \lambda_2) s}$, and $s \ge t / |B|$. At an inverse temperature $\beta$
    the measure follows this up to about $t \sim \log\beta$ (arXiv:2605.10931). Infinite if the whole space is dominant.
    """
    B, V = square("B", B), square("V", V)
    if B.shape != V.shape:
        raise ValueError(f"B and V must have one dimension, got {len(B)} and {len(V)}")
    M = np.asarray(V @ B.T, dtype=float)
    projector = np.asarray(spectral_projector(M))
    rank = round(float(np.trace(projector)))
    values = np.sort(np.linalg.eigvals(M).real)[::-1]
    gap = values[0] - values[rank] if rank < len(M) else np.inf
    return jnp.asarray(gap) / jnp.linalg.norm(B, 2)
