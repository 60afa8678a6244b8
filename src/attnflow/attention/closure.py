"""How far a cloud is from being moved like a Gaussian."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._check import field, measure
from attnflow._types import Scalar
from attnflow.attention.law import Law
from attnflow.measures import Gaussian, Particles, velocity_of
from attnflow.measures.velocity import moved


def closure_residual(law: Law, mu: Particles, t: Scalar = 0.0) -> Float[Array, ""]:
    r"""The relative $L^2(\mu)$ distance between the velocity of the cloud and that of the Gaussian with its mean and covariance.

    With $\Gamma_N$ the velocity of the Gaussian it is $(\int |\Gamma_\mu - \Gamma_N|^2 \,d\mu / \int |\Gamma_\mu|^2 \,d\mu)^{1/2}$: 0 when
    the Gaussian picture moves every token as the cloud does. For $n$ tokens of a Gaussian it falls like $n^{-1/2}$.
    """
    field("law", law)
    mu = measure("mu", mu, Particles, "Particles")
    closed = moved(velocity_of(law, Gaussian.matching(mu), t), mu.points, mu.sequence)
    full = moved(velocity_of(law, mu, t), mu.points, mu.sequence)
    squares = mu.integrate(lambda _: jnp.stack([jnp.sum((full - closed) ** 2, axis=1), jnp.sum(full**2, axis=1)], axis=1))
    return jnp.sqrt(squares[0] / squares[1])
