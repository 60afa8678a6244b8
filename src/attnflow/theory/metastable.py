"""How long clusters of simple attention live apart (arXiv:2410.06833)."""

import math
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._check import choice
from attnflow._types import ArrayLike, Scalar
from attnflow.numerics.arrays import floats, known, positive


def merger_log_time(
    cosine: Scalar, beta: Scalar, masses: ArrayLike = (0.5, 0.5), *, kind: Literal["softmax", "unnormalized"] = "softmax"
) -> Float[Array, ""]:
    r"""The logarithm of the time at which two clusters of these `masses` at this `cosine` meet, far from all others, for large $\beta$.

    Under softmax their angle obeys $u' = -(m_1/m_2 + m_2/m_1)\, e^{-\beta(1 - \cos u)} \sin u$, without normalization
    $u' = -(m_1 + m_2)\, e^{\beta \cos u} \sin u$. The time is spent at the start, where Laplace's method gives

    $$\log t = \beta (1 - c) - \log(\beta (1 - c^2) (m_1/m_2 + m_2/m_1)),$$

    $$\log t = -\beta c - \log(\beta (1 - c^2) (m_1 + m_2)),$$

    up to $O(1/\beta)$: the closest pair is the first to merge (arXiv:2410.06833 has the exponents).
    """
    beta, c, pair = positive("beta", beta), floats("cosine", cosine, ""), floats("masses", masses, "k")
    if len(pair) != 2:
        raise ValueError(f"masses must be two, those of the clusters, got {len(pair)}")
    a, m = (positive("masses", mass) for mass in pair)
    choice("kind", kind, ("softmax", "unnormalized"))
    if known(c) and not -1 < float(c) < 1:
        raise ValueError(f"cosine must lie between -1 and 1, got {float(c)}: equal or opposite clusters do not move each other")
    if kind == "softmax":
        return beta * (1 - c) - jnp.log(beta * (1 - c**2) * (a / m + m / a))
    return -beta * c - jnp.log(beta * (1 - c**2) * (a + m))


def window_time(angle: Scalar, beta: Scalar, rate: Scalar = 1.0) -> Float[Array, ""]:
    r"""When $u' = -c \log(\beta) \sin u$ from this angle $u_0$ reaches $u_1 = \sqrt{\log(\beta) / \beta}$:
    $t = (\log\tan(u_0/2) - \log\tan(u_1/2)) / (c \log\beta)$, which is $1/(2c) + O(\log\log\beta / \log\beta)$.

    (arXiv:2410.06833 prints $2/c$ for it.)
    """
    beta, rate, angle = positive("beta", beta), positive("rate", rate), positive("angle", angle)
    if known(beta, angle) and not (float(beta) > math.e and float(angle) < math.pi):
        raise ValueError(f"beta must be above e and the angle below pi, got {float(beta)} and {float(angle)}")
    goal = jnp.sqrt(jnp.log(beta) / beta)
    return jnp.maximum(jnp.log(jnp.tan(angle / 2)) - jnp.log(jnp.tan(goal / 2)), 0) / (rate * jnp.log(beta))
