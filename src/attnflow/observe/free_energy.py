"""The free energy of noisy attention: order pulls one way, chance the other."""

from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import Scalar
from attnflow.measures import Grid, Particles
from attnflow.numerics.arrays import floats, known, positive
from attnflow.observe.density import entropy
from attnflow.observe.energy import energy
from attnflow.sums import Request


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
