"""Order parameters: how far tokens of the sphere have come together."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import ArrayLike, MeasureLike
from attnflow.measures import Gaussian, Grid, Particles
from attnflow.numerics.arrays import square
from attnflow.numerics.rows import dot, times

_ROWS = 512


def order_parameter(mu: MeasureLike, k: int = 1) -> Float[Array, ""]:
    r"""How much of mode $k$ there is: on the circle $|\int e^{i k\theta} \,d\mu|$; on $S^{d-1}$ for $k = 1$ $|\int x \,d\mu|$, in radii of
    the sphere. 0 for the uniform measure, 1 for $k$ equal clusters at equal angles (and for any point masses on the $k$ vertices of
    a regular polygon)."""
    mu, radius = _on_sphere(mu)
    if check.count("k", k) > 1 and mu.dim != 2:
        raise ValueError(f"k must be at least 1, and on S^{mu.dim - 1} it must be 1, got {k}")
    if k == 1:
        return _in_radii(jnp.sqrt(jnp.sum(jnp.asarray(mu.mean) ** 2)), radius)
    turned = mu.integrate(lambda x: _harmonic(k, x))
    return jnp.sqrt(jnp.sum(turned**2))


def _harmonic(k: int, x: Array) -> Array:
    angle = k * jnp.arctan2(x[:, 1], x[:, 0])
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)


def mean_cosine(mu: MeasureLike) -> Float[Array, ""]:
    r"""$\iint \langle x, y\rangle \,d\mu\,d\mu = |\int x \,d\mu|^2$, with $x$ and $y$ in radii of the sphere: over all pairs, also
    of a token with itself."""
    return order_parameter(mu) ** 2


def cosine_histogram(mu: MeasureLike, bins: int = 50) -> tuple[Float[Array, " b"], Float[np.ndarray, " e"]]:
    r"""The distribution of the cosine $\langle x, y\rangle$ (in radii of the sphere) of two distinct tokens drawn by weight: the mass in
    each of `bins` equal parts of $[-1, 1]$, and their edges. Over all pairs of distinct tokens, some rows at a time."""
    mu = check.measure("mu", mu, Particles, "Particles")
    _, radius = _on_sphere(mu)
    check.count("bins", bins)
    if len(mu.points) < 2:
        raise ValueError(f"mu must be at least 2 tokens for a histogram of pairs, got {len(mu.points)}")
    return _histogram(_in_radii(mu.points, radius), jnp.exp(mu.log_weights), bins), np.linspace(-1, 1, bins + 1)


@partial(jax.jit, static_argnums=2)
def _histogram(points: Array, weights: Array, bins: int) -> Array:
    n = len(points)
    room = -n % _ROWS
    rows, masses, index = jnp.pad(points, ((0, room), (0, 0))), jnp.pad(weights, (0, room)), jnp.arange(n + room)

    def block(total: Array, part: tuple[Array, Array, Array]) -> tuple[Array, None]:
        x, w, i = part
        place = jnp.clip(jnp.floor((x @ points.T + 1) * (bins / 2)), 0, bins - 1).astype(int)
        mass = jnp.where(i[:, None] == jnp.arange(n)[None], 0, w[:, None] * weights[None])
        return total + jnp.zeros(bins, total.dtype).at[place.reshape(-1)].add(mass.reshape(-1)), None

    parts = (rows.reshape(-1, _ROWS, points.shape[1]), masses.reshape(-1, _ROWS), index.reshape(-1, _ROWS))
    total, _ = jax.lax.scan(block, jnp.zeros(bins, points.dtype), parts)
    return total / jnp.sum(total)


def effective_rank(mu: MeasureLike) -> Float[Array, ""]:
    r"""$\exp(-\sum_k p_k \log p_k)$ of the eigenvalues of the covariance (about the mean), divided by their sum: how many directions a
    measure fills, between 1 and $d$ (Roy and Vetterli 2007); 0 for a point."""
    mu = check.measure("mu", mu, (Particles, Gaussian, Grid))
    values = jnp.maximum(jnp.linalg.eigvalsh(mu.cov), 0)
    total = jnp.sum(values)
    share = values / jnp.where(total > 0, total, 1)
    return jnp.where(total > 0, jnp.exp(jnp.sum(jax.scipy.special.entr(share))), 0)


def _in_radii(lengths: Array, radius: float) -> Array:
    return lengths if radius == 1 else lengths / radius


def _on_sphere(mu: MeasureLike) -> tuple[Particles | Grid, float]:
    """`mu`, refused unless it is on a sphere, and the radius."""
    mu = check.measure("mu", mu, (Particles, Grid), "Particles or a Grid on the sphere")
    if mu.space.radius is None:
        raise TypeError(f"mu must be on the sphere, got {type(mu).__name__} on {mu.space}")
    return mu, mu.space.radius


def misalignment(mu: MeasureLike, projector: ArrayLike) -> Float[Array, ""]:
    r"""$\int |x - \Pi x|^2 / |\Pi x|^2 \,d\mu$: a Lyapunov functional of concentration, zero on the range of the projector $\Pi$.

    With $\Pi$ = `theory.spectral_projector(V @ B.T)` it falls along the zero-temperature flow at twice `theory.concentration_rate(B, V)` or
    faster, for a symmetric $V B^\top$ from the start (arXiv:2605.10931). Infinite if a token has no part along $\Pi$.
    """
    mu = check.measure("mu", mu, (Particles, Grid), "Particles or a Grid")
    matrix = square("projector", projector).astype(mu.dtype)
    if len(matrix) != mu.dim:
        raise ValueError(f"the projector must act on R^{mu.dim} like the tokens, got {len(matrix)} rows")

    def ratio(x: Array) -> Array:
        kept = times(x, matrix)
        lost = x - kept
        return dot(lost, lost) / dot(kept, kept)

    return mu.integrate(ratio)
