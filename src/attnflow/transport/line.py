"""The squared Wasserstein distance on the line, from quantile functions: `W2^2 = integral over u in (0, 1) of (F^-1(u) - G^-1(u))^2`.

A measure on the line is `Tokens`, whose quantile function is a staircase, `Bars`, a density constant in each of its cells, whose quantile
function is linear between jumps, or `Normals`, a mixture of normal laws.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri
from jax.scipy.stats.norm import pdf
from jaxtyping import Array, Float, Int

# Beyond 40 standard deviations a normal law has no mass in double precision: +-40 stands for infinity, and stays finite.
_FAR = 40.0
# Panels and nodes of the rule for two mixtures, or a mixture and bars; the tests measure an error below 1e-10 of the variance.
_PANELS = np.linspace(-8, 8, 33)
_LEGENDRE = {nodes: np.polynomial.legendre.leggauss(nodes) for nodes in (8, 12)}


class Tokens(NamedTuple):
    """Point masses at `x [n]` with weights `w [n]`, `None` for 1/n each."""

    x: Float[Array, " n"]
    w: Float[Array, " n"] | None


class Bars(NamedTuple):
    """Mass `w [n]` spread evenly between one of the rising `edges [n + 1]` and the next."""

    edges: Float[Array, " n_plus_1"]
    w: Float[Array, " n"]


class Normals(NamedTuple):
    """`sum_k w_k N(m_k, s_k^2)`. One law alone may have s = 0."""

    w: Float[Array, " k"]
    m: Float[Array, " k"]
    s: Float[Array, " k"]


def root(square: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """The square root; 0 below 0, which is round-off, and its derivative there is 0, not infinite."""
    some = square > 0
    return jnp.where(some, jnp.sqrt(jnp.where(some, square, 1)), 0)


@jax.jit
def squared_on_the_line(left: Any, right: Any) -> Float[Array, ""]:
    """`W2^2` of two of `Tokens`, `Bars`, `Normals`."""
    if not (isinstance(left, Normals) or isinstance(right, Normals)):
        return _steps(left, right)
    if isinstance(left, Tokens):
        return _mixed(right, left)
    return _mixed(left, right) if isinstance(right, Tokens) else _smooth(left, right)


def _steps(left: Tokens | Bars, right: Tokens | Bars) -> Float[Array, ""]:
    """The monotone coupling: between two levels of mass at which either quantile function jumps or bends, both are linear."""
    if isinstance(left, Tokens) and isinstance(right, Tokens) and left.w is None and right.w is None and len(left.x) == len(right.x):
        return jnp.mean((jnp.sort(left.x) - jnp.sort(right.x)) ** 2)
    f, g = ladder(left), ladder(right)
    mass, middle, i, j = merged(f.level, g.level)
    return square_gap(mass, climb(f, i, middle, mass), climb(g, j, middle, mass))


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


def square_gap(mass: Float[Array, " n"], left: "Climb", right: "Climb") -> Float[Array, ""]:
    """`integral (F^-1 - G^-1)^2` over pieces of mass on which both are linear: a gap that is d in the middle and grows by c along the
    piece has the mean square `d^2 + c^2 / 12`."""
    return jnp.vdot(mass, (left.middle - right.middle) ** 2 + (left.growth - right.growth) ** 2 / 12)


class Ladder(NamedTuple):
    """A quantile function: from the level before to its own, each step grows from `x` by `rise`; `None` if all are flat."""

    x: Float[Array, " n"]
    rise: Float[Array, " n"] | None
    level: Float[Array, " n"]


class Climb(NamedTuple):
    """A quantile function over pieces of mass: its value in the middle of each, and by how much it grows along it."""

    middle: Float[Array, " m"]
    growth: Float[Array, " m"]


def ladder(law: Tokens | Bars) -> Ladder:
    """The quantile function of tokens or bars."""
    if isinstance(law, Tokens):
        x, level = staircase(*law)
        return Ladder(x, None, level)
    mass = jnp.cumsum(law.w)
    return Ladder(law.edges[:-1], jnp.diff(law.edges), mass / mass[-1])


def climb(steps: Ladder, i: Int[Array, " m"], u: Float[Array, " m"], mass: Float[Array, " m"]) -> Climb:
    """A quantile function over pieces of mass with middles u, each within the step i; beyond the last there is no mass."""
    i = jnp.minimum(i, len(steps.x) - 1)
    if steps.rise is None:
        return Climb(steps.x[i], jnp.zeros_like(u))
    before = jnp.concatenate([jnp.zeros_like(u[:1]), steps.level[:-1]])[i]
    # By round-off a piece may have more mass than its step, which may have next to none. A piece as large as its step is not cut off: its
    # derivative would be.
    high = jnp.where(steps.level[i] > before, steps.level[i] - before, 1)
    share = jnp.where(mass < 2 * high, mass / high, 1)
    return Climb(steps.x[i] + steps.rise[i] * jnp.clip((u - before) / high, 0, 1), steps.rise[i] * share)


def staircase(x: Float[Array, " n"], w: Float[Array, " n"] | None) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Tokens in order, with the mass up to each; the last is 1."""
    if w is None:
        return jnp.sort(x), jnp.arange(1, len(x) + 1, dtype=x.dtype) / len(x)
    rows = jnp.argsort(x)
    mass = jnp.cumsum(w[rows])
    return x[rows], mass / mass[-1]


