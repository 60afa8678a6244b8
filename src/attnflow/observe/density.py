"""The density, the entropy and the Fisher information of a measure; those of tokens by a Gaussian kernel, with sums on every engine."""

from functools import singledispatch

from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import ArrayLike, MeasureLike, Scalar
from attnflow.measures import Measure, Particles
from attnflow.numerics.arrays import positive
from attnflow.sums import Request, check_request
from attnflow.transport.kernel_density import KernelDensity, smoothed


def log_density(mu: MeasureLike, x: ArrayLike, bandwidth: Scalar | None = None, *, sums: Request | None = None) -> Float[Array, " m"]:
    r"""$\log\rho$ at every row of `x`.

    - Of a `Gaussian` or a `GaussianMixture`, in closed form; then there is no bandwidth.
    - Of `Particles` in $\mathbb{R}^d$: $\log \int \mathcal{N}(x; y, h^2 I) \,d\mu(y)$ with the bandwidth $h$, the density of the cloud
      smoothed by the heat flow for time $h^2$.

    **Arguments:** `x` is `[m, d]`; `bandwidth` is $h$.
    """
    return _density(mu, "log-density", bandwidth, sums).log_density(x)


def entropy(mu: MeasureLike, bandwidth: Scalar | None = None, *, sums: Request | None = None) -> Float[Array, ""]:
    r"""$-\int \log\rho \,d\mu$, the differential entropy.

    - Of a `Grid`: $\rho$ is its density, by length, area or surface area (and order); then there is no bandwidth.
    - Of a `Gaussian` with covariance $S$: $\frac12 \log\det(2\pi e S)$.
    - Of `Particles` in $\mathbb{R}^d$: an estimate, $\rho$ the density smoothed with the bandwidth $h$. A token counts in its own density,
      so that for small $h$ it falls to $\log n + \frac{d}{2} \log(2\pi h^2)$, wherever the tokens are.
    """
    return _density(mu, "entropy", bandwidth, sums).entropy()


def fisher_information(mu: MeasureLike, bandwidth: Scalar | None = None, *, sums: Request | None = None) -> Float[Array, ""]:
    r"""$\int |\nabla\log\rho|^2 \,d\mu$: along the heat flow $\partial_t \rho = \Delta\rho$ the entropy grows at this rate.

    The measure is asked for it; tokens, which have no density, are smoothed by a kernel.


    - Of a `Gaussian` with covariance $S$: $\operatorname{tr} S^{-1}$.
    - Of a `GaussianMixture`: by the trapezoidal rule, for $d \le 3$.
    - Of a `Grid`: the sum over faces of $\frac{a}{g} (\rho_l - \rho_r)(\log\rho_l - \log\rho_r)$ with the area $a$ and the gap $g$ between
      the middles, second order in the cell; a face next to an empty cell counts nothing.
    - Of `Particles` in $\mathbb{R}^d$: an estimate, $\rho$ the density smoothed with the bandwidth $h$.
    """
    return _density(mu, "Fisher information", bandwidth, sums).fisher_information()


def _density(mu: MeasureLike, what: str, bandwidth: Scalar | None, sums: Request | None) -> Measure | KernelDensity:
    """What has the density: the measure itself, or a kernel density."""
    check_request(sums)
    return _with_density(check.measure("mu", mu, Measure), what, bandwidth, sums)


@singledispatch
def _with_density(mu: Measure, what: str, bandwidth: Scalar | None, sums: Request | None) -> Measure | KernelDensity:
    if bandwidth is not None:
        raise ValueError(f"a {type(mu).__name__} has a density of its own, got bandwidth {check.shown(bandwidth)}; leave it out")
    return mu


@_with_density.register(Particles)
def _(mu: Particles, what: str, bandwidth: Scalar | None, sums: Request | None) -> KernelDensity:
    if bandwidth is None:
        raise ValueError(f"the {what} of Particles needs the width of a kernel, got none; give bandwidth=h")
    if not mu.space.flat:
        raise TypeError(f"mu: a kernel density is for tokens in R^d, got Particles on the {type(mu.space).__name__}")
    return smoothed(mu, positive("bandwidth", bandwidth).astype(mu.dtype) ** 2, sums)
