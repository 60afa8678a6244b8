"""Fast sums over the cells of a grid, which are regular.

On a box with a logit that does not mix axes the kernel is a product, so that a sum over cells is a sum over one axis after the other:
matrix products, O(n^(1 + 1/d)), of positive terms. On the circle with a logit that commutes with rotations the sum is a convolution: four
FFTs. A mask depends on the order alone, and the logit does not: what is seen is summed over order first, then over the line.

On the box the result is exact up to round-off. On the circle round-off is that of the largest sum, so that the error of the velocity of a
cell with mass m is about 1e-16 / m: the flux of mass is right to 1e-16.
"""

import math
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from attnflow.numerics.rows import dot
from attnflow.sums.engines.base import Engine, Kernel, LogSumsAndMeans
from attnflow.sums.engines.tiled import over_pairs
from attnflow.sums.mask import Sight
from attnflow.sums.rows import Rows

# Cells per tile. In the small one kernels that are no narrower than a cell do not overflow, in the wide one those of four cells or more.
TILE, WIDE = 32, 128


class Lattice(Engine):
    """For queries and keys that are both the cells of a grid of this `shape`; all other sums are over pairs.

    `circle`: the axis is the circle. `ordered`: the first axis is the order of tokens, the second a line.
    """

    shape: tuple[int, ...] = eqx.field(static=True)
    circle: bool = eqx.field(static=True)
    ordered: bool = eqx.field(static=True, default=False)

    def softmax(self, rows: Rows, values: Float[Array, "n e"] | None = None, with_mean: bool = True) -> LogSumsAndMeans:
        q, k, sight = rows.q, rows.k, rows.sight
        regular = (sight is None or self.ordered) and len(q) == len(k) == math.prod(self.shape) and q.shape[1] == self.dim
        if values is not None or not regular:
            return over_pairs(len(q), len(k)).softmax(rows, values, with_mean)
        b = rows.weighted().b
        if len(self.shape) == 1 and not self.circle:
            return _on_box(self.shape, q, k, b, with_mean)
        return _softmax(self, with_mean, q, k, b, sight)

    def pointwise(self, kernel: Kernel, rows: Rows, values: Float[Array, "n e"]) -> Float[Array, "m e"]:
        return over_pairs(len(rows.q), len(rows.k)).pointwise(kernel, rows, values)

    def largest(self, rows: Rows) -> Float[Array, " m"]:
        return over_pairs(len(rows.q), len(rows.k)).largest(rows)

    def center(self, points: Float[Array, "n d"]) -> Float[Array, " d"]:
        return jnp.zeros_like(points[0]) if self.circle else super().center(points)

    @property
    def dim(self) -> int:
        """The dimension of the points of the cells."""
        return 2 if self.circle else len(self.shape) - self.ordered


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _softmax(lattice: Lattice, with_mean: bool, q: Array, k: Array, b: Array, sight: Sight | None) -> LogSumsAndMeans:
    """The fast sums if queries are as regular as the cells, else sums over pairs. A change of the queries breaks their regularity, so that
    derivatives in them are by pairs; those in the weights are by the fast sums."""
    pairs = over_pairs(len(q), len(k))
    if lattice.ordered:
        regular, fast = _in_order(lattice.shape, q, sight), lambda *args: _over_order(lattice.shape, sight, *args)
    elif lattice.circle:
        regular, fast = _turns(q, k), _on_circle
    else:
        regular, fast = _is_product(lattice.shape, q), lambda *args: _on_box(lattice.shape, *args)
    return jax.lax.cond(regular, lambda: fast(q, k, b, with_mean), lambda: pairs.softmax(Rows(q, k, b, sight=sight), None, with_mean))


@partial(_softmax.defjvp, symbolic_zeros=True)
def _softmax_jvp(lattice, with_mean, primals, tangents):
    still = [all(isinstance(leaf, SymbolicZero) for leaf in jax.tree.leaves(part, is_leaf=_is_zero)) for part in tangents]
    q, k, b, sight = primals
    if still[0] and still[1] and still[3]:
        change = jnp.zeros_like(b) if still[2] else tangents[2]
        return jax.jvp(lambda b: _softmax.fun(lattice, with_mean, q, k, b, sight), (b,), (change,))
    changes = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype) if _is_zero(leaf) else leaf, tangents, is_leaf=_is_zero)
    pairs = over_pairs(len(q), len(k))
    _, found = jax.jvp(lambda q, k, b, sight: pairs.softmax(Rows(q, k, b, sight=sight), None, with_mean), primals, tuple(changes))
    return _softmax(lattice, with_mean, *primals), found


def _is_zero(leaf: object) -> bool:
    return isinstance(leaf, SymbolicZero)


def _turns(q: Array, k: Array) -> Array:
    """Whether queries are the keys rotated by one angle and scaled by one factor."""
    slack = 1e3 * jnp.finfo(q.dtype).eps
    along, across = _turned(*jax.lax.stop_gradient((q, k)))
    off = jnp.maximum(jnp.ptp(along), jnp.ptp(across))
    return off <= slack * jnp.maximum(jnp.max(jnp.abs(along)), jnp.max(jnp.abs(across)))


