"""The squared Wasserstein distance on the line, from quantile functions: `W2^2 = integral over u in (0, 1) of (F^-1(u) - G^-1(u))^2`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, Float

from attnflow.measures.line import Pieces, QuantileSteps, inside
from attnflow.numerics.special import normal_density as pdf

# Beyond 40 standard deviations a normal distribution has no mass in double precision: +-40 stands for infinity, and stays finite.
_FAR = 40.0
# Nodes of the rule for two mixtures, or a mixture and bars; the tests measure an error below 1e-10 of the variance.
_LEGENDRE = {nodes: np.polynomial.legendre.leggauss(nodes) for nodes in (8, 12)}


@jax.jit
def squared_on_the_line(left: Any, right: Any) -> Float[Array, ""]:
    """`W2^2` of two distributions on the line."""
    f, g = left.steps, right.steps
    if f is not None and g is not None:
        if left.even and right.even and len(left.x) == len(right.x):
            return jnp.mean((jnp.sort(left.x) - jnp.sort(right.x)) ** 2)
        return _steps(f, g)
    if f is not None and f.rise is None:
        return _mixed(right, f)
    return _mixed(left, g) if g is not None and g.rise is None else _smooth(left, right)


def _steps(f: QuantileSteps, g: QuantileSteps) -> Float[Array, ""]:
    """The monotone coupling: between two levels of mass at which either quantile function jumps or bends, both are linear."""
    mass, middle, i, j = merged(f.level, g.level)
    return square_gap(mass, f.over(i, middle, mass), g.over(j, middle, mass))


def merged(p: Float[Array, " n"], q: Float[Array, " m"]) -> tuple[Array, Array, Array, Array]:
    """The pieces between the levels of two quantile functions: the mass of each, its middle, and which step of either it belongs to.

    Steps are counted, not looked up by level: where two levels are equal, the piece between them has no mass, but a derivative.
    """
    levels = jnp.concatenate([p, q])
    order = jnp.argsort(levels)
    levels, from_p = levels[order], (order < len(p)).astype(int)
    mass = jnp.diff(levels, prepend=0.0)
    i = jnp.cumsum(from_p) - from_p
    return mass, levels - mass / 2, i, jnp.arange(len(levels)) - i


def square_gap(mass: Float[Array, " n"], left: Pieces, right: Pieces) -> Float[Array, ""]:
    """`integral (F^-1 - G^-1)^2` over pieces of mass on which both are linear: a gap that is d in the middle and grows by c along the
    piece has the mean square `d^2 + c^2 / 12`."""
    return jnp.vdot(mass, (left.middle - right.middle) ** 2 + (left.growth - right.growth) ** 2 / 12)


def _mixed(law: Any, tokens: QuantileSteps) -> Float[Array, ""]:
    """`sum_j integral over the cell of token j of (x - y_j)^2 rho(x) dx`: the cells end at the quantiles of the levels of mass."""
    y, u = tokens.x, tokens.level[:-1]
    t = ndtri(inside(u))[None] if law.normal else (law.quantile(u)[None] - law.m[:, None]) / law.s[:, None]
    t = jnp.where(u <= 0, -_FAR, jnp.where(u >= 1, _FAR, jnp.clip(t, -_FAR, _FAR)))
    end = jnp.full((len(law.w), 1), _FAR, t.dtype)
    edges = jnp.concatenate([-end, t, end], axis=1)
    cells = _second_moment(edges[:, :-1], edges[:, 1:], law.s[:, None], law.m[:, None] - y[None])
    return law.w @ jnp.sum(cells, axis=1)


def _second_moment(a: Float[Array, "k n"], b: Float[Array, "k n"], s: Float[Array, "k 1"], d: Float[Array, "k n"]) -> Float[Array, "k n"]:
    """`integral from a to b of (s t + d)^2 phi(t) dt`, phi the standard normal density.

    The closed form loses its digits in a narrow cell, where a Gauss rule, a sum of positive terms, is exact to round-off.
    """
    mass = jnp.where(a > 0, ndtr(-a) - ndtr(-b), ndtr(b) - ndtr(a))
    closed = s**2 * (mass - (b * pdf(b) - a * pdf(a))) - 2 * s * d * (pdf(b) - pdf(a)) + d**2 * mass
    middle, half = (a + b) / 2, (b - a) / 2
    nodes, weights = (jnp.asarray(values, d.dtype) for values in _LEGENDRE[8])
    t = middle[None] + half[None] * nodes[:, None, None]
    gauss = half * jnp.tensordot(weights, pdf(t) * (s[None] * t + d[None]) ** 2, axes=1)
    return jnp.where(half <= 0.5, gauss, closed)


def _smooth(left: Any, right: Any) -> Float[Array, ""]:
    """Two distributions, one of them normal or a mixture: closed form for two normal ones, otherwise a Gauss rule in u, on panels that end
    at an edge of a bar, and where x passes another half standard deviation of a component: on each the quantile functions are smooth."""
    if left.normal and right.normal:
        return (left.m[0] - right.m[0]) ** 2 + (left.s[0] - right.s[0]) ** 2
    edges = jnp.sort(jnp.concatenate([left.panels(), right.panels()]))
    nodes, weights = (jnp.asarray(values, edges.dtype) for values in _LEGENDRE[12])
    middle, half = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
    u = (middle[:, None] + half[:, None] * nodes[None]).reshape(-1)
    gap = (left.quantile(u) - right.quantile(u)) ** 2
    return jnp.vdot(half, gap.reshape(len(half), -1) @ weights)