def stair(levels: Float[Array, " n"], u: Float[Array, " m"]) -> Any:
    """The stair of a staircase at level u."""
    return jnp.minimum(jnp.searchsorted(levels, u), len(levels) - 1)


def _mixed(law: Normals, tokens: Tokens) -> Float[Array, ""]:
    """`sum_j integral over the cell of token j of (x - y_j)^2 rho(x) dx`: the cells end at the quantiles of the levels of mass."""
    y, q = staircase(*tokens)
    u = q[:-1]
    t = ndtri(_open(u))[None] if len(law.w) == 1 else (quantile(law, u)[None] - law.m[:, None]) / law.s[:, None]
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


def _smooth(left: Normals | Bars, right: Normals | Bars) -> Float[Array, ""]:
    """Two laws, one of them normal or a mixture: closed form for two normal laws, otherwise a Gauss rule in u, on panels that end at an
    edge of a bar, and where x passes another half standard deviation of a component: on each the quantile functions are smooth."""
    if isinstance(left, Normals) and isinstance(right, Normals) and len(left.w) == len(right.w) == 1:
        return (left.m[0] - right.m[0]) ** 2 + (left.s[0] - right.s[0]) ** 2
    edges = jnp.sort(jnp.concatenate([_levels(left), _levels(right)]))
    nodes, weights = (jnp.asarray(values, edges.dtype) for values in _LEGENDRE[12])
    middle, half = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
    u = (middle[:, None] + half[:, None] * nodes[None]).reshape(-1)
    gap = (quantile(left, u) - quantile(right, u)) ** 2
    return jnp.vdot(half, gap.reshape(len(half), -1) @ weights)


def _levels(law: Normals | Bars) -> Float[Array, " m"]:
    """The mass below the ends of the panels of a law."""
    if isinstance(law, Bars):
        return ladder(law).level
    panels = jnp.asarray(_PANELS, law.m.dtype)
    return ndtr(panels) if len(law.w) == 1 else _cdf(law, (law.m[:, None] + law.s[:, None] * panels[None]).reshape(-1))


def quantile(law: Normals | Bars, u: Float[Array, " m"]) -> Float[Array, " m"]:
    """`F^-1(u)`, finite also at u = 0 and 1."""
    if isinstance(law, Bars):
        steps = ladder(law)
        return climb(steps, stair(steps.level, u), u, jnp.zeros_like(u)).middle
    return law.m[0] + law.s[0] * ndtri(_open(u)) if len(law.w) == 1 else _mixture_quantile(law, _open(u))


@jax.custom_jvp
def _mixture_quantile(law: Normals, u: Float[Array, " m"]) -> Float[Array, " m"]:
    """By bisection, between the least and the largest quantile of the components."""
    of_each = law.m[:, None] + law.s[:, None] * ndtri(u)[None]
    massive = (law.w > 0)[:, None]
    low, high = jnp.min(jnp.where(massive, of_each, jnp.inf), axis=0), jnp.max(jnp.where(massive, of_each, -jnp.inf), axis=0)

    def halve(_, bracket):
        low, high = bracket
        middle = low + (high - low) / 2
        below = _cdf(law, middle) < u
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    return jax.lax.fori_loop(0, jnp.finfo(u.dtype).nmant + 12, halve, (low, high))[1]


@_mixture_quantile.defjvp
def _mixture_quantile_jvp(primals, tangents):
    """`F(z) = u` gives `dz = (du - dF(z)) / rho(z)`."""
    (law, u), (d_law, du) = primals, tangents
    z = _mixture_quantile(law, u)
    _, dF = jax.jvp(lambda law: _cdf(law, z), (law,), (d_law,))
    t = (z[None] - law.m[:, None]) / law.s[:, None]
    density = law.w @ (pdf(t) / law.s[:, None])
    return z, (du - dF) / jnp.maximum(density, jnp.sqrt(jnp.finfo(z.dtype).tiny))


def _cdf(law: Normals, x: Float[Array, " m"]) -> Float[Array, " m"]:
    return law.w @ ndtr((x[None] - law.m[:, None]) / law.s[:, None])


def _open(u: Float[Array, " m"]) -> Float[Array, " m"]:
    """Levels inside (0, 1)."""
    precision = jnp.finfo(u.dtype)
    return jnp.clip(u, precision.tiny, 1 - precision.epsneg)
