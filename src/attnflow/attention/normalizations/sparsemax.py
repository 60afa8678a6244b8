"""Sparsemax and entmax: rows have mass one, and keys far below the largest logit have none of it."""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attnflow._types import Scalar
from attnflow.attention.normalizations.base import Normalization, OverPairs
from attnflow.measures import Velocity
from attnflow.numerics.arrays import floats, known, one_program
from attnflow.sums import Atoms, Dense, Engine, Logit, Pairs, Request, Rows
from attnflow.sums.engines.choose import choose
from attnflow.sums.engines.reductions import logits
from attnflow.sums.mask import lowest

# Of Newton's passes. By convexity each divides error times slope by four at least, and the slope stays between 1 and a power, at most one,
# of the mass m of the largest key: in double precision that is 26 passes and log_4(1 / m) more.
_BUDGET = 100
# Levels that differ by this many roundings of the logits are one.
_ROUNDINGS = 8


class Sparsemax(Normalization):
    r"""The kernel $k(x, \cdot) \ge 0$ of mass one that is closest to the logit in $L^2(\mu)$, $k(x, y) = (\ell(x, y) - \tau(x))_+$ with
    $\tau$ such that $\int k(x, y) \,d\mu(y) = 1$; under a mask the integral is over what is seen.

    For $\alpha$ in $(1, 2]$ it is entmax, which maximizes $\int \ell k \,d\mu + \frac{1}{\alpha(\alpha-1)} \int (k - k^\alpha) \,d\mu$:

    $$k(x, y) = \big((\alpha - 1)\, \ell(x, y) - \tau(x)\big)_+^{1/(\alpha-1)}, \qquad \int k(x, y) \,d\mu(y) = 1.$$

    $\alpha = 2$ is sparsemax, $\alpha \to 1$ is softmax. These are functions of the measure: a token split in two changes nothing. For $n$
    tokens of equal mass the weights $p_j = k_j / n$ are those that papers write for sums, at another temperature: sparsemax of $\ell / n$
    (Martins and Astudillo 2016, arXiv:1602.02068), $\alpha$-entmax of $n^{1-\alpha} \ell$ (Peters et al. 2019, arXiv:1905.05702).

    **Arguments:**

    - `alpha`: $\alpha$, a number that is fixed in the program. Near 1 logits have an error of $u / (\alpha - 1)$, $u$ the unit round-off.

    $\tau$ comes from Newton's method in $O(n)$ memory, a pass over all pairs for each iteration. `law.at(mu).report["sparsemax"]` has
    `converged`, `iterations` and the `error`, the largest $|\int k \,d\mu - 1|$ at the tokens; weights are divided by that integral.
    Derivatives are those of the equation for $\tau$, of any order; they jump where a key enters, as those of $(\cdot)_+^{1/(\alpha-1)}$ do.
    """

    alpha: float = eqx.field(static=True)

    def __init__(self, alpha: Scalar = 2.0) -> None:
        number = floats("alpha", alpha, "")
        if not known(number):
            raise ValueError("alpha must be a number that is fixed in the program, got a traced one; give it as a Python float")
        # Of the number as it was given: single precision would change it.
        self.alpha = float(alpha)
        if not 1 < self.alpha <= 2:
            raise ValueError(f"alpha must be above 1 and at most 2, got {self.alpha:g}; 2 is sparsemax, and the limit 1 is af.Softmax()")

    def average(self, logit: Logit, atoms: Atoms, sums: Request | None) -> Velocity:
        return SparsemaxAverage(logit, atoms, sums, Power(self.alpha))

    @one_program
    def weights(self, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, order: Float[Array, " m"] | None = None) -> Float[Array, "m n"]:
        engine, kernel, pairs = Dense(), Power(self.alpha), Pairs(logit, x, atoms, order)
        rows, masses = engine.rows(pairs), jnp.exp(atoms.log_weights)
        found = kernel(logits(rows._replace(a=-_level(engine, kernel, rows, masses)))) * masses[None]
        share = None if rows.sight is None else rows.sight.share()
        found = found if share is None else found * share.astype(found.dtype)
        total = jnp.sum(found, axis=1, keepdims=True)
        return found / jnp.where(total > 0, total, 1)


class SparsemaxAverage(OverPairs):
    """The integral of k y over a cloud."""

    kernel: "Power" = eqx.field(static=True)

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m e"]:
        return _average(choose(len(x), len(self.atoms.points), self.sums), self.kernel, Pairs(self.logit, x, self.atoms, order))

    @property
    def report(self) -> dict[str, Any]:
        atoms = self.atoms
        found = _search_at(self.engines[0], self.kernel, Pairs(self.logit, atoms.points, atoms, atoms.order))
        figures = {"converged": found.converged, "iterations": found.iterations, "error": found.error}
        return super().report | {"sparsemax": figures}


@dataclasses.dataclass(frozen=True)
class Power:
    r"""The kernel $((\alpha - 1)\, z)_+^{1/(\alpha-1)}$ of what a logit is above its level, $z = \ell - t$ with $t = \tau / (\alpha - 1)$.

    Equal ones have equal hashes, so that programs are shared.
    """

    alpha: float

    @property
    def exponent(self) -> float:
        """$r = 1 / (\\alpha - 1)$."""
        return 1 / (self.alpha - 1)

    def __call__(self, z: Float[Array, "m n"]) -> Float[Array, "m n"]:
        # A small whole power is a product.
        whole = round(self.exponent)
        r = whole if whole <= 8 and abs(self.exponent - whole) < 1e-12 else self.exponent
        # A key without mass may have any logit; what is multiplied by zero must be finite.
        most = (float(jnp.finfo(z.dtype).max) / 1e3) ** (1 / r)
        above = (z > 0) & ((self.alpha - 1) * z < most)
        base = (self.alpha - 1) * jnp.where(above, z, 1)
        return jnp.where(above, base**r, 0)


