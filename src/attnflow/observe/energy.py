"""The interaction energy that simple attention climbs."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._arrays import floats, known, one_program, positive
from attnflow.measures import Grid, Particles
from attnflow.sums import Quadratic, Request, check_request


def energy(mu: Any, beta: Any, log_scale: Any = 0.0, sums: Request | None = None, log: bool = False) -> Float[Array, ""]:
    r"""$E(\mu) = \frac{e^c}{2\beta} \iint e^{\beta\langle x, y\rangle} \,d\mu(x)\,d\mu(y)$, $c$ the `log_scale`, of `Particles` or a
    `Grid`; $\log E$ with `log=True`.

    It never decreases along SA and USA on the sphere; USA is its gradient ascent (arXiv:2312.10794). $c = -\beta$ keeps it in
    $[0, 1 / (2\beta)]$ on the sphere for any $\beta$, and its logarithm is always in range. On a grid both integrals are over the
    middles of cells: second order in their width, which must not be above $\beta^{-1/2}$.
    """
    mu = check.measure("mu", mu, (Particles, Grid), "Particles or a Grid")
    check_request(sums)
    check.flag("log", log)
    beta = positive("beta", beta).astype(mu.dtype)
    if known(beta):
        mu.check_resolution(float(beta))
    # The keys of a zonal grid are points around its bands, as each of its queries on one meridian sees them.
    inner = mu.tilt(Quadratic(beta * jnp.eye(mu.dim, dtype=mu.dtype)), sums=sums).log_norm(mu.points)
    found = _energy(inner, mu.log_weights, beta, floats("log_scale", log_scale, "").astype(mu.dtype), log)
    if known(found) and not log and not 0 < float(found) < float("inf"):
        check.warn(
            f"the energy at beta = {float(beta):g} is beyond the range of {mu.dtype}, got {float(found)}; use log=True for its logarithm, "
            "or log_scale=-beta"
        )
    return found


@one_program
def _energy(inner: Float[Array, " n"], log_weights: Float[Array, " n"], beta: Array, log_scale: Array, log: bool) -> Float[Array, ""]:
    found = jax.nn.logsumexp(inner + log_weights) + log_scale - jnp.log(2 * beta)
    return found if log else jnp.exp(found)
