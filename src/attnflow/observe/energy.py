"""The interaction energy that simple attention climbs."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._arrays import floats, known, positive
from attnflow.attention.on_grid import lattice_of
from attnflow.measures import Grid, Particles
from attnflow.sums import Atoms, Engine, Logit, log_integral


def energy(mu: Any, beta: Any, log_scale: Any = 0.0, sums: Engine | None = None) -> Float[Array, ""]:
    r"""$E(\mu) = \frac{e^c}{2\beta} \iint e^{\beta\langle x, y\rangle} \,d\mu(x)\,d\mu(y)$, $c$ the `log_scale`, of `Particles` or a
    `Grid`.

    It never decreases along SA and USA on the sphere; USA is its gradient ascent (arXiv:2312.10794). $c = -\beta$ keeps it in
    $[0, 1 / (2\beta)]$ on the sphere for any $\beta$. On a grid both integrals are over the middles of cells: second order in their width,
    which must not be above $\beta^{-1/2}$.
    """
    if not isinstance(mu, Particles | Grid):
        raise TypeError(f"the energy is for Particles and a Grid, got {type(mu).__name__}; draw tokens with .sample(n, key=key)")
    beta = positive("beta", beta).astype(mu.dtype)
    if isinstance(mu, Grid) and known(beta):
        mu.check_resolution(float(beta))
    logit = Logit(beta * jnp.eye(mu.dim, dtype=mu.dtype))
    # The keys of a zonal grid are points around its bands, as each of its queries on one meridian sees them.
    inner = log_integral(logit, mu.points, Atoms(*mu.keys, engine=lattice_of(mu)), sums)
    shifted = jnp.exp(inner + floats("log_scale", log_scale, "").astype(mu.dtype))
    return mu.integrate(lambda _: shifted) / (2 * beta)
