"""Attention over longer and longer contexts: how strongly must it sharpen? (arXiv:2510.05554)"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._check import count
from attnflow._types import Scalar
from attnflow.numerics.arrays import floats, known, positive


def context_cosine(n: int, cosine: Scalar, beta: Scalar) -> Float[Array, ""]:
    r"""The cosine of two outputs of softmax attention, without residual, on $n$ tokens with the common cosine $r$: exact.

    A row gives $a$ to its own token and $b$ to each other, $a = e^\beta / Z$, $b = e^{\beta r} / Z$, $Z = e^\beta + (n-1) e^{\beta r}$:

    $$\frac{r + (1-r)(2ab + (n-2) b^2)}{r + (1-r)(a^2 + (n-1) b^2)}.$$
    """
    r, beta = _cosine(cosine), positive("beta", beta)
    count("n", n, 2)
    # The weights of a row sum to one, (n-1) b = 1 - a, so that n enters by its logarithm alone.
    a = 1 / (1 + jnp.exp(math.log(n - 1) - beta * (1 - r)))
    b = a * jnp.exp(-beta * (1 - r))
    return (r + (1 - r) * b * (1 + a - b)) / (r + (1 - r) * (a**2 + (1 - a) * b))


def context_limit(cosine: Scalar, gamma: Scalar) -> Float[Array, ""]:
    r"""The limit of `context_cosine` as $n$ grows with $\beta = \gamma \log n$: 1 if $\gamma$ is below $1/(1-r)$ (all tokens become one),
    $4r / (1+3r)$ at it, $r$ above it (no token sees another)."""
    r, critical, gamma = _cosine(cosine), critical_sharpness(cosine), positive("gamma", gamma)
    return jnp.where(gamma < critical, 1.0, jnp.where(gamma > critical, r, 4 * r / (1 + 3 * r)))


def critical_sharpness(cosine: Scalar) -> Float[Array, ""]:
    r"""$1/(1-r)$: with $\beta = \gamma \log n$, attention neither collapses nor falls apart only at this $\gamma$."""
    return 1 / (1 - _cosine(cosine))


def _cosine(cosine: Scalar) -> Float[Array, ""]:
    r = floats("cosine", cosine, "")
    if known(r) and not 0 < float(r) < 1:
        raise ValueError(f"cosine must lie between 0 and 1, got {float(r)}")
    return r
