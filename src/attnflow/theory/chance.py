"""What random tokens on the sphere do by chance: lie in a hemisphere, or far from all that came before."""

import math

import jax.numpy as jnp
from jax.scipy.special import betainc
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import Scalar
from attnflow.numerics.arrays import positive


def wendel(n: int, dim: int) -> Float[Array, ""]:
    r"""The probability that $n$ uniform points of $S^{d-1}$ lie in an open hemisphere: $2^{1-n} \sum_{k<d} \binom{n-1}{k}$ (Wendel 1962).

    Simple attention takes such tokens to one point (arXiv:2312.10794).
    """
    check.count("n", n)
    check.count("dim", dim)
    return jnp.asarray(sum(math.comb(n - 1, k) for k in range(min(dim, n))) / 2 ** (n - 1))


def cap_mass(dim: int, delta: Scalar) -> Float[Array, ""]:
    r"""The fraction of $S^{d-1}$ within the angle $\delta$ of a point: $\frac12 I_{\sin^2\delta}(\frac{d-1}{2}, \frac12)$ up to a right
    angle, $I$ the regularized incomplete beta function."""
    sphere_dimension(dim)
    angle = jnp.minimum(positive("delta", delta), math.pi)
    half = betainc((dim - 1) / 2, 0.5, jnp.sin(angle) ** 2) / 2
    return jnp.where(angle <= math.pi / 2, half, 1 - half)


def strong_centers(dim: int, delta: Scalar, n: int | float = math.inf) -> Float[Array, ""]:
    r"""The expected number of strong Renyi centers of $n$ uniform tokens on $S^{d-1}$: tokens farther than $\delta$ from all before them.

    The $k$-th is one with probability $(1 - p)^{k-1}$, $p$ the mass of a cap. The sum is $(1 - (1-p)^n) / p$, and for infinitely many
    tokens $1/p$: $\pi/\delta$ on the circle, $1/\sin^2(\delta/2)$ on $S^2$ (arXiv:2411.04990).
    """
    p = cap_mass(dim, delta)
    if not (isinstance(n, float) and n == math.inf):
        check.count("n", n)
    return -jnp.expm1(float(n) * jnp.log1p(-p)) / p


def sphere_dimension(dim: int) -> int:
    """`dim`, refused unless there is a sphere in R^dim that is connected."""
    if check.count("dim", dim) < 2:
        raise ValueError(f"the sphere lies in R^dim with dim >= 2, got {dim}")
    return dim
