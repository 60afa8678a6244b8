"""The interaction energy that simple attention climbs."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import FieldLike, MeasureLike, Scalar
from attnflow.attention.law import Attention
from attnflow.measures import Grid, Particles
from attnflow.measures.velocity import velocity_of
from attnflow.numerics.arrays import floats, known, one_program, positive
from attnflow.observe.density import entropy
from attnflow.sums import Atoms, Quadratic, Request, check_request, log_integral


def energy(mu: MeasureLike, beta: Scalar, *, log_scale: Scalar = 0.0, sums: Request | None = None, log: bool = False) -> Float[Array, ""]:
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


def dissipation(law: FieldLike, mu: MeasureLike, *, sums: Request | None = None) -> Float[Array, ""]:
    r"""$\frac{dE}{dt}$ along simple attention, $E = \frac{1}{2\beta} \iint e^{\beta\langle x, y\rangle} \,d\mu\,d\mu$, as a square: the
    dissipation identity.

    The gradient of $E$ is $P_x \int e^{\beta\langle x, y\rangle}\, y \,d\mu(y) = Z(x)\, v(x)$, $v$ the velocity of softmax attention and
    $Z$ its normalizer: $\frac{dE}{dt} = \int Z |v|^2 \,d\mu$ under SA and $\int |v|^2 \,d\mu$, now with the velocity of USA,
    under USA (arXiv:2312.10794). Compare `energy(mu, beta)` along a path. For $V = I$; `log_scale` of `Unnormalized` is counted.
    """
    if not isinstance(law, Attention) or law.mask is not None or not law.normalize.exponential:
        raise TypeError(check.refusal("law", "af.simple_attention(beta, d), with softmax or Unnormalized and no mask", law))
    mu = check.measure("mu", mu, Particles, "Particles")
    check_request(sums)
    if known(law.value, law.logit.form.A) and not _simple(np.asarray(law.value), np.asarray(law.logit.form.A)):
        raise ValueError("the dissipation is of simple attention, V = I and K^T Q = beta I, got other matrices")
    square = jnp.sum(mu.rate(velocity_of(law, mu, sums=sums)) ** 2, axis=1)
    if (log_scale := getattr(law.normalize, "log_scale", None)) is not None:
        return _in_range(mu.integrate(lambda _: square) * jnp.exp(-log_scale.astype(mu.dtype)))
    norm = jnp.exp(log_integral(Quadratic(law.logit.form.A.astype(mu.dtype)), mu.points, Atoms(mu.points, mu.log_weights), sums))
    return _in_range(mu.integrate(lambda _: norm * square))


def _in_range(found: Float[Array, ""]) -> Float[Array, ""]:
    if known(found) and not np.isfinite(float(found)):
        check.warn(
            f"the dissipation is beyond the range of {found.dtype}, got {float(found)}, as e^beta is; take the difference quotient of "
            "energy(..., log_scale=-beta) along a path"
        )
    return found


def _simple(value: np.ndarray, A: np.ndarray) -> bool:
    """Whether V = I and A is a multiple of the identity; on the host, so that a compiled observable may ask."""
    eye = np.eye(len(value))
    return np.allclose(value, eye) and np.allclose(A, A[0, 0] * eye)


def free_energy(
    mu: Particles | Grid,
    beta: Scalar,
    noise: Scalar = 0.0,
    *,
    log_scale: Scalar = 0.0,
    bandwidth: Scalar | None = None,
    sums: Request | None = None,
) -> Float[Array, ""]:
    r"""$F(\mu) = -\frac{e^c}{2\beta} \iint e^{\beta\langle x, y\rangle} \,d\mu\,d\mu + \frac{\sigma^2}{2} \int \log\rho \,d\mu$ with
    $\sigma$
    the `noise`, $c$ the `log_scale`: minus the energy that attention climbs, minus $\frac12 \sigma^2$ times the entropy.

    The flow of `Unnormalized(log_scale=c)` simple attention on the sphere with this noise is its gradient flow: it falls at the rate
    $\int |v - \frac{\sigma^2}{2} \nabla\log\rho|^2 \,d\mu$, $v$ the velocity of attention (derived; without noise arXiv:2312.10794).
    Tokens in $\mathbb{R}^d$ with noise need the `bandwidth` of a kernel for their density, see `af.entropy`.
    """
    mu = check.measure("mu", mu, (Particles, Grid), "Particles or a Grid")
    sigma = floats("noise", noise, "").astype(mu.dtype)
    if known(sigma) and float(sigma) < 0:
        raise ValueError(f"noise must not be negative, got {float(sigma)}")
    if bandwidth is not None:
        positive("bandwidth", bandwidth)
    order = -energy(mu, beta, log_scale=log_scale, sums=sums)
    return order if known(sigma) and float(sigma) == 0 else order - sigma**2 / 2 * entropy(mu, bandwidth, sums=sums)
