"""The geometry of a cloud of tokens in any dimension, as the layers of a trained model leave it."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attnflow import _check as check
from attnflow.flow.path import Path
from attnflow.measures import Particles
from attnflow.numerics.arrays import known, one_program

# Rows of the matrix of distances that are made at a time.
_ROWS = 512


def pair_cosine(mu: Particles, *, centered: bool = False) -> Float[Array, ""]:
    r"""The mean of $\cos(x, y)$ over pairs of **different** tokens, drawn by weight; `centered`: of $\cos(x - m, y - m)$, $m$ the mean.

    For $n$ independent directions it is 0, centered $-1/(n-1)$; for tokens in one direction 1. A token at the origin, or at the mean, has
    no direction and counts as orthogonal to all. `mean_cosine` is over all pairs, of tokens on the sphere.
    """
    mu = check.measure("mu", mu, Particles, "Particles")
    check.flag("centered", centered)
    if len(mu.points) < 2:
        raise ValueError(f"mu must be at least 2 tokens for a mean over pairs, got {len(mu.points)}")
    return _pair_cosine(mu, centered)


@one_program
def _pair_cosine(mu: Particles, centered: bool) -> Float[Array, ""]:
    x = mu.points - mu.mean[None] if centered else mu.points
    square = jnp.sum(x**2, axis=1)
    some = square > 0
    unit = jnp.where(some[:, None], x / jnp.sqrt(jnp.where(some, square, 1))[:, None], 0)
    w = jnp.exp(mu.log_weights)
    # Of a pair with itself the cosine is 1, or 0 without a direction.
    return (jnp.sum((w @ unit) ** 2) - jnp.sum(w**2 * some)) / (1 - jnp.sum(w**2))


def rank_one_residual(mu: Particles) -> Float[Array, ""]:
    r"""$\min_y \big(\int |x - y|^2 \,d\mu\big)^{1/2} \big/ \big(\int |x|^2 \,d\mu\big)^{1/2}$: how far the matrix of tokens is from the
    nearest one whose rows are equal, which pure attention tends to (arXiv:2103.03404, there in another norm). 0 for one point, 1 for mean
    0."""
    return _rank_one_residual(check.measure("mu", mu, Particles, "Particles"))


@one_program
def _rank_one_residual(mu: Particles) -> Float[Array, ""]:
    total = mu.integrate(lambda x: jnp.sum(x**2, axis=1))
    spread = mu.integrate(lambda x: jnp.sum((x - mu.mean[None]) ** 2, axis=1))
    return jnp.sqrt(jnp.where(total > 0, spread / jnp.where(total > 0, total, 1), 0))


def intrinsic_dimension(mu: Particles) -> Float[Array, ""]:
    r"""The dimension of the set that tokens are drawn from, by the distances $r_1 \le r_2$ to the two nearest neighbors: $(n - 2) /
    \sum_i \log(r_2 / r_1)$, without bias where the density is constant over them (Facco et al. 2017, doi:10.1038/s41598-017-11873-y).
    Tokens of equal weight; those that coincide with another are left out, and $n$ is the number of the rest.
    """
    mu = check.measure("mu", mu, Particles, "Particles")
    if len(mu.points) < 3:
        raise ValueError(f"mu must be at least 3 tokens, each with two neighbors, got {len(mu.points)}")
    distances, _ = nearest(mu.points, 2)
    return _two_nearest(distances)


@one_program
def _two_nearest(distances: Float[Array, "n 2"]) -> Float[Array, ""]:
    apart = distances[:, 0] > 0
    logs = jnp.where(apart, jnp.log(distances[:, 1] / jnp.where(apart, distances[:, 0], 1)), 0)
    return (jnp.sum(apart) - 2) / jnp.sum(logs)


def neighbor_overlap(mu: Particles, nu: Particles, k: int = 10) -> Float[Array, ""]:
    """The share of the `k` nearest neighbors of a token in `mu` that are among its `k` nearest in `nu`, the same tokens later or in another
    layer; the mean over tokens (Doimo et al. 2020, arXiv:2007.03506). 1 if neighborhoods agree, about k / n if unrelated."""
    mu, nu = (check.measure(name, found, Particles, "Particles") for name, found in (("mu", mu), ("nu", nu)))
    check.count("k", k)
    if len(mu.points) != len(nu.points) or k >= len(mu.points):
        raise ValueError(f"mu and nu must be the same tokens, more than k = {k} of them, got {len(mu.points)} and {len(nu.points)}")
    first, second = nearest(mu.points, k)[1], nearest(nu.points, k)[1]
    return jnp.mean(jnp.any(first[:, :, None] == second[:, None, :], axis=2).astype(mu.dtype))


def nearest(points: Float[Array, "n d"], k: int) -> tuple[Float[Array, "n k"], Int[Array, "n k"]]:
    """The distances to the `k` nearest other points, by size, and which they are; some rows at a time."""
    return _nearest(points, k)


@one_program
def _nearest(points: Float[Array, "n d"], k: int) -> tuple[Float[Array, "n k"], Int[Array, "n k"]]:
    n = len(points)
    room = -n % min(n, _ROWS)
    # About their mean, so that a cloud far from the origin keeps the digits of its distances.
    points = points - jnp.mean(points, axis=0, keepdims=True)
    squares = jnp.sum(points**2, axis=1)
    rows = jnp.pad(points, ((0, room), (0, 0))).reshape(-1, min(n, _ROWS), points.shape[1])
    numbers = jnp.pad(jnp.arange(n), (0, room)).reshape(len(rows), -1)

    def block(part: tuple[Array, Array]) -> tuple[Array, Array]:
        x, i = part
        square = jnp.maximum(squares[i][:, None] + squares[None] - 2 * x @ points.T, 0)
        _, found = jax.lax.top_k(-jnp.where(i[:, None] == jnp.arange(n)[None], jnp.inf, square), k)
        # The chosen ones again, from differences, which keep the digits of what is close.
        return jnp.sqrt(jnp.sum((x[:, None] - points[found]) ** 2, axis=2)), found

    distances, found = jax.lax.map(block, (rows, numbers))
    distances, found = distances.reshape(-1, k)[:n], found.reshape(-1, k)[:n]
    order = jnp.argsort(distances, axis=1)
    return jnp.take_along_axis(distances, order, axis=1), jnp.take_along_axis(found, order, axis=1)


def displacement(mu: Particles, nu: Particles) -> Float[Array, ""]:
    r"""$\big(\sum_i w_i |y_i - x_i|^2\big)^{1/2}$: the cost of moving every token of `mu` to its own place in `nu`, an upper bound of
    $W_2(\mu, \nu)$."""
    mu, nu = (check.measure(name, found, Particles, "Particles") for name, found in (("mu", mu), ("nu", nu)))
    if mu.points.shape != nu.points.shape:
        raise ValueError(f"mu and nu must be the same tokens, got {list(mu.points.shape)} and {list(nu.points.shape)}")
    square = jnp.sum((nu.points - mu.points) ** 2, axis=1)
    return jnp.sqrt(mu.integrate(lambda _: square))


def step_sizes(path: Path) -> Float[Array, " s"]:
    r"""$\|x_{l+1} - x_l\| / \|x_l\|$ of successive frames of tokens, in the Frobenius norm: how small the steps of a network are."""
    check.path("path", path, Path, Particles, "a path of Particles")
    if len(path) < 2:
        raise ValueError("path must have at least two frames for a step, got one")
    states = jnp.asarray(path.states)
    size = jnp.sqrt(jnp.sum(states**2, axis=(1, 2)))
    if known(size) and not np.asarray(size[:-1]).all():
        raise ValueError("path must not have all tokens at the origin: no step from there has a relative size")
    return jnp.sqrt(jnp.sum((states[1:] - states[:-1]) ** 2, axis=(1, 2))) / size[:-1]
