"""Distances from a kernel, cheaper than transport: `D^2 = integral of k(x, y) d(mu - nu)(x) d(mu - nu)(y)`."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._types import Scalar
from attnflow.measures import Measure, Particles
from attnflow.measures.line import Histogram, Tokens
from attnflow.numerics.arrays import known, positive
from attnflow.numerics.linalg import one_by_one
from attnflow.numerics.special import safe_root
from attnflow.sums import Atoms, Request, Streamed, check_request, isotropic, log_integral
from attnflow.transport.distances.wasserstein import one_space

# Of tiles of side 128, 256 and 2048 the fastest for distances and for their derivatives, d = 2 to 64.
_TILES = Streamed(queries=256, keys=256, native=False)


def energy_distance(mu: Measure, nu: Measure) -> Float[Array, ""]:
    r"""$(2 E|x-y| - E|x-x'| - E|y-y'|)^{1/2}$ for independent $x, x'$ of $\mu$ and $y, y'$ of $\nu$: a metric (Szekely and Rizzo, J. Stat.
    Plan. Inference 143, 2013).

    For two clouds or grids; on the sphere too $|x-y|$ is the length of the chord. On the line by sorting, as $(2 \int (F-G)^2)^{1/2}$ with
    the distribution functions $F$ and $G$; otherwise over all pairs, in tiles with $O(n)$ memory, where the square carries round-off of
    the size of $E|x-y|$. A grid on the line is the density that is constant in each cell, elsewhere it is tokens at the centers of its
    cells.
    """
    mu, nu = one_space(mu, nu)
    if not (mu.discrete and nu.discrete):
        raise TypeError(
            f"energy_distance is for two clouds, got {type(mu).__name__} and {type(nu).__name__}; "
            "draw tokens with .sample(n, key=key), or use mmd"
        )
    if mu.dim == 1:
        line = jnp.ones(1, mu.dtype)
        return safe_root(_energy_on_the_line(mu.projected(line), nu.projected(line)))
    mu, nu = mu.particles(), nu.particles()
    return safe_root(2 * _mean_distance(mu, nu) - _mean_distance(mu, mu) - _mean_distance(nu, nu))


@jax.jit
def _energy_on_the_line(left: Tokens | Histogram, right: Tokens | Histogram) -> Float[Array, ""]:
    """`2 integral (F - G)^2`: both are linear between neighbors among tokens and edges, so that from a to b the mean square of their
    difference is `(a^2 + a b + b^2) / 3`."""
    ends = jnp.sort(jnp.concatenate([left.ends, right.ends]))
    (f, f_), (g, g_) = left.below(ends), right.below(ends)
    first, last = f - g, f_ - g_
    return 2 * jnp.vdot(jnp.diff(ends), (first**2 + first * last + last**2) / 3)


@jax.jit
def _mean_distance(mu: Particles, nu: Particles) -> Float[Array, ""]:
    """`E |x - y|`."""

    def step(total, x, keys, _):
        y, w = keys
        return total + _distances(x, y) @ w

    masses = jnp.exp(nu.log_weights)
    to_each = _TILES.fold(step, lambda x: jnp.zeros(len(x), x.dtype), mu.points, (nu.points, masses), (0, 0))
    return jnp.vdot(jnp.exp(mu.log_weights), to_each)


def _distances(x: Float[Array, "m d"], y: Float[Array, "n d"]) -> Float[Array, "m n"]:
    """`|x_i - y_j|`, coordinate by coordinate: from scalar products, tokens that nearly coincide would lose their digits."""

    @jax.checkpoint
    def add(square, coordinates):
        x, y = coordinates
        return square + (x[:, None] - y[None]) ** 2, None

    return safe_root(jax.lax.scan(add, jnp.zeros((len(x), len(y)), x.dtype), (x.T, y.T), unroll=16)[0])


def mmd(mu: Measure, nu: Measure, bandwidth: Scalar, *, sums: Request | None = None) -> Float[Array, ""]:
    r"""$(E k(x,x') + E k(y,y') - 2 E k(x,y))^{1/2}$ with $k(x, y) = e^{-|x-y|^2 / (2 h^2)}$: the maximum mean discrepancy of a Gaussian
    kernel (Gretton et al., JMLR 13, 2012).

    Any two of `Particles`, `Grid`, `Gaussian` and `GaussianMixture`; tokens on the sphere count as points of $\mathbb{R}^d$, and so do the
    centers of the cells of a grid, which must be no wider than $h$. All pairs count, also a token with itself, so that it is a metric. The
    square carries the error of the sums: round-off, or the tolerance of a spectral engine.

    **Arguments:** `bandwidth` is $h$; `sums` says how kernel sums over two clouds are evaluated, `None` chooses.
    """
    mu, nu = one_space(mu, nu)
    h = positive("bandwidth", bandwidth).astype(mu.dtype)
    check_request(sums)
    for measure in (mu, nu) if known(h) else ():
        measure.check_resolution(float(h) ** -2)
    mu, nu = (measure.particles() if measure.discrete else measure for measure in (mu, nu))
    return safe_root(_mean_kernel(mu, mu, h, sums) + _mean_kernel(nu, nu, h, sums) - 2 * _mean_kernel(mu, nu, h, sums))


def _mean_kernel(mu: Measure, nu: Measure, h: Float[Array, ""], sums: Request | None) -> Float[Array, ""]:
    """`E k(x, y)`."""
    if not (isinstance(mu, Particles) and isinstance(nu, Particles)):
        return _mean_smooth_kernel(mu, nu, h) if nu.discrete else _mean_smooth_kernel(nu, mu, h)
    logs = log_integral(isotropic(h**-2, mu.dim), mu.points, Atoms(nu.points, nu.log_weights), sums)
    return mu.integrate(lambda _: jnp.exp(logs))


@jax.jit
def _mean_smooth_kernel(mu: Measure, nu: Measure, h: Float[Array, ""]) -> Float[Array, ""]:
    """`E k(x, y)` for a smooth mu: at a token y it is `(2 pi h^2)^{d/2}` times the density of mu after the heat flow for time `h^2`; for
    a Gaussian y its covariance is added too."""
    warm, log_height = mu.heat(h**2), 0.5 * mu.dim * jnp.log(2 * jnp.pi * h**2)
    if nu.discrete:
        return nu.integrate(lambda y: jnp.exp(warm.log_density(y) + log_height))

    def at(center: Float[Array, " d"], spread: Float[Array, "d d"]) -> Float[Array, ""]:
        return jnp.exp(warm.each(lambda mean, cov: (mean, cov + spread)).log_density(center[None])[0] + log_height)

    weights, means, covs = nu.components
    return weights @ one_by_one(at)(means, covs)