def _turned(q: Array, k: Array) -> tuple[Array, Array]:
    """The queries as complex multiples of their keys, which lie on the unit circle."""
    return dot(q, k), q[:, 1] * k[:, 0] - q[:, 0] * k[:, 1]


def _on_circle(q: Array, k: Array, b: Array, with_mean: bool) -> LogSumsAndMeans:
    """`sum_j w_j e^{r cos(t_i - s_j)}` by FFT. For the mean, in the frame of the query, the kernel is multiplied by the cosine and the sine
    of `t_i - s_j`, which shifts its coefficients by one."""
    n = len(k)
    along, across = (jnp.mean(part) for part in _turned(q, k))
    r = jnp.sqrt(along**2 + across**2)
    top = jax.lax.stop_gradient(jnp.max(b))
    weights = jnp.exp(b - top)
    steps = 2 * np.pi * np.arange(n) / n
    cosine, sine = jnp.asarray(np.cos(steps), q.dtype), jnp.asarray(np.sin(steps), q.dtype)
    kernel = jnp.exp(along * cosine - across * sine - r)
    modes, coefficients = jnp.fft.rfft(weights), jnp.fft.rfft(kernel)
    # Where there is almost no mass around a cell, round-off may make its sum negative.
    least = jnp.finfo(q.dtype).eps * jnp.sum(weights) / n
    if not with_mean:
        return jnp.log(jnp.maximum(jnp.fft.irfft(modes * coefficients, n), least)) + top + r, None
    full = jnp.fft.irfft(jnp.stack([modes * c for c in (coefficients, *_shifted(coefficients, n))]), n)
    total = jnp.maximum(full[0], least)
    cos, sin = full[1] / total, full[2] / total
    # A mean of points of the circle lies within it.
    size = jnp.sqrt(jnp.maximum(cos**2 + sin**2, 1))
    cos, sin = cos / size, sin / size
    mean = jnp.stack([k[:, 0] * cos + k[:, 1] * sin, k[:, 1] * cos - k[:, 0] * sin], axis=1)
    return jnp.log(total) + top + r, mean


def _shifted(coefficients: Array, n: int) -> tuple[Array, Array]:
    """The transforms of kernel times cosine and kernel times sine of the step."""
    count = n // 2 + 1
    # c_{m-1} and c_{m+1}: the transform of a real function is conjugate in -m.
    low = jnp.concatenate([jnp.conj(coefficients[1:2]), coefficients[:-1]])
    last = coefficients[count - 2] if n % 2 == 0 else coefficients[count - 1]
    high = jnp.concatenate([coefficients[1:], jnp.conj(last)[None]])
    return 0.5 * (low + high), -0.5j * (low - high)


def _is_product(shape: tuple[int, ...], q: Array) -> Array:
    """Whether each coordinate of the queries depends on its own axis alone."""
    d = len(shape)
    q = jax.lax.stop_gradient(q)
    rows = q.reshape(*shape, d)
    spread = [jnp.max(jnp.ptp(rows[..., a], axis=tuple(i for i in range(d) if i != a))) for a in range(d)]
    return jnp.max(jnp.stack(spread)) <= 1e3 * jnp.finfo(q.dtype).eps * jnp.max(jnp.ptp(q, axis=0))


def _on_box(shape: tuple[int, ...], q: Array, k: Array, b: Array, with_mean: bool) -> LogSumsAndMeans:
    """One axis after the other: log-sums over it, and the means of what has been summed so far."""
    d = len(shape)
    queries, keys = q.reshape(*shape, d), k.reshape(*shape, d)
    first = [tuple(slice(None) if i == a else 0 for i in range(d)) for a in range(d)]
    logs, means = b.reshape(shape), jnp.zeros((0, *shape), q.dtype)
    for a in range(d):
        x, y = queries[(*first[a], a)], keys[(*first[a], a)]
        if with_mean:
            along = jnp.broadcast_to(jnp.expand_dims(y, tuple(i for i in range(d) if i != a)), shape)
            means = jnp.concatenate([means, along[None]])
        flat, values = jnp.moveaxis(logs, a, 0), jnp.moveaxis(means, a + 1, 1)
        rest = flat.shape[1:]
        out, found = sum_over_axis(x, y, flat.reshape(len(y), -1), values.reshape(len(values), len(y), math.prod(rest)))
        logs = jnp.moveaxis(out.reshape(len(x), *rest), 0, a)
        means = jnp.moveaxis(found.reshape(len(values), len(x), *rest), 1, a + 1)
    return logs.reshape(-1), means.reshape(d, -1).T if with_mean else None


def _in_order(shape: tuple[int, ...], q: Array, sight: Sight | None) -> Array:
    """Whether the queries are the same at every order, and have the orders of the keys."""
    rows = jax.lax.stop_gradient(q).reshape(shape)
    same = jnp.max(jnp.ptp(rows, axis=0)) <= 1e3 * jnp.finfo(q.dtype).eps * jnp.max(jnp.abs(rows))
    return same if sight is None else same & jnp.all(sight.s == sight.tau)


