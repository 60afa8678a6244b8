"""Kernel sums: integrals of functions of the logit against a weighted cloud of keys.

Every function here centers the keys first. The sums do not change, but a cloud far from the origin keeps its digits.
"""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow.numerics.arrays import one_program
from attnflow.numerics.special import safe_root
from attnflow.sums.engines import reductions
from attnflow.sums.engines.base import Engine, Kernel, Request
from attnflow.sums.engines.choose import check_request, choose, request
from attnflow.sums.engines.tiled import Dense
from attnflow.sums.logits.logit import Logit
from attnflow.sums.mask import lowest
from attnflow.sums.precision import round_off
from attnflow.sums.rows import Atoms, Pairs, Rows

# The orders of queries, where they matter.
Order: TypeAlias = Float[Array, " m"] | None
# Logits that differ by this many roundings of their terms tie in hardmax.
_ROUNDINGS = 4


def average(logit: Logit, x: Float[Array, "m d"], atoms: Atoms, sums: Request | None = None, order: Order = None) -> tuple[Array, Array]:
    """`log Z(x) = log integral e^{l(x,y)} dmu(y)` and the average `integral e^{l(x,y)} v(y) dmu(y) / Z(x)` of the values of the keys, by
    default the keys themselves."""
    pairs = Pairs(logit, x, atoms, order)
    return _average(fitted(pairs, sums), pairs)


@one_program
def _average(engine: Engine, pairs: Pairs) -> tuple[Float[Array, " m"], Float[Array, "m e"]]:
    rows, atoms = engine.rows(pairs), pairs.atoms
    if pairs.logit.keys_are_tokens and atoms.values is None and rows.sharpness is None:
        values, center = None, engine.center(atoms.points)
    else:
        # About their mean, so that values far from the origin keep their digits.
        values = _values(atoms)
        center = _mean(values)
        values = values - center[None]
    log_norm, mean = engine.softmax(rows, values)
    assert mean is not None
    assert rows.a is not None
    log_norm = log_norm + rows.a
    # A query that sees no key has the mean 0, not the center.
    return log_norm, mean + (center[None] if rows.sight is None else jnp.where(jnp.isfinite(log_norm)[:, None], center[None], 0))


def log_integral(
    logit: Logit, x: Float[Array, "m d"], atoms: Atoms, sums: Request | None = None, order: Order = None
) -> Float[Array, " m"]:
    """`log integral e^{l(x,y)} dmu(y)`."""
    pairs = Pairs(logit, x, atoms, order)
    return _log_integral(fitted(pairs, sums), pairs)


@one_program
def _log_integral(engine: Engine, pairs: Pairs) -> Float[Array, " m"]:
    rows = engine.rows(pairs)
    assert rows.a is not None
    return engine.softmax(rows, with_mean=False)[0] + rows.a


def fitted(pairs: Pairs, sums: Request | None = None) -> Engine:
    """The engine for exponential sums over these queries and keys. A loop asks for it once, before it begins."""
    check_request(sums)
    return request(sums).fit(pairs)


def accuracy(pairs: Pairs, sums: Request | None) -> dict[str, Any]:
    """The accuracy of the sums at these queries: a bound on the round-off of logits, and the report of the engine."""
    return round_off(pairs, sums) | (sums.report(sums.rows(pairs)) if isinstance(sums, Engine) else {})


def pointwise_average(
    kernel: Kernel, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, sums: Request | None = None, order: Order = None
) -> Float[Array, "m e"]:
    """`integral kernel(l(x,y)) v(y) dmu(y)` for a named function of a matrix of logits, v the values of the keys."""
    return _pointwise_average(choose(len(x), len(atoms.points), sums), kernel, Pairs(logit, x, atoms, order))


@one_program
def _pointwise_average(engine: Engine, kernel: Kernel, pairs: Pairs) -> Float[Array, "m e"]:
    atoms = pairs.atoms
    return engine.pointwise(kernel, engine.rows(pairs, _mean(atoms.points)), jnp.exp(atoms.log_weights)[:, None] * _values(atoms))


def nearest_average(
    logit: Logit, x: Float[Array, "m d"], atoms: Atoms, sums: Request | None = None, order: Order = None
) -> Float[Array, "m e"]:
    """The average over the keys of largest logit, equal up to round-off: the limit of softmax at zero temperature."""
    return _nearest_average(choose(len(x), len(atoms.points), sums), Pairs(logit, x, atoms, order))


