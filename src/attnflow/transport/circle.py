"""The squared Wasserstein distance on the unit circle, for the length of arcs."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow.transport.line import Tokens, stair, staircase

_TURN = 2 * jnp.pi


@jax.jit
def squared_on_the_circle(left: Tokens, right: Tokens) -> Float[Array, ""]:
    """`min over theta of C(theta) = integral over u in (0, 1) of (F^-1(u) - G^-1(u - theta))^2`, for tokens that are angles; a turn further
    on, `G^-1(u + 1) = G^-1(u) + 2 pi`.

    C is convex and, for tokens, piecewise linear: bisection on its slope ends at the corner of the minimum, where a level of mass of
    one cloud meets one of the other (Delon, Salomon and Sobolevski, SIAM J. Appl. Math. 70, 2010; arXiv:0902.3527).
    """
    (x, p), (y, q) = (staircase(jnp.mod(cloud.x, _TURN), cloud.w) for cloud in (left, right))
    theta = _corner(p, q, _best_shift(*jax.lax.stop_gradient((x, p, y, q))))
    levels = jnp.sort(jnp.concatenate([p, jnp.mod(q + theta, 1)]))
    mass = jnp.diff(levels, prepend=0.0)
    middle = levels - mass / 2
    return jnp.vdot(mass, (x[stair(p, middle)] - _unrolled(y, q, middle - theta)) ** 2)


def _unrolled(y: Float[Array, " n"], q: Float[Array, " n"], u: Float[Array, " m"]) -> Float[Array, " m"]:
    """`G^-1(u)` for any real u."""
    turns = jnp.floor(u)
    return y[stair(q, u - turns)] + _TURN * turns


def _best_shift(x: Float[Array, " n"], p: Float[Array, " n"], y: Float[Array, " m"], q: Float[Array, " m"]) -> Float[Array, ""]:
    """Where the slope of C changes sign. No arc is longer than half a turn, so that it lies in [-1, 1]."""
    following = jnp.append(y[1:], y[0] + _TURN)

    def slope(theta):
        """A larger shift gives y_j the mass at the level q_j + theta that was its follower's: to the right of it, x is F^-1 there."""
        level = q + theta
        turns = jnp.floor(level)
        beside = x[jnp.minimum(jnp.searchsorted(p, level - turns, side="right"), len(p) - 1)] + _TURN * turns
        return jnp.sum((beside - y) ** 2 - (beside - following) ** 2)

    def halve(_, bracket):
        low, high = bracket
        middle = (low + high) / 2
        falls = slope(middle) < 0
        return jnp.where(falls, middle, low), jnp.where(falls, high, middle)

    ends = jnp.asarray(-1, p.dtype), jnp.asarray(1, p.dtype)
    return jnp.mean(jnp.stack(jax.lax.fori_loop(0, jnp.finfo(p.dtype).nmant, halve, ends)))


def _corner(p: Float[Array, " n"], q: Float[Array, " m"], theta: Float[Array, ""]) -> Float[Array, ""]:
    """The shift `p_i - q_j + integer` next to theta: it follows the levels when the weights change."""
    level = q + jax.lax.stop_gradient(theta)
    turns = jnp.floor(level)
    after = stair(p, level - turns)
    # The level before the first is the last, less a turn.
    before = jnp.where(after == 0, len(p) - 1, after - 1)
    meets = jnp.concatenate([p[after] + turns - q, p[before] + jnp.where(after == 0, turns - 1, turns) - q])
    return meets[jnp.argmin(jnp.abs(meets - theta))]
