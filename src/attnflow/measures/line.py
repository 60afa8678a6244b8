"""Probability distributions on the line: what a measure is to one coordinate.

The quantile function of `Tokens` is a step function, that of a `Histogram`, a density constant in each of its cells, is linear between
jumps, and that of a `NormalMixture` is smooth.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, Float, Int

from attnflow.numerics.special import normal_density

# The ends of the panels of a normal distribution, in standard deviations.
_PANELS = np.linspace(-8, 8, 33)


class Pieces(NamedTuple):
    """A quantile function over pieces of mass: its value in the middle of each piece, and by how much it grows along it."""

    middle: Float[Array, " m"]
    growth: Float[Array, " m"]


class QuantileSteps(NamedTuple):
    """A quantile function in steps: from the level before to its own, each grows from `x` by `rise`; `None` if all are flat."""

    x: Float[Array, " n"]
    rise: Float[Array, " n"] | None
    level: Float[Array, " n"]

    def over(self, i: Int[Array, " m"], u: Float[Array, " m"], mass: Float[Array, " m"]) -> Pieces:
        """The function over pieces of mass with middles u, each within the step i; beyond the last there is no mass."""
        i = jnp.minimum(i, len(self.x) - 1)
        if self.rise is None:
            return Pieces(self.x[i], jnp.zeros_like(u))
        before = jnp.concatenate([jnp.zeros_like(u[:1]), self.level[:-1]])[i]
        # By round-off a piece may have more mass than its step, which may have almost none. A piece as large as its step is not clipped:
        # its derivative would be clipped too.
        high = jnp.where(self.level[i] > before, self.level[i] - before, 1)
        share = jnp.where(mass < 2 * high, mass / high, 1)
        return Pieces(self.x[i] + self.rise[i] * jnp.clip((u - before) / high, 0, 1), self.rise[i] * share)


class Distribution(eqx.Module):
    """A probability distribution on the line, by its quantile function. `even`: equal weights; `normal`: one normal distribution."""

    even = False
    normal = False

    @property
    def steps(self) -> QuantileSteps | None:
        """The quantile function, if it is linear between jumps."""
        return None

    def quantile(self, u: Float[Array, " m"]) -> Float[Array, " m"]:
        """`F^-1(u)`, finite also at u = 0 and 1."""
        steps = self.steps
        assert steps is not None
        return steps.over(step_at(steps.level, u), u, jnp.zeros_like(u)).middle

    def panels(self) -> Float[Array, " m"]:
        """Levels of mass between which the quantile function is smooth."""
        steps = self.steps
        assert steps is not None
        return steps.level


class Tokens(Distribution):
    """Point masses at `x [n]` with weights `w [n]`, `None` for 1/n each."""

    x: Float[Array, " n"]
    w: Float[Array, " n"] | None

    @property
    def even(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.w is None

    @property
    def steps(self) -> QuantileSteps:
        """Tokens in order, with the mass up to each; the last is 1."""
        if self.w is None:
            return QuantileSteps(jnp.sort(self.x), None, jnp.arange(1, len(self.x) + 1, dtype=self.x.dtype) / len(self.x))
        rows = jnp.argsort(self.x)
        mass = jnp.cumsum(self.w[rows])
        return QuantileSteps(self.x[rows], None, mass / mass[-1])

    @property
    def ends(self) -> Float[Array, " m"]:
        """Where the distribution function jumps or bends."""
        return self.x

    def below(self, ends: Float[Array, " m"]) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        """The mass below x, just after each end and just before the next, for ends among which are all of its own."""
        steps = self.steps
        flat = _from_zero(steps)[jnp.searchsorted(steps.x, ends[:-1], side="right")]
        return flat, flat


class Histogram(Distribution):
    """Mass `w [n]` spread evenly between one of the rising `edges [n + 1]` and the next."""

    edges: Float[Array, " n_plus_1"]
    w: Float[Array, " n"]

    @property
    def steps(self) -> QuantileSteps:
        mass = jnp.cumsum(self.w)
        return QuantileSteps(self.edges[:-1], jnp.diff(self.edges), mass / mass[-1])

    @property
    def ends(self) -> Float[Array, " m"]:
        """Where the distribution function bends."""
        return self.edges

    def below(self, ends: Float[Array, " m"]) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        """The mass below each end but the last, and below the next."""
        at = jnp.interp(ends, self.edges, _from_zero(self.steps))
        return at[:-1], at[1:]


class NormalMixture(Distribution):
    """`sum_k w_k N(m_k, s_k^2)`. A single component may have s = 0."""

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


def step_at(levels: Float[Array, " n"], u: Float[Array, " m"]) -> Int[Array, " m"]:
    """The step that the level u lies in."""
    return jnp.minimum(jnp.searchsorted(levels, u), len(levels) - 1)


def _from_zero(steps: QuantileSteps) -> Float[Array, " n_plus_1"]:
    return jnp.append(jnp.zeros(1, steps.level.dtype), steps.level)


@jax.custom_jvp
def _mixture_quantile(mixture: NormalMixture, u: Float[Array, " m"]) -> Float[Array, " m"]:
    """By bisection, between the least and the largest quantile of the components."""
    of_each = mixture.m[:, None] + mixture.s[:, None] * ndtri(u)[None]
    massive = (mixture.w > 0)[:, None]
    low, high = jnp.min(jnp.where(massive, of_each, jnp.inf), axis=0), jnp.max(jnp.where(massive, of_each, -jnp.inf), axis=0)

    def halve(_, bracket):
        low, high = bracket
        middle = low + (high - low) / 2
        below = _cdf(mixture, middle) < u
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    return jax.lax.fori_loop(0, jnp.finfo(u.dtype).nmant + 12, halve, (low, high))[1]


@_mixture_quantile.defjvp
def _mixture_quantile_jvp(primals, tangents):
    """`F(z) = u` gives `dz = (du - dF(z)) / rho(z)`."""
    (mixture, u), (d_mixture, du) = primals, tangents
    z = _mixture_quantile(mixture, u)
    _, dF = jax.jvp(lambda mixture: _cdf(mixture, z), (mixture,), (d_mixture,))
    t = (z[None] - mixture.m[:, None]) / mixture.s[:, None]
    density = mixture.w @ (normal_density(t) / mixture.s[:, None])
    return z, (du - dF) / jnp.maximum(density, jnp.sqrt(jnp.finfo(z.dtype).tiny))


def _cdf(mixture: NormalMixture, x: Float[Array, " m"]) -> Float[Array, " m"]:
    return mixture.w @ ndtr((x[None] - mixture.m[:, None]) / mixture.s[:, None])


def inside(u: Float[Array, " m"]) -> Float[Array, " m"]:
    """Levels inside (0, 1)."""
    precision = jnp.finfo(u.dtype)
    return jnp.clip(u, precision.tiny, 1 - precision.epsneg)
