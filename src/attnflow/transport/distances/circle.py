"""The squared Wasserstein distance on the unit circle, for the length of arcs."""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attnflow.measures.line import Histogram, QuantileSteps, Tokens, step_at
from attnflow.transport.distances.line import merged, square_gap

_TURN = 2 * jnp.pi


@jax.jit
def squared_on_the_circle(left: Tokens | Histogram, right: Tokens | Histogram) -> Float[Array, ""]:
    """`min over theta of C(theta) = integral over u in (0, 1) of (F^-1(u) - G^-1(u - theta))^2`, for tokens that are angles from 0 to
    2 pi, or bars there; a turn further on, `G^-1(u + 1) = G^-1(u) + 2 pi`.

    C is convex. For two clouds it is piecewise linear: bisection on its slope ends at the corner of the minimum, where a level of mass of
    one cloud meets one of the other (Delon, Salomon and Sobolevski, SIAM J. Appl. Math. 70, 2010; arXiv:0902.3527). With bars it is
    smooth, but for corners where the ends of two gaps without mass meet.
    """
    f, g = left.steps, right.steps
    fixed, clouds = jax.lax.stop_gradient((f, g)), f.rise is None and g.rise is None
    best = _zero(partial(_slope, *fixed), f.level.dtype) if clouds else _lowest(partial(_cost, *fixed), f.level.dtype)
    corner = _corner(f, g, best)
    if not clouds:
        # Where C is smooth its slope at the minimum is zero, so that it does not matter that the shift follows the levels.
        near = jnp.abs(corner - best) <= 8 * jnp.finfo(best.dtype).eps
        corner = jnp.where(near, corner, best + corner - jax.lax.stop_gradient(corner))
    return _cost(f, g, corner)


def _cost(f: QuantileSteps, g: QuantileSteps, theta: Float[Array, ""]) -> Float[Array, ""]:
    """`C(theta)`: between two levels of mass both quantile functions are linear."""
    n = len(g.level)
    turns = jnp.floor(g.level + theta)
    mass, middle, i, j = merged(f.level, g.level + theta - turns)
    # From the level 0 on G^-1 climbs the steps that the shift has carried over it, then those that have come another turn round.
    first = jnp.where(turns[0] == turns[-1], 0, jnp.argmax(turns > turns[0]))
    step = (first + j) % n
    laps = turns[step] - (j >= n)
    there = g.over(step, middle - theta + laps, mass)
    return square_gap(mass, f.over(i, middle, mass), there._replace(middle=there.middle - _TURN * laps))


def _zero(slope: Callable[[Float[Array, ""]], Float[Array, ""]], dtype: jnp.dtype) -> Float[Array, ""]:
    """Where the slope of C changes sign. No arc is longer than half a turn, so that it lies in [-1, 1]."""

    def halve(_, bracket):
        low, high = bracket
        middle = (low + high) / 2
        falls = slope(middle) < 0
        return jnp.where(falls, middle, low), jnp.where(falls, high, middle)

    ends = jnp.asarray(-1, dtype), jnp.asarray(1, dtype)
    return jnp.mean(jnp.stack(jax.lax.fori_loop(0, jnp.finfo(dtype).nmant, halve, ends)))


def _lowest(cost: Callable[[Float[Array, ""]], Float[Array, ""]], dtype: jnp.dtype) -> Float[Array, ""]:
    """Where C is least in [-1, 1], by golden section: values carry the round-off of the levels of mass, a slope would multiply it by the
    inverse of the mass of a cell."""
    golden = (5**0.5 - 1) / 2

    def narrow(_, bracket):
        low, x, y, high, at_x, at_y = bracket
        left = at_x <= at_y
        low, high = jnp.where(left, low, x), jnp.where(left, y, high)
        new = jnp.where(left, high - golden * (high - low), low + golden * (high - low))
        at_new = cost(new)
        inside = jnp.where(left, new, y), jnp.where(left, x, new)
        return low, *inside, high, jnp.where(left, at_new, at_y), jnp.where(left, at_x, at_new)

    low, x, y, high = (jnp.asarray(value, dtype) for value in (-1, 1 - 2 * golden, 2 * golden - 1, 1))
    steps = round(jnp.finfo(dtype).nmant / math.log2(1 / golden))
    _, x, y, _, at_x, at_y = jax.lax.fori_loop(0, steps, narrow, (low, x, y, high, cost(x), cost(y)))
    return jnp.where(at_x <= at_y, x, y)


def _slope(f: QuantileSteps, g: QuantileSteps, theta: Float[Array, ""]) -> Float[Array, ""]:
    """The slope of C for two clouds. A larger shift gives y_j the mass at the level q_j + theta that was its follower's: to the right of
    it, x is F^-1 there."""
    following = jnp.append(g.x[1:], g.x[0] + _TURN)
    level = g.level + theta
    turns = jnp.floor(level)
    beside = f.x[jnp.minimum(jnp.searchsorted(f.level, level - turns, side="right"), len(f.level) - 1)] + _TURN * turns
    return jnp.sum((beside - g.x) ** 2 - (beside - following) ** 2)


def _corner(f: QuantileSteps, g: QuantileSteps, theta: Float[Array, ""]) -> Float[Array, ""]:
    """The shift `p_i - q_j + integer` next to theta, p and q levels at which both quantile functions jump: it follows them when the weights
    change."""
    q, jumps, theta = g.level, _jumps(f), jax.lax.stop_gradient(theta)
    # The levels of jumps come first, then a number far from all levels.
    p, last = jnp.sort(jnp.where(jumps, f.level, 3)), jnp.maximum(jnp.sum(jumps) - 1, 0)
    turns = jnp.floor(q + theta)
    after = step_at(p, q + theta - turns)
    # The level before the first is the last, less a turn; the level after the last is the first, and a turn.
    before = jnp.where(after == 0, p[last] - 1, p[after - 1])
    meets = jnp.concatenate([jnp.where(after > last, p[0] + 1, p[after]) + turns - q, before + turns - q])
    far = jnp.where(jnp.tile(_jumps(g), 2), jnp.abs(meets - theta), jnp.inf)
    return meets[jnp.argmin(far)]


def _jumps(steps: QuantileSteps) -> Bool[Array, " n"]:
    """Whether a quantile function jumps at each level: at every token, and at both ends of a gap between bars."""
    if steps.rise is None:
        return jnp.ones(len(steps.level), bool)
    empty = jnp.diff(steps.level, prepend=0.0) <= 4 * jnp.finfo(steps.level.dtype).eps
    return empty | jnp.roll(empty, -1)