class Search(NamedTuple):
    """The level `t [m]` of every query, whether all were found, after how many passes, and how far their integrals are from one."""

    level: Float[Array, " m"]
    converged: Bool[Array, ""]
    iterations: Int[Array, ""]
    error: Float[Array, ""]


@one_program
def _average(engine: Engine, kernel: Power, pairs: Pairs) -> Float[Array, "m e"]:
    atoms = pairs.atoms
    values, masses = atoms.points if atoms.values is None else atoms.values, jnp.exp(atoms.log_weights)
    # About their mean, so that values far from the origin keep their digits.
    center, rows = jax.lax.stop_gradient(jnp.mean(values, axis=0)), engine.rows(pairs)
    level = _level(engine, kernel, rows, masses)
    given = masses[:, None] * jnp.concatenate([jnp.ones_like(values[:, :1]), values - center[None]], axis=1)
    total = engine.pointwise(kernel, rows._replace(a=-level), given)
    # The average of a query that sees no key is zero, not the center.
    some = total[:, :1] > 0
    return jnp.where(some, total[:, 1:] / jnp.where(some, total[:, :1], 1) + center[None], 0)


@one_program
def _search_at(engine: Engine, kernel: Power, pairs: Pairs) -> Search:
    pairs = jax.lax.stop_gradient(pairs)
    return _search(engine, kernel, engine.rows(pairs), jnp.exp(pairs.atoms.log_weights))


def _integral(engine: Engine, kernel: Power, rows: Rows, masses: Float[Array, " n"], level: Float[Array, " m"]) -> Float[Array, " m"]:
    """`integral kernel(l(x, y) - t(x)) dmu(y)`; the term of the logit in x alone is part of the level."""
    return engine.pointwise(kernel, rows._replace(a=-level), masses[:, None])[:, 0]


def _search(engine: Engine, kernel: Power, rows: Rows, masses: Float[Array, " n"]) -> Search:
    r"""The levels $t = \max \ell - \delta$ by Newton's method for $\delta$ on $G(\delta) = 1$ with $r = 1 / (\alpha - 1)$ and

    $$G(\delta) = \|(\alpha - 1)(\ell - \max \ell + \delta)_+\|_{L^r(\mu)},$$

    whose r-th power is the integral of the kernel. G is a norm of convex functions that are not negative, so it is convex, and it grows. As
    the mass seen is at most 1, $G \le 1$ at $\delta_0 = r$. The first step goes to the root or to its right, yet never so far that the
    integral is above one over the mass of the largest key: nothing overflows, whatever r is. From there steps go left and end at the root,
    after finitely many for r = 1, where G is piecewise linear. So a query is done when its step to the left is within round-off, or goes
    right, which after the first is round-off too.
    """
    r, eps = kernel.exponent, jnp.finfo(rows.q.dtype).eps
    top = engine.largest(rows)
    some = top > lowest(top.dtype) / 2
    top = jnp.where(some, top, 0)
    # A level must differ from the largest logit, however large that is.
    least = _ROUNDINGS * eps * jnp.abs(top)

    def refine(state: tuple[Array, ...]) -> tuple[Array, ...]:
        gap, done, count, _ = state
        integral, slope = jax.jvp(lambda gap: _integral(engine, kernel, rows, masses, top - gap), (gap,), (jnp.ones_like(gap),))
        # (G - 1) / G', by what the integral is: I^{1/r} - 1 over I^{1/r - 1} I' / r.
        seen = (integral > 0) & (slope > 0)
        step = -r * integral * jnp.expm1(-jnp.log(jnp.where(seen, integral, 1)) / r) / jnp.where(seen, slope, 1)
        new = jnp.maximum(gap - jnp.where(seen, step, 0), least)
        left, close = gap - new, _ROUNDINGS * eps * (jnp.abs(top) + gap)
        ends = jnp.where(count == 0, jnp.abs(left), left) <= close
        return jnp.where(done, gap, new), done | ends, count + 1, jnp.where(some, jnp.abs(integral - 1), 0)

    def unfinished(state: tuple[Array, ...]) -> Bool[Array, ""]:
        return ~jnp.all(state[1]) & (state[2] < _BUDGET)

    start = (jnp.maximum(jnp.full_like(top, r), least), ~some, jnp.zeros((), int), jnp.zeros_like(top))
    gap, done, count, error = jax.lax.while_loop(unfinished, refine, start)
    return Search(top - gap, jnp.all(done), count, jnp.max(error))


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _level(engine: Engine, kernel: Power, rows: Rows, masses: Float[Array, " n"]) -> Float[Array, " m"]:
    """The level t of every query."""
    return _search(engine, kernel, rows, masses).level


@_level.defjvp
def _level_jvp(engine, kernel, primals, tangents):
    """By the equation: `dt = change / slope` for the change of the integral at a fixed level and its slope. Both are taken at a level that
    has this derivative too, so that derivatives of every order are right."""
    rows, masses = primals
    level = _level(engine, kernel, rows, masses)
    _, change = jax.jvp(lambda rows, masses: _integral(engine, kernel, rows, masses, level), primals, tangents)
    _, slope = jax.jvp(lambda t: -_integral(engine, kernel, rows, masses, t), (level,), (jnp.ones_like(level),))
    some = slope > 0
    return level, jnp.where(some, change / jnp.where(some, slope, 1), 0)
