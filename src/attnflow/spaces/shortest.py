r"""The shortest path between two points of an ellipsoid, in any dimension.

A path $p(s)$, $0 \le s \le 1$, is a polynomial, given by its values at the Gauss-Lobatto-Legendre nodes; the interior ones are on the
ellipsoid. With the derivative $B$ at the nodes, the weights $W$ of the quadrature, and $A$ the interior block of $B^\top W B$, twice its
energy is

$$ \int |p'|^2 ds = |y - x|^2 + \langle q, A q\rangle, \qquad p = \text{chord} + q . $$

The minimum, over all parametrizations, is the square of the length. A step minimizes it over $q$ with the nodes on their tangent planes,
that is $q = A^{-1} (\nu n)$ with $S \nu = (\langle n_k, q_k\rangle)_k$ and $S_{kl} = (A^{-1})_{kl} \langle n_k, n_l\rangle$, which is
positive definite; then the nodes are moved back to the ellipsoid. On a convex surface a step multiplies every error by a factor between 0
and 1, which is 1 only where a second geodesic meets the first, and the error of the length is of second order in that of the path.
"""

from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow.numerics.rows import as_row, dot, norm
from attnflow.spaces.closest import closest

_DEGREE, _MOST = 24, 100


class _Rule(NamedTuple):
    """The nodes in [0, 1], the derivative at the nodes `[k, k]`, and `A` with its inverse."""

    nodes: np.ndarray
    derivative: np.ndarray
    energy: np.ndarray
    inverse: np.ndarray


@lru_cache
def _rule(degree: int = _DEGREE) -> _Rule:
    last = np.polynomial.Legendre.basis(degree)
    x = np.concatenate([[-1.0], np.sort(last.deriv().roots().real), [1.0]])
    values = last(x)
    weights = 1 / (degree * (degree + 1) * values**2)
    gaps = x[:, None] - x[None] + np.eye(degree + 1)
    derivative = 2 * values[:, None] / values[None] / gaps * (1 - np.eye(degree + 1))
    derivative -= np.diag(derivative.sum(axis=1))
    energy = (derivative.T @ (weights[:, None] * derivative))[1:-1, 1:-1]
    return _Rule((x + 1) / 2, derivative, energy, np.linalg.inv(energy))


def arc(axes: tuple[float, float], x: Float[Array, "n 2"], y: Float[Array, "n 2"]) -> Float[Array, " n"]:
    r"""The length of the shorter arc of an ellipse, $\int |(a_1 \sin\theta, a_2 \cos\theta)| \,d\theta$ by a Gauss rule of 96 nodes."""
    nodes, weights = (jnp.asarray(part, x.dtype)[None] for part in np.polynomial.legendre.leggauss(96))
    turn = np.linspace(0, 2 * np.pi, 4096, endpoint=False)
    around = 2 * np.pi * np.mean(np.hypot(axes[0] * np.sin(turn), axes[1] * np.cos(turn)))
    (u1, u2), (w1, w2) = (x[:, 0] / axes[0], x[:, 1] / axes[1]), (y[:, 0] / axes[0], y[:, 1] / axes[1])
    # The difference of the angles from differences of the points, so that close points keep their digits.
    angle = jnp.arctan2(u1 * (w2 - u2) - u2 * (w1 - u1), u1 * w1 + u2 * w2)
    theta = jnp.arctan2(u2, u1)[:, None] + 0.5 * angle[:, None] * (1 + nodes)
    speed = norm(jnp.stack([axes[0] * jnp.sin(theta), axes[1] * jnp.cos(theta)], axis=-1))[..., 0]
    size = 0.5 * jnp.abs(angle) * jnp.sum(weights * speed, axis=1)
    return jnp.minimum(size, around - size)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def shortest(axes: tuple[float, ...], x: Float[Array, "n d"], y: Float[Array, "n d"]) -> Float[Array, " n"]:
    """The length of the path, row by row."""
    return _path(axes, x, y)[0]


@shortest.defjvp
def _shortest_jvp(axes, primals, tangents):
    """The length changes with the ends, along the direction of the geodesic there; from a point to itself the derivative is 0."""
    (x, y), (dx, dy) = primals, tangents
    size, leaving, arriving = _path(axes, x, y)
    return size, (dot(arriving, dy) - dot(leaving, dx)) / jnp.where(size > 0, size, 1)


