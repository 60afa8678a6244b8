"""Flows of measures that are known exactly: what a scheme is compared with.

The heat flow `d_t rho = 1/2 Laplace rho` and the Fokker-Planck flow `d_t rho = 1/2 Laplace rho - div(rho 1/2 grad log nu)` towards a
Gaussian nu keep Gaussians and their mixtures. A token that moves with the density follows the characteristic
`x' = 1/2 grad log nu(x) - 1/2 grad log rho_t(x)`; on the line it stays at its quantile.
"""

from typing import Any

import diffrax
import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._check import measure
from attnflow._types import ArrayLike, Scalar
from attnflow.measures import Gaussian, Measure
from attnflow.measures.base import nonnegative
from attnflow.numerics.arrays import array, floats, known, rows

_PICTURES = "a Gaussian or a GaussianMixture"
# The budget of steps along the characteristics.
_STEPS = 100_000


def heat_flow(mu: Measure, t: Scalar) -> Measure:
    r"""The exact solution at time $t$ of $\partial_t \rho = \frac12 \Delta\rho$: every covariance gains $t I$."""
    return measure("mu", mu, Measure, _PICTURES).heat(t)


def ornstein_uhlenbeck(mu: Measure, target: Measure, t: Scalar) -> Measure:
    r"""The exact solution at time $t$ of $\partial_t \rho = \frac12 \Delta\rho - \frac12 \operatorname{div}(\rho\,\nabla\log\nu)$ for a
    Gaussian target $\nu = \mathcal{N}(n, T)$.

    With $E = e^{-T^{-1} t / 2}$ every $\mathcal{N}(m, S)$ becomes $\mathcal{N}(n + E (m - n), E S E + T (I - E^2))$: the
    distribution of $X_t$ for $dX = -\frac12 T^{-1} (X - n)\,dt + dB$.
    """
    t, mu = nonnegative("t", t), measure("mu", mu, Measure, _PICTURES)
    target = measure("the target", target, Gaussian, f"a Gaussian in R^{mu.dim}")
    if target.dim != mu.dim:
        raise TypeError(f"the target must be a Gaussian in R^{mu.dim}, got Gaussian in R^{target.dim}")
    values, vectors = jnp.linalg.eigh(target.cov)
    if known(values) and not float(values[0]) > 0:
        raise ValueError(f"the target must have a covariance of full rank, got smallest eigenvalue {float(values[0]):.6g}")
    decay = (vectors * jnp.exp(-t / (2 * values))[None]) @ vectors.T
    gain = (vectors * (-values * jnp.expm1(-t / values))[None]) @ vectors.T
    return mu.each(lambda mean, cov: (target.mean + decay @ (mean - target.mean), decay @ cov @ decay + gain))


def characteristics(mu: Measure, x: ArrayLike, t: Scalar, target: Gaussian | None = None) -> Float[Array, "m d"]:
    r"""Where the points $x$ `[m, d]` are at time $t$ when they move with the heat flow of `mu`, or with its Fokker-Planck flow towards
    `target`: $x' = \frac12 \nabla\log\nu(x) - \frac12 \nabla\log\rho_t(x)$, solved to $10^{-10}$ in float64.
    """
    # Refused here if it has no such flow.
    start = heat_flow(mu, 0.0) if target is None else ornstein_uhlenbeck(mu, target, 0.0)
    time, points = nonnegative("t", t), array(rows("x", x, start.dim), start.dtype)
    if known(time) and float(time) == 0:
        return points
    ends = _characteristics(start, points, array(time, points.dtype), target)
    if known(ends) and not np.isfinite(np.asarray(ends)).all():
        raise ValueError(
            f"the characteristics do not reach t = {float(time):.6g} in {_STEPS} steps; give a shorter time or wider components"
        )
    return ends


@eqx.filter_jit
def _characteristics(mu: Measure, x: Array, t: Array, target: Gaussian | None) -> Array:
    def velocity(s: Any, y: Array, _: None) -> Array:
        if target is None:
            return -mu.heat(s).score(y) / 2
        return (target.score(y) - ornstein_uhlenbeck(mu, target, s).score(y)) / 2

    tolerance = 1e-10 if x.dtype == jnp.float64 else 1e-5
    control = diffrax.PIDController(rtol=tolerance, atol=tolerance, norm=lambda error: jnp.max(jnp.abs(error)))
    zero = jnp.zeros((), x.dtype)
    # Without `throw`, which would be a call to the host: a program with one is not kept between processes.
    path: Any = diffrax.diffeqsolve(
        diffrax.ODETerm(velocity), diffrax.Tsit5(), zero, t, None, x, stepsize_controller=control, max_steps=_STEPS, throw=False
    )
    return jnp.where(path.result == diffrax.RESULTS.successful, path.ys[-1], jnp.nan)


def quantiles(mu: Measure, levels: ArrayLike) -> Float[Array, " m"]:
    """The points below which a measure on the line has the mass `levels` `[m]`, each in $(0, 1)$: $F^{-1}(p)$.

    The tokens in the middle of $n$ equal masses, `quantiles(mu, (np.arange(n) + 0.5) / n)`, stand for the measure without sampling noise.
    """
    found, due = floats("levels", levels, "m"), f"{_PICTURES} on the line"
    mu = measure("mu", mu, Measure, due)
    if not (mu.smooth and mu.dim == 1):
        raise TypeError(f"mu must be {due}, got {type(mu).__name__} in R^{mu.dim}")
    if known(found) and not ((np.asarray(found) > 0) & (np.asarray(found) < 1)).all():
        raise ValueError(f"levels must lie between 0 and 1, got {float(found.min())} to {float(found.max())}")
    return _quantile(mu, array(found, mu.dtype))


@eqx.filter_jit
def _quantile(mu: Measure, levels: Float[Array, " m"]) -> Float[Array, " m"]:
    return mu.projected(jnp.ones(1, levels.dtype)).quantile(levels)
