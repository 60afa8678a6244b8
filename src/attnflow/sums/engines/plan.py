"""Plans of spectral sums, made on the host: modes, accuracy, exact rows. A plan is checked on a sample before it is used."""

import dataclasses
import importlib.util
import math
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attnflow._check import flag, warn
from attnflow.numerics.arrays import known, positive
from attnflow.numerics.special import scaled_bessel
from attnflow.sums.engines.base import Engine, Request
from attnflow.sums.engines.circle import SAFETY, rings
from attnflow.sums.engines.spectral import LEAST_ROWS, ONLY_SOFTMAX, Transform, balanced, box, certificate, lowest_rows, reach_of, share_of
from attnflow.sums.engines.tiled import Streamed
from attnflow.sums.rows import Pairs, Rows

# The largest grid of modes in 1, 2, 3 dimensions; FINUFFT doubles each side, at 16 bytes per mode.
MOST_MODES = {1: 2**22, 2: 2**22, 3: 2**21}
# Numbers of rows that may be summed exactly: few different ones, so that plans repeat.
EXACT_ROWS = (16, 128, 1024, 4096)
# The lowest accuracy of a series.
COARSEST = 0.1
# Room for a cloud to grow until the next plan.
ROOM = 1.3


class Spectral(Request):
    r"""Sums in $O(n \log n)$ by Fourier series, for tokens in $\mathbb{R}^1$, $\mathbb{R}^2$, $\mathbb{R}^3$, on the circle and on $S^2$,
    without a mask; on the circle with `Causal` too.

    **Arguments:** `tolerance`: the error of the log-normalizer, and of the average relative to the size of the cloud; by default $10^{-9}$
    in float64, $10^{-4}$ in float32.
    `circle`: whether tokens on a circle are summed by the series of the circle, which they must not leave then.

    The modes are planned from the values of the tokens and the result is checked against exact sums of sampled rows. What cannot reach
    the tolerance is summed by `Streamed()`, with a warning. Results repeat to the tolerance, not bitwise. Inside `jit` and `grad` a plan
    must exist already: `af.plan(law, mu, sums)` makes one; `solve` makes one by itself, and another when the cloud has outgrown it.
    """

    tolerance: float | None = eqx.field(static=True, default=None)
    circle: bool = eqx.field(static=True, kw_only=True, default=True)

    def __check_init__(self) -> None:
        flag("circle", self.circle)
        if self.tolerance is not None:
            positive("tolerance", self.tolerance)

    def fit(self, pairs: Pairs) -> Engine:
        check(pairs)
        if not known(pairs):
            raise ValueError("inside jit and grad a spectral sum needs its plan first, got Spectral(); pass sums=af.plan(law, mu, sums)")
        plan, why = planned(self.tolerance, pairs, self.circle)
        if plan is None:
            warn(f"a spectral sum cannot serve here, {why}; streamed sums do instead")
            return Streamed().decided()
        return plan

    def over(self, queries: int, keys: int) -> Engine:
        raise ValueError(ONLY_SOFTMAX)

    def by_value(self, dim: int, pairs: int) -> bool:
        return True

    def for_motion(self) -> "Spectral":
        return Spectral(self.tolerance, circle=False)


def installed() -> bool:
    """Whether the library of the transforms is installed."""
    return importlib.util.find_spec("jax_finufft") is not None


def check(pairs: Pairs) -> None:
    """Raise if no spectral engine can serve such a sum."""
    if not installed():
        raise ValueError("a spectral sum needs jax-finufft, which is not installed; pip install jax-finufft, or use sums=af.Streamed()")
    if pairs.logit.dim not in MOST_MODES or not pairs.logit.keys_are_tokens:
        raise ValueError(f"a spectral sum is for tokens in R^1, R^2 or R^3, got R^{pairs.logit.dim}; use sums=af.Streamed()")
    if not maskable(pairs):
        raise ValueError(f"a spectral sum takes no mask but Causal on the circle, got {pairs.atoms.mask!r}; use sums=af.Streamed()")


def maskable(pairs: Pairs) -> bool:
    """Whether there are spectral sums under the mask."""
    mask = pairs.atoms.mask
    return mask is None or (mask.causal and pairs.logit.dim == 2)


class Extent(NamedTuple):
    """The size of two clouds: the extent of their box in balanced rows, plain and tilted; as circles, the product of their radii and the
    error of taking them for circles."""

    plain: Array
    tilted: Array
    product: Array
    off_circle: Array


def planned(tolerance: float | None, pairs: Pairs, on_circle: bool = True) -> tuple[Transform | None, str]:
    """A plan that was checked on sampled rows, or `None` and the reason. Tokens on a circle have the series of the circle if
    `on_circle`."""
    double = pairs.x.dtype == jnp.float64
    tolerance = (1e-9 if double else 1e-4) if tolerance is None else tolerance
    floor = 2e-15 if double else 5e-7
    extent = _extent(pairs)
    circle = on_circle and pairs.logit.dim == 2 and math.isfinite(extent.product) and float(extent.off_circle) <= tolerance / SAFETY
    coarsest = min(max(tolerance / 30, floor), COARSEST)
    if (sight := pairs.sight) is not None:
        if not circle:
            return None, "the causal form is for tokens that stay on a circle"
        if not (np.array_equal(sight.s, sight.tau) and (np.diff(np.asarray(sight.tau)) > 0).all()):
            return None, "the causal form is for the tokens themselves, with distinct orders"
        return _attempt(Transform(tolerance, (), coarsest, circle, causal=True), floor, extent, pairs)
    why = ""
    for tilted in (False,) if circle else (False, True):
        plan = Transform(tolerance, (), coarsest, circle, tilted)
        # An estimate of the smallest share saves a round or two; the sample decides.
        plan = dataclasses.replace(plan, delta=max(plan.delta * min(1.0, float(_rim_share(plan, pairs))), floor))
        plan, why = _attempt(plan, floor, extent, pairs)
        if plan is not None:
            return plan, ""
    return None, why