def _path(axes: tuple[float, ...], x: Array, y: Array) -> tuple[Array, Array, Array]:
    """The length, and the velocity of the path at both ends."""
    from jax.scipy.linalg import cho_solve

    rule = _rule()
    inverse, energy, derivative = (jnp.asarray(m, x.dtype) for m in (rule.inverse, rule.energy, rule.derivative))
    inside = jnp.asarray(rule.nodes[1:-1], x.dtype)[None, :, None]
    # In units of the shortest axis the numbers are of size one.
    scale = min(axes)
    ratios = tuple(a / scale for a in axes)
    # Two starts, side by side.
    start = _starts(ratios, x / scale, y / scale).reshape(2 * len(x), _DEGREE - 1, -1)
    x, y = (jnp.concatenate([ends, ends]) / scale for ends in (x, y))
    chord = (y - x)[:, None]
    line = x[:, None] + inside * chord
    squares, eps = as_row(np.square(ratios), line), jnp.finfo(x.dtype).eps

    def squared(q: Array) -> Array:
        return dot(y - x, y - x) + jnp.einsum("nkd,kl,nld->n", q, energy, q)

    def settled(q: Array) -> tuple[Array, Array]:
        q = closest(ratios, line + q)[0] - line
        return q, squared(q)

    def step(carry: _State) -> _State:
        normal = (line + carry.q) / squares
        normal = normal / norm(normal)
        matrix = inverse[None] * jnp.einsum("nkd,nld->nkl", normal, normal)
        nu = cho_solve((jnp.linalg.cholesky(matrix), True), dot(normal, carry.q)[..., None])
        q, square = settled(jnp.einsum("kl,nld->nkd", inverse, nu * normal))
        # If steps shrink by a factor f, the limit is f / (1 - f) times the last one farther; used where that path is shorter (Aitken).
        move, last = q - carry.q, carry.move
        factor = jnp.clip(jnp.sum(move * last, axis=(1, 2)) / jnp.maximum(jnp.sum(last**2, axis=(1, 2)), eps**4), 0, 0.99)
        far, far_square = settled(q + (factor / (1 - factor))[:, None, None] * move)
        shorter = far_square < square
        q, square = jnp.where(shorter[:, None, None], far, q), jnp.where(shorter, far_square, square)
        # It must hold twice in a row, because one small step may be an accident.
        still = jnp.abs(square - carry.square) <= 4 * eps * square
        return _State(q, square, move, still, jnp.any(~(still & carry.still)), carry.count + 1)

    q, square = settled(start - line)
    begun = _State(q, square, jnp.zeros_like(q), jnp.zeros(len(q), bool), jnp.asarray(True), jnp.asarray(0))
    found = jax.lax.while_loop(lambda state: state.goes_on & (state.count < _MOST), step, begun)
    ends = chord + jnp.einsum("kl,nld->nkd", derivative[::_DEGREE, 1:-1], found.q)
    size = scale * norm(jnp.sqrt(found.square)[:, None])[:, 0]
    (one, other), (ends_one, ends_other) = jnp.split(size, 2), jnp.split(scale * ends, 2)
    ends = jnp.where((other < one)[:, None, None], ends_other, ends_one)
    # From a point to itself the length is 0, not round-off.
    apart = jnp.any(chord[: len(one)] != 0, axis=(1, 2))
    ends = jnp.where(apart[:, None, None], ends, 0)
    return jnp.where(apart, jnp.minimum(one, other), 0), ends[:, 0], ends[:, 1]


class _State(NamedTuple):
    """The state of a descent: the paths, the squares of their lengths, the last move, which are at rest, and whether to go on."""

    q: Array
    square: Array
    move: Array
    still: Array
    goes_on: Array
    count: Array


def _starts(axes: tuple[float, ...], x: Array, y: Array) -> Float[Array, "2 n k d"]:
    """The images of great circles of the unit sphere from x to y: the direct one, and the shortest one through the end of an axis."""
    nodes = jnp.asarray(_rule().nodes[1:-1], x.dtype)[None, :, None]
    eye = jnp.eye(len(axes), dtype=x.dtype)
    u, w = x / as_row(axes, x), y / as_row(axes, y)

    def better(best: tuple[Array, Array], end: Array) -> tuple[tuple[Array, Array], None]:
        over = jnp.broadcast_to(end[None], u.shape)
        first, second = _angle(u, over), _angle(over, w)
        share = (first / (first + second + jnp.finfo(x.dtype).tiny))[..., None]
        before, after = nodes / jnp.maximum(share, 1e-3), (nodes - share) / jnp.maximum(1 - share, 1e-3)
        path = jnp.where(nodes < share, _arc(u, over, before), _arc(over, w, after))
        path = path / norm(path) * as_row(axes, path)
        whole = jnp.concatenate([x[:, None], path, y[:, None]], axis=1)
        size = jnp.sum(norm(whole[:, 1:] - whole[:, :-1]), axis=(1, 2))
        shorter = size < best[1]
        return (jnp.where(shorter[:, None, None], path, best[0]), jnp.where(shorter, size, best[1])), None

    direct = _arc(u, w, nodes)
    direct = direct / norm(direct) * as_row(axes, direct)
    none = direct, jnp.full(len(x), jnp.inf, x.dtype)
    return jnp.stack([direct, jax.lax.scan(better, none, jnp.concatenate([eye, -eye]))[0][0]])


def _angle(u: Array, w: Array) -> Array:
    return 2 * jnp.arctan2(norm(u - w), norm(u + w))


def _arc(u: Array, w: Array, s: Array) -> Array:
    """The points at the fractions s of the great circle from u to w, not normalized; of the chord if w is near u or -u."""
    angle = _angle(u, w)[:, None]
    turns = jnp.sin(angle) > 1e-3
    angle = jnp.where(turns, angle, 1)
    first, second = (jnp.where(turns, jnp.sin(angle * part), part) for part in (1 - s, s))
    return first * u[:, None] + second * w[:, None]