@one_program
def _nearest_average(engine: Engine, pairs: Pairs) -> Float[Array, "m e"]:
    atoms = pairs.atoms
    values, masses = _values(atoms), jnp.exp(atoms.log_weights)[:, None]
    center = _median(values)
    rows = engine.rows(pairs, _median(atoms.points))
    near = _less_largest(rows, engine.largest(rows))
    total = engine.pointwise(at_least_zero, near, masses * jnp.concatenate([jnp.ones_like(masses), values - center[None]], axis=1))
    some = total[:, :1] > 0
    return jnp.where(some, total[:, 1:] / jnp.where(some, total[:, :1], 1) + center[None], 0)


@one_program
def visible_logits(logit: Logit, x: Float[Array, "m d"], atoms: Atoms, order: Order = None) -> Float[Array, "m n"]:
    """The matrix of logits, dense; minus infinity for keys that are not seen."""
    logits, sight = logit(x, atoms.points, order, atoms.order), Pairs(logit, x, atoms, order).sight
    if sight is None:
        return logits
    seen = sight.apply(logits)
    return jnp.where(seen > lowest(seen.dtype) / 2, seen, -jnp.inf)


@one_program
def visible_masses(x: Float[Array, "m d"], atoms: Atoms, order: Order = None) -> Float[Array, "l n"]:
    """The mass that each query sees of each key, dense; without a mask, one row for all queries."""
    masses, mask = jnp.exp(atoms.log_weights)[None], atoms.mask
    if mask is None:
        return masses
    sight = mask.sight(order, atoms.order, len(x), len(atoms.points))
    share = sight.share()
    seen = mask.visible(sight.s[:, None], sight.tau[None, :]) if share is None else share
    return masses * seen.astype(masses.dtype)


@one_program
def top_keys(logit: Logit, x: Float[Array, "m d"], atoms: Atoms, order: Order = None) -> Float[Array, "m n"]:
    """1 where the key is among those of largest logit, dense."""
    engine = Dense()
    rows = engine.rows(Pairs(logit, x, atoms, order), _median(atoms.points))
    return at_least_zero(reductions.logits(_less_largest(rows, engine.largest(rows))))


def at_least_zero(logits: Float[Array, "m n"]) -> Float[Array, "m n"]:
    """1 where the logit is nonnegative."""
    return (logits >= 0).astype(logits.dtype)


def _less_largest(rows: Rows, top: Float[Array, " m"]) -> Rows:
    """Rows with the logits less the largest of their query, rounded up: those of keys that tie are nonnegative."""
    found = rows.massive()
    return _rounded_up(found, top) if rows.sharpness is None else found._replace(a=-_round_up_nearest(rows.q, rows.sharpness, top))


def _rounded_up(rows: Rows, top: Float[Array, " m"]) -> Rows:
    """Logits increased by a bound on their round-off, `c u (|q_i||k_j| + |b_j|)`, as one more coordinate, less the largest, decreased by
    its own."""
    q, k, b = rows[:3]
    slack = _ROUNDINGS * (q.shape[1] + 1) * jnp.finfo(q.dtype).eps
    lengths = [jnp.linalg.norm(rows, axis=1, keepdims=True) for rows in jax.lax.stop_gradient((q, k))]
    lowered = jax.lax.stop_gradient(top - _ROUNDINGS * jnp.finfo(top.dtype).eps * jnp.abs(top))
    return rows._replace(
        q=jnp.concatenate([q, slack * lengths[0]], axis=1),
        k=jnp.concatenate([k, lengths[1]], axis=1),
        b=b + slack * jnp.abs(b),
        a=-lowered,
    )


def _round_up_nearest(q: Float[Array, "m p"], sharpness: Float[Array, ""], top: Float[Array, " m"]) -> Float[Array, " m"]:
    """The largest of the logits `-s/2 r^2` less its round-off: r is known up to roundings of itself and of the rows."""
    r = safe_root(-2 * top / sharpness)
    longer = r + _ROUNDINGS * jnp.finfo(q.dtype).eps * (r + jnp.linalg.norm(q, axis=1))
    return jax.lax.stop_gradient(-0.5 * sharpness * longer**2)


def _values(atoms: Atoms) -> Float[Array, "n e"]:
    return atoms.points if atoms.values is None else atoms.values


def _mean(rows: Float[Array, "n d"]) -> Float[Array, " d"]:
    return jax.lax.stop_gradient(jnp.mean(rows, axis=0))


def _median(rows: Float[Array, "n d"]) -> Float[Array, " d"]:
    """The median of every coordinate: where ties matter, one key far away must not cost the others their digits."""
    return jax.lax.stop_gradient(jnp.median(rows, axis=0))
