"""Laws on the line: what a measure is to one coordinate.

`Tokens` have a staircase for a quantile function; `Bars`, a density constant in each of its cells, one that is linear between jumps;
`Normals`, a mixture of normal laws, a smooth one.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, Float, Int

from attnflow.numerics.special import normal_density

# The ends of the panels of a normal law, in standard deviations.
_PANELS = np.linspace(-8, 8, 33)


class Climb(NamedTuple):
    """A quantile function over pieces of mass: its value in the middle of each, and by how much it grows along it."""

    middle: Float[Array, " m"]
    growth: Float[Array, " m"]


class Ladder(NamedTuple):
    """A quantile function: from the level before to its own, each step grows from `x` by `rise`; `None` if all are flat."""

    x: Float[Array, " n"]
    rise: Float[Array, " n"] | None
    level: Float[Array, " n"]

    def climb(self, i: Int[Array, " m"], u: Float[Array, " m"], mass: Float[Array, " m"]) -> Climb:
        """The function over pieces of mass with middles u, each within the step i; beyond the last there is no mass."""
        i = jnp.minimum(i, len(self.x) - 1)
        if self.rise is None:
            return Climb(self.x[i], jnp.zeros_like(u))
        before = jnp.concatenate([jnp.zeros_like(u[:1]), self.level[:-1]])[i]
        # By round-off a piece may have more mass than its step, which may have next to none. A piece as large as its step is not cut off:
        # its derivative would be.
        high = jnp.where(self.level[i] > before, self.level[i] - before, 1)
        share = jnp.where(mass < 2 * high, mass / high, 1)
        return Climb(self.x[i] + self.rise[i] * jnp.clip((u - before) / high, 0, 1), self.rise[i] * share)


class Law(eqx.Module):
    """A probability measure on the line, by its quantile function. `even` is a cloud of equal weights, `normal` is one normal law."""

    even = False
    normal = False

    @property
    def ladder(self) -> Ladder | None:
        """The quantile function, if it is linear between jumps."""
        return None

    def quantile(self, u: Float[Array, " m"]) -> Float[Array, " m"]:
        """`F^-1(u)`, finite also at u = 0 and 1."""
        steps = self.ladder
        assert steps is not None
        return steps.climb(stair(steps.level, u), u, jnp.zeros_like(u)).middle

    def panels(self) -> Float[Array, " m"]:
        """Levels of mass between which the quantile function is smooth."""
        steps = self.ladder
        assert steps is not None
        return steps.level


class Tokens(Law):
    """Point masses at `x [n]` with weights `w [n]`, `None` for 1/n each."""

    x: Float[Array, " n"]
    w: Float[Array, " n"] | None

    @property
    def even(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.w is None

    @property
    def ladder(self) -> Ladder:
        """Tokens in order, with the mass up to each; the last is 1."""
        if self.w is None:
            return Ladder(jnp.sort(self.x), None, jnp.arange(1, len(self.x) + 1, dtype=self.x.dtype) / len(self.x))
        rows = jnp.argsort(self.x)
        mass = jnp.cumsum(self.w[rows])
        return Ladder(self.x[rows], None, mass / mass[-1])

    @property
    def ends(self) -> Float[Array, " m"]:
        """Where the distribution function jumps or bends."""
        return self.x

    def below(self, ends: Float[Array, " m"]) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        """The mass below x, just after each end and just before the next, for ends among which are all of its own."""
        steps = self.ladder
        flat = _from_zero(steps)[jnp.searchsorted(steps.x, ends[:-1], side="right")]
        return flat, flat


class Bars(Law):
    """Mass `w [n]` spread evenly between one of the rising `edges [n + 1]` and the next."""

    edges: Float[Array, " n_plus_1"]
    w: Float[Array, " n"]

    @property
    def ladder(self) -> Ladder:
        mass = jnp.cumsum(self.w)
        return Ladder(self.edges[:-1], jnp.diff(self.edges), mass / mass[-1])

    @property
    def ends(self) -> Float[Array, " m"]:
        """Where the distribution function bends."""
        return self.edges

    def below(self, ends: Float[Array, " m"]) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        """The mass below each end but the last, and below the next."""
        at = jnp.interp(ends, self.edges, _from_zero(self.ladder))
        return at[:-1], at[1:]


class Normals(Law):
    """`sum_k w_k N(m_k, s_k^2)`. One law alone may have s = 0."""

    w: Float[Array, " k"]
    m: Float[Array, " k"]
    s: Float[Array, " k"]

    @property
    def normal(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return len(self.w) == 1

    def quantile(self, u: Float[Array, " m"]) -> Float[Array, " m"]:
        return self.m[0] + self.s[0] * ndtri(inside(u)) if self.normal else _mixture_quantile(self, inside(u))

    def panels(self) -> Float[Array, " m"]:
        """Where x passes another half standard deviation of a component."""
        panels = jnp.asarray(_PANELS, self.m.dtype)
        return ndtr(panels) if self.normal else _cdf(self, (self.m[:, None] + self.s[:, None] * panels[None]).reshape(-1))


def stair(levels: Float[Array, " n"], u: Float[Array, " m"]) -> Int[Array, " m"]:
    """The stair of a staircase at level u."""
    return jnp.minimum(jnp.searchsorted(levels, u), len(levels) - 1)


def _from_zero(steps: Ladder) -> Float[Array, " n_plus_1"]:
    return jnp.append(jnp.zeros(1, steps.level.dtype), steps.level)


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
    density = law.w @ (normal_density(t) / law.s[:, None])
    return z, (du - dF) / jnp.maximum(density, jnp.sqrt(jnp.finfo(z.dtype).tiny))


def _cdf(law: Normals, x: Float[Array, " m"]) -> Float[Array, " m"]:
    return law.w @ ndtr((x[None] - law.m[:, None]) / law.s[:, None])


def inside(u: Float[Array, " m"]) -> Float[Array, " m"]:
    """Levels inside (0, 1)."""
    precision = jnp.finfo(u.dtype)
    return jnp.clip(u, precision.tiny, 1 - precision.epsneg)
