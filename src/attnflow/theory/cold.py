"""Attention on the sphere at low temperature: the Laplace principle, and where tokens go (arXiv:2605.10931).

With the logit `beta <B y, x> = <y, z>`, `z = beta B^T x`, the average `m = integral e^{<y,z>} y dmu / integral e^{<y,z>} dmu` tends to the
key `z / |z|` as beta grows, if mu has a positive density; tokens then follow `x' = P_x V B^T x / |B^T x|`.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow.numerics.arrays import floats, square


def uniform_mean(z: Any) -> Float[Array, "n d"]:
    r"""$\frac{z}{|z|} I_{d/2}(|z|) / I_{d/2-1}(|z|)$: the average over the uniform law on $S^{d-1}$ with weights
    $e^{\langle y, z\rangle}$, for rows $z$.

    It is the mean of the law of von Mises and Fisher. A law of density $e^{\langle c, y\rangle}$ has the average at $z + c$.
    """
    rows = np.asarray(floats("z", z, "n d"), dtype=float)
    if rows.shape[1] < 2:
        raise ValueError(f"the sphere lies in R^d with d >= 2, got rows of length {rows.shape[1]}")
    kappa = np.linalg.norm(rows, axis=1, keepdims=True)
    # I_{d/2} / I_{d/2-1} is k/d (1 + O(k^2)).
    ratio = np.where(
        kappa > 0, _ratio(np.where(kappa > 0, kappa, 1.0), rows.shape[1] / 2) / np.where(kappa > 0, kappa, 1.0), 1 / rows.shape[1]
    )
    return jnp.asarray(ratio * rows)


def _ratio(kappa: np.ndarray, order: float) -> np.ndarray:
    """`I_v(k) / I_{v-1}(k)` by `r_v = 1 / (2v/k + r_{v+1})` from large v down, from a bound of Amos (1974), which each step contracts."""
    steps = 50 + int(10 * np.sqrt(kappa.max()))
    top = order + steps
    ratio = kappa / (top - 0.5 + np.sqrt((top + 0.5) ** 2 + kappa**2))
    for v in np.arange(top - 1, order - 0.5, -1):
        ratio = 1 / (2 * v / kappa + ratio)
    return ratio


def laplace_mean(z: Any, score: Any = 0.0) -> Float[Array, "n d"]:
    r"""$y\, (1 - \frac{d-1}{2k}) + s(y)/k$, with $k = |z|$, $y = z/k$ and the `score` $s$: the average to first order in $1/k$, for rows
    $z$.

    `score [n, d]` is the gradient on the sphere of the logarithm of the density, at $y$. The Laplace principle says that the average tends
    to $y$; this is how fast: by $\frac1k ((\frac{d-1}{2})^2 + |s|^2)^{1/2}$, up to $O(k^{-2})$.
    """
    rows = floats("z", z, "n d")
    kappa = jnp.linalg.norm(rows, axis=1, keepdims=True)
    if float(jnp.min(kappa)) == 0:
        raise ValueError("the Laplace principle needs rows that are not zero, got one")
    slope = floats("score", score, "n d" if np.ndim(score) else "")
    if slope.ndim and slope.shape != rows.shape:
        raise ValueError(f"score must be {list(rows.shape)} like z, got {list(slope.shape)}")
    return rows / kappa * (1 - (rows.shape[1] - 1) / (2 * kappa)) + slope / kappa


def spectral_projector(matrix: Any) -> Float[Array, "d d"]:
    """The projector onto the eigenspace of the eigenvalue of largest real part, along the other invariant subspaces.

    It is oblique unless the matrix is normal. The eigenvalue must be real and semisimple: otherwise directions turn, or are approached
    like $1/t$ and from one vector of a chain only.
    """
    M = np.asarray(square("matrix", matrix), dtype=float)
    size = max(np.linalg.norm(M, 2), np.finfo(float).tiny)
    values = np.linalg.eigvals(M)
    top = values.real.max()
    # Eigenvalues of a defective matrix are known to about the root of round-off.
    leading = values[values.real > top - 1e-6 * size]
    if np.abs(leading.imag).max() > 1e-6 * size:
        raise ValueError(
            f"the dominating eigenvalue must be real, got {leading[np.abs(leading.imag).argmax()]:.6g}: directions turn for ever"
        )
    left, singular, right = np.linalg.svd(M - leading.real.mean() * np.eye(len(M)))
    if np.sum(singular <= 1e-6 * size) < len(leading):
        raise ValueError(f"the dominating eigenvalue must be semisimple, got {top:.6g} with too few eigenvectors")
    null, conull = right[len(M) - len(leading) :].T, left[:, len(M) - len(leading) :]
    return jnp.asarray(null @ np.linalg.solve(conull.T @ null, conull.T))


def cold_limit(x: Any, B: Any, V: Any) -> Float[Array, "n d"]:
    r"""$\Pi x / |\Pi x|$: where $x' = P_x V B^\top x / |B^\top x|$ takes $x$ as $t$ grows, $\Pi$ the spectral projector of $V B^\top$
    (arXiv:2605.10931).

    In the time $s$ with $ds = dt / |B^\top x|$ the flow is that of directions under $y' = V B^\top y$, which $\Pi y$ outgrows all else in.
    The law tends to the push-forward of the first one under this map; an orthogonal projector onto the same eigenspace would give another
    law.
    """
    points, B, V = floats("x", x, "n d"), square("B", B), square("V", V)
    if not points.shape[1] == len(B) == len(V):
        raise ValueError(f"x, B and V must have one dimension, got {points.shape[1]}, {len(B)} and {len(V)}")
    kept = points @ spectral_projector(V @ B.T).astype(points.dtype).T
    length = jnp.linalg.norm(kept, axis=1, keepdims=True)
    if float(jnp.min(length)) == 0:
        raise ValueError("a token without a component along the dominating directions has another limit, got one")
    return kept / length


def concentration_rate(B: Any, V: Any) -> Float[Array, ""]:
    r"""$(\lambda_1 - \lambda_2) / |B|$: at least how fast $|x - \Pi x| / |\Pi x|$ falls along $x' = P_x V B^\top x / |B^\top x|$, up to a
    constant.

    $\lambda_1$ is the dominating eigenvalue of $V B^\top$, $\lambda_2$ the largest real part of the others: in the time $s$ with
    $ds = dt / |B^\top x|$ the ratio falls like $e^{-(\lambda_1 - \lambda_2) s}$, and $s \ge t / |B|$. At an inverse temperature $\beta$
    the law follows this up to about $t \sim \log\beta$ (arXiv:2605.10931). Infinite if all of the space is dominating.
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
