"""The interaction energy that simple attention climbs."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._arrays import floats, positive
from attnflow.measures import Particles
from attnflow.sums import Atoms, Engine, Logit, log_integral


def energy(mu: Particles, beta: Any, log_scale: Any = 0.0, sums: Engine | None = None) -> Float[Array, ""]:
    """`E(mu) = e^{log_scale} / (2 beta) double-integral e^{beta <x,y>} dmu(x) dmu(y)`.

    It never decreases along SA and USA on the sphere; USA is its gradient ascent (arXiv:2312.10794). `log_scale = -beta` keeps it in
    [0, 1 / (2 beta)] on the sphere for any beta.
    """
    beta = positive("beta", beta).astype(mu.dtype)
    logit = Logit(beta * jnp.eye(mu.dim, dtype=mu.dtype))
    inner = log_integral(logit, mu.points, Atoms(mu.points, mu.log_weights), sums)
    shifted = jnp.exp(inner + floats("log_scale", log_scale, "").astype(mu.dtype))
    return mu.integrate(lambda _: shifted) / (2 * beta)