def _attempt(plan: Transform, floor: float, extent: Extent, pairs: Pairs) -> tuple[Transform | None, str]:
    """The plan with its modes, refined until it holds on a sample; at the highest accuracy, with exact rows."""
    while True:
        modes = _modes(plan, extent)
        if math.prod(modes) > MOST_MODES[len(modes)]:
            return None, f"it would take at least {' x '.join(map(str, modes))} modes"
        plan = dataclasses.replace(plan, modes=modes)
        error, share = _try(plan, pairs)
        if SAFETY * error <= plan.tolerance:
            return plan, ""
        if plan.delta == floor and plan.causal:
            return None, f"the sums of some tokens are too small a part of what they see (error {error:.0e})"
        if plan.delta == floor:
            return _with_exact_rows(plan, pairs, error, share)
        plan = dataclasses.replace(plan, delta=max(0.1 * plan.delta * min(1.0, plan.tolerance / (SAFETY * error)), floor))


def _with_exact_rows(plan: Transform, pairs: Pairs, error: float, share: np.ndarray) -> tuple[Transform | None, str]:
    """The plan with as many exact rows as it needs, if those are few."""
    # The error of a row is proportional to 1 / share; the worst row of the sample gives the factor, unless its sum is below the error.
    needed = SAFETY * error / plan.tolerance * float(np.fmax(share, 0).min()) * 2 if math.isfinite(error) else 0.0
    count = int((~(share >= max(needed, 4 * plan.delta / plan.tolerance))).sum())
    for most in EXACT_ROWS:
        if count <= most <= len(share) // 8:
            plan = dataclasses.replace(plan, exact=most)
            error, _ = _try(plan, pairs)
            if SAFETY * error <= plan.tolerance:
                return plan, ""
    if not count:
        return None, f"round-off of logits so large is more than the tolerance (error {error:.0e})"
    return None, f"the sums of {count} queries are too small a part of the whole (error {error:.0e})"


def merged(engines: Sequence[Engine]) -> Engine | None:
    """One engine that serves in place of each of these; `None` if there are none."""
    plans = [engine for engine in engines if isinstance(engine, Transform)]
    if not plans:
        return engines[0] if engines else None
    first = plans[0]
    if len(plans) < len(engines) or any(_kind(p) != _kind(first) for p in plans):
        return Streamed().decided()
    return dataclasses.replace(
        first,
        modes=tuple(max(sizes) for sizes in zip(*(p.modes for p in plans))),
        delta=min(p.delta for p in plans),
        exact=max(p.exact for p in plans),
    )


def _kind(plan: Transform) -> tuple:
    return plan.circle, plan.causal, plan.tilted, len(plan.modes)


def _try(plan: Transform, pairs: Pairs) -> tuple[float, np.ndarray]:
    rows = _rows(plan, pairs)
    error, share, _ = certificate(plan, rows.q, rows.k, rows.b, rows.sight)
    return float(error), np.asarray(share)


@eqx.filter_jit
def _rows(plan: Transform, pairs: Pairs) -> Rows:
    return plan.rows(pairs).weighted()


@eqx.filter_jit
def _rim_share(plan: Transform, pairs: Pairs) -> Array:
    """The smallest share among queries at the rim of the cloud."""
    q, k, b = plan.rows(pairs).weighted()[:3]
    rim = lowest_rows(-jnp.sum((q - jnp.mean(q, axis=0)[None]) ** 2, axis=1), LEAST_ROWS)
    return jnp.min(share_of(plan, q, k, b, rim))


@eqx.filter_jit
def _extent(pairs: Pairs) -> Extent:
    atoms = pairs.atoms
    q, k = pairs.about(jnp.mean(atoms.points, axis=0))[:2]
    plain, tilted = (box(*balanced(q, k, tilt)[:2])[1] for tilt in (False, True))
    if pairs.logit.dim != 2:
        return Extent(plain, tilted, jnp.zeros_like(plain[0]), jnp.full_like(plain[0], jnp.inf))
    turned, _ = pairs.logit.queries(pairs.x, pairs.order, jnp.zeros_like(atoms.points[0]))
    ring = rings(turned, atoms.points)
    return Extent(plain, tilted, ring.length * ring.radius, ring.error)


def _modes(plan: Transform, extent: Extent) -> tuple[int, ...]:
    if plan.circle:
        r, count = float(extent.product), 16
        while count <= MOST_MODES[1] and float(scaled_bessel(r, count)[count // 2 - 1]) > plan.delta / 4:
            count = _bucket(count * 1.2)
        return (count,)
    reach, extents = reach_of(plan.delta), extent.tilted if plan.tilted else extent.plain
    return tuple(_bucket(ROOM * reach * (w + reach) / math.pi + 2) for w in np.asarray(extents).tolist())


def _bucket(least: float) -> int:
    """The next power of two, or three halves of one: transforms of such sizes are fast, and few different plans are compiled. What is not
    finite becomes more than any plan may have."""
    least = least if least < 2.0**60 else 2.0**60
    power = 2 ** int(math.log2(max(least, 16)))
    return next(size for size in (power, 3 * power // 2, 2 * power) if size >= least)