def _over_order(shape: tuple[int, ...], sight: Sight | None, q: Array, k: Array, b: Array, with_mean: bool) -> LogSumsAndMeans:
    """For every order the mass that it sees, then sums over the line."""
    x, y, logs = q.reshape(shape)[0], k.reshape(shape)[0], b.reshape(shape)
    if sight is None:
        seen, level = jnp.ones((shape[0], shape[0]), q.dtype), jnp.zeros(shape[0], q.dtype)
    else:
        along = Sight(sight.mask, *(rows.reshape(shape)[:, 0] for rows in (sight.s, sight.tau)))
        seen, level = (part.astype(q.dtype) for part in along.weights(jnp.any(jnp.isfinite(logs), axis=1)))
    top = jax.lax.stop_gradient(jnp.max(logs, axis=0))
    top = jnp.where(jnp.isfinite(top), top, 0)
    mass = seen @ jnp.exp(logs - top[None])
    some = mass > 0
    logs = jnp.where(some, jnp.log(jnp.where(some, mass, 1)) + top[None] + level[:, None], -jnp.inf)
    values = jnp.broadcast_to(y[None, :, None], (1, shape[1], shape[0])) if with_mean else jnp.zeros((0, shape[1], shape[0]), q.dtype)
    total, mean = sum_over_axis(x, y, logs.T, values)
    # An order that sees no mass has the log-sum minus infinity.
    total = jnp.where(~jnp.any(some, axis=1)[None], -jnp.inf, total)
    return total.T.reshape(-1), jnp.moveaxis(mean, 2, 1).reshape(1, -1).T if with_mean else None


def sum_over_axis(
    x: Float[Array, " m"], y: Float[Array, " n"], logs: Float[Array, "n l"], values: Float[Array, "e n l"]
) -> tuple[Float[Array, "m l"], Float[Array, "e m l"]]:
    """`log sum_j e^{x_i y_j + b_jl}` and the means of the values under these weights, for many lines l at once.

    In tiles: with X, Y the centers of a tile of queries and one of keys, `x y = X y + (x - X) Y + (x - X)(y - Y)`. The first term goes to
    the weights of the keys, which are scaled by their largest; the second to the result; the third, which is moderate, is a matrix.
    """
    if min(len(x), len(y)) <= 2 * TILE or logs.shape[1] < TILE:
        return _in_tiles(TILE, x, y, logs, values)
    # Larger tiles are faster for many lines, and possible if kernels are wide.
    largest = (WIDE / 2) ** 2 * jnp.max(jnp.abs(jnp.diff(x))) * jnp.max(jnp.abs(jnp.diff(y)))
    return jax.lax.cond(largest < 500, lambda: _in_tiles(WIDE, x, y, logs, values), lambda: _in_tiles(TILE, x, y, logs, values))


def _in_tiles(
    size: int, x: Float[Array, " m"], y: Float[Array, " n"], logs: Float[Array, "n l"], values: Float[Array, "e n l"]
) -> tuple[Float[Array, "m l"], Float[Array, "e m l"]]:
    """The sums in tiles of this size."""
    m, count = len(x), values.shape[0]
    size = min(size, max(len(x), len(y)))
    queries = jnp.pad(x, (0, -m % size), mode="edge").reshape(-1, size)
    room = -len(y) % size
    keys = jnp.pad(y, (0, room), mode="edge").reshape(-1, size)
    logs = jnp.pad(logs, ((0, room), (0, 0)), constant_values=-jnp.inf)
    values = jnp.pad(values, ((0, 0), (0, room), (0, 0)))
    tiles, middle = len(keys), jax.lax.stop_gradient(jnp.mean(keys, axis=1))
    values = jnp.concatenate([jnp.ones((1, *values.shape[1:]), x.dtype), values]).reshape(count + 1, tiles, size, logs.shape[1])

    def one(query: Array) -> tuple[Array, Array]:
        center = jax.lax.stop_gradient(jnp.mean(query))
        weights = (logs + (center * keys.reshape(-1))[:, None]).reshape(tiles, size, -1)
        top = jax.lax.stop_gradient(jnp.max(weights, axis=1))
        top = jnp.where(jnp.isfinite(top), top, jnp.finfo(x.dtype).min / 4)
        scaled = jnp.exp(weights - top[:, None])
        matrix = jnp.exp((query - center)[None, :, None] * (keys - middle[:, None])[:, None, :])
        found = jnp.einsum("tij,etjl->etil", matrix, values * scaled[None])
        level = top[:, None] + (query - center)[None, :, None] * middle[:, None, None]
        some = found[0] > 0
        level = jnp.where(some, level + jnp.log(jnp.where(some, found[0], 1)), jnp.finfo(x.dtype).min / 4)
        mean = found[1:] / jnp.where(some, found[0], 1)[None]
        total = jax.nn.logsumexp(level, axis=0)
        return total, jnp.einsum("til,etil->eil", jnp.exp(level - total[None]), mean)

    totals, means = jax.lax.map(one, queries)
    return totals.reshape(-1, logs.shape[1])[:m], jnp.moveaxis(means, 1, 0).reshape(count, queries.size, logs.shape[1])[:, :m]
