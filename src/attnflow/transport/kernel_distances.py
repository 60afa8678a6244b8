"""Distances from a kernel: `D^2 = integral of k(x, y) d(mu - nu)(x) d(mu - nu)(y)`, cheaper than transport, and blind to nothing."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._arrays import known, positive
from attnflow.measures import Gaussian, GaussianMixture, Grid, Measure, Particles
from attnflow.sums import Atoms, Engine, Streamed, check_engine, isotropic, log_integral
from attnflow.transport.distances import one_space
from attnflow.transport.line import Bars, Tokens, ladder, root
from attnflow.transport.pictures import projected, tokens_of

# Of 128, 256, 2048 a side the fastest for distances and for their derivatives, d = 2 to 64.
_TILES = Streamed(queries=256, keys=256, native=False)


def energy_distance(mu: Measure, nu: Measure) -> Float[Array, ""]:
    r"""$(2 E|x-y| - E|x-x'| - E|y-y'|)^{1/2}$ for independent $x, x'$ of $\mu$ and $y, y'$ of $\nu$: a metric (Szekely and Rizzo, J. Stat.
    Plan. Inference 143, 2013).

    For two clouds or grids; on the sphere too $|x-y|$ is the length of the chord. On the line by sorting, as $(2 \int (F-G)^2)^{1/2}$ with
    the distribution functions $F$ and $G$; otherwise over all pairs, in tiles with $O(n)$ memory, where the square carries round-off of
    the size of $E|x-y|$. A grid on the line is the density that is constant in each cell, elsewhere it is tokens at the middles of its
    cells.
    """
    mu, nu = one_space(mu, nu)
    if not (isinstance(mu, Particles | Grid) and isinstance(nu, Particles | Grid)):
        raise TypeError(
            f"energy_distance is for two clouds, got {type(mu).__name__} and {type(nu).__name__}; "
            "draw tokens with .sample(n, key=key), or use mmd"
        )
    if mu.dim == 1:
        line = jnp.ones(1, mu.dtype)
        return root(_energy_on_the_line(projected(mu, line), projected(nu, line)))
    mu, nu = tokens_of(mu), tokens_of(nu)
    return root(2 * _mean_distance(mu, nu) - _mean_distance(mu, mu) - _mean_distance(nu, nu))


@jax.jit
def _energy_on_the_line(left: Any, right: Any) -> Float[Array, ""]:
    """`2 integral (F - G)^2`: both are linear between neighbours among tokens and edges, so that from a to b the mean square of their
    difference is `(a^2 + a b + b^2) / 3`."""
    ends = jnp.sort(jnp.concatenate([law.x if isinstance(law, Tokens) else law.edges for law in (left, right)]))
    (f, f_), (g, g_) = _below(left, ends), _below(right, ends)
    first, last = f - g, f_ - g_
    return 2 * jnp.vdot(jnp.diff(ends), (first**2 + first * last + last**2) / 3)


def _below(law: Tokens | Bars, ends: Float[Array, " m"]) -> tuple[Array, Array]:
    """The mass below x, just after each end and just before the next."""
    steps = ladder(law)
    levels = jnp.append(jnp.zeros(1, ends.dtype), steps.level)
    if isinstance(law, Bars):
        at = jnp.interp(ends, law.edges, levels)
        return at[:-1], at[1:]
    flat = levels[jnp.searchsorted(steps.x, ends[:-1], side="right")]
    return flat, flat


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

    return root(jax.lax.scan(add, jnp.zeros((len(x), len(y)), x.dtype), (x.T, y.T), unroll=16)[0])


def mmd(mu: Measure, nu: Measure, bandwidth: Any, sums: Engine | None = None) -> Float[Array, ""]:
    r"""$(E k(x,x') + E k(y,y') - 2 E k(x,y))^{1/2}$ with $k(x, y) = e^{-|x-y|^2 / (2 h^2)}$: the maximum mean discrepancy of a Gaussian
    kernel (Gretton et al., JMLR 13, 2012).

    Any two of `Particles`, `Grid`, `Gaussian` and `GaussianMixture`; tokens on the sphere count as points of $\mathbb{R}^d$, and so do the
    middles of the cells of a grid, which must be no wider than $h$. All pairs count, also a token with itself, so that it is a metric. The
    square carries the error of the sums: round-off, or the tolerance of a spectral engine.

    **Arguments:** `bandwidth` is $h$; `sums` says how kernel sums over two clouds are evaluated, `None` chooses.
    """
    mu, nu = one_space(mu, nu)
    h = positive("bandwidth", bandwidth).astype(mu.mean.dtype)
    check_engine(sums)
    for measure in (mu, nu):
        if isinstance(measure, Grid) and known(h):
            measure.check_resolution(float(h) ** -2)
    mu, nu = tokens_of(mu), tokens_of(nu)
    return root(_mean_kernel(mu, mu, h, sums) + _mean_kernel(nu, nu, h, sums) - 2 * _mean_kernel(mu, nu, h, sums))


def _mean_kernel(mu: Measure, nu: Measure, h: Float[Array, ""], sums: Engine | None) -> Float[Array, ""]:
    """`E k(x, y)`."""
    if not (isinstance(mu, Particles) and isinstance(nu, Particles)):
        return _mean_kernel_of_law(nu, mu, h) if isinstance(nu, Gaussian | GaussianMixture) else _mean_kernel_of_law(mu, nu, h)
    logs = log_integral(isotropic(h**-2, mu.dim), mu.points, Atoms(nu.points, nu.log_weights), sums)
    return mu.integrate(lambda _: jnp.exp(logs))


@jax.jit
def _mean_kernel_of_law(law: Measure, other: Measure, h: Float[Array, ""]) -> Float[Array, ""]:
    """`E k(x, y)`: at a token y it is `(2 pi h^2)^{d/2}` times the density of the law with `h^2 I` added to its covariances; for a
    Gaussian y its covariance is added too."""
    weights, means, covs = _components(law)
    covs = covs + h**2 * jnp.eye(law.dim, dtype=h.dtype)[None]

    def at(y, spread):
        log_density = GaussianMixture(weights, means, covs + spread[None]).log_density(y)
        return jnp.exp(log_density + 0.5 * law.dim * jnp.log(2 * jnp.pi * h**2))

    if isinstance(other, Particles):
        return other.integrate(lambda y: at(y, jnp.zeros_like(covs[0])))
    each, centres, spreads = _components(other)
    return each @ jax.vmap(lambda mean, cov: at(mean[None], cov)[0])(centres, spreads)


def _components(law: Any) -> tuple[Array, Array, Array]:
    if isinstance(law, Gaussian):
        return jnp.ones(1, law.dtype), law.mean[None], law.cov[None]
    return law.weights, law.means, law.covs
