"""The sum primitive: integrals of functions of the logit against a weighted cloud of keys.

Every function here centres the keys first. The sums do not change, but digits are kept when the cloud is far from the origin.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from attnflow._arrays import one_program
from attnflow.sums.atoms import Atoms, rows
from attnflow.sums.base import Engine
from attnflow.sums.choose import automatic, check_engine, choose
from attnflow.sums.engine import Tiled
from attnflow.sums.logit import Logit, squares
from attnflow.sums.mask import Sight, lowest
from attnflow.sums.precision import round_off

# Logits that differ by this many roundings of their terms tie in hardmax.
_ROUNDINGS = 4


def average(
    logit: Logit, x: Float[Array, "m d"], atoms: Atoms, sums: Engine | None = None, order: Float[Array, " m"] | None = None
) -> tuple[Float[Array, " m"], Float[Array, "m d"]]:
    """`log Z(x) = log integral e^{l(x,y)} dmu(y)` and the average `integral e^{l(x,y)} y dmu(y) / Z(x)`."""
    return _average(fitted(logit, x, atoms, sums, order), logit, x, atoms, order)


@one_program
def _average(
    engine: Engine, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, order: Float[Array, " m"] | None
) -> tuple[Float[Array, " m"], Float[Array, "m d"]]:
    sight = atoms.sight(order)
    log_norm, mean, c = _softmax(engine, logit, x, atoms, sight, True)
    assert mean is not None
    # Who sees nobody has no average: it is zero, not the centre.
    return log_norm, mean + (c[None] if sight is None else jnp.where(jnp.isfinite(log_norm)[:, None], c[None], 0))


def _softmax(
    engine: Engine, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, sight: Sight | None, with_mean: bool
) -> tuple[Float[Array, " m"], Float[Array, "m d"] | None, Float[Array, " d"]]:
    """`log Z(x)`, the average less c, and c; a squared distance from differences where the engine can."""
    gap = logit.differences
    if gap is None or not isinstance(engine, Tiled):
        q, k, b, a, c = rows(engine, logit, x, atoms)
        log_norm, mean = engine.softmax(q, k, b, sight, with_mean)
        return log_norm + a, mean, c
    c = engine.centre(atoms.points)
    q, k = gap.rows(x, atoms.points, c)
    return *engine.softmax(q, k, atoms.log_weights, sight, with_mean, gap.sharpness, atoms.points - c[None]), c


def log_integral(logit: Logit, x: Float[Array, "m d"], atoms: Atoms, sums: Engine | None = None) -> Float[Array, " m"]:
    """`log integral e^{l(x,y)} dmu(y)`."""
    return _log_integral(fitted(logit, x, atoms, sums), logit, x, atoms)


@one_program
def _log_integral(engine: Engine, logit: Logit, x: Float[Array, "m d"], atoms: Atoms) -> Float[Array, " m"]:
    return _softmax(engine, logit, x, atoms, None, False)[0]


def fitted(
    logit: Logit, x: Float[Array, "m d"], atoms: Atoms, sums: Engine | None = None, order: Float[Array, " m"] | None = None
) -> Engine:
    """The engine that will serve these queries and keys, made for them if it needs to be. A loop asks once, before it begins."""
    check_engine(sums)
    sight = atoms.sight(order)
    if sums is None:
        return automatic(logit, x, atoms, sight)
    return sums.fit(logit, x, atoms, sight)


def accuracy(logit: Logit, x: Float[Array, "m d"], atoms: Atoms, sums: Engine | None) -> dict[str, PyTree]:
    """How good the sums at these queries are, under a mask the tokens themselves: a bound on the round-off of logits, and the figures of
    an engine that is not exact up to round-off."""
    digits = round_off(logit, x, atoms, sums)
    if sums is None:
        return digits
    q, k, b, _, _ = rows(sums, logit, x, atoms)
    return digits | sums.report(q, k, b, atoms.sight(atoms.order))


def pointwise_average(
    kernel: Callable,
    logit: Logit,
    x: Float[Array, "m d"],
    atoms: Atoms,
    sums: Engine | None = None,
    order: Float[Array, " m"] | None = None,
) -> Float[Array, "m d"]:
    """`integral kernel(l(x,y)) y dmu(y)` for a named function of `(logits, row offset)`, applied to `logits + offset`."""
    return _pointwise_average(choose(len(x), len(atoms.points), sums), kernel, logit, x, atoms, order)


@one_program
def _pointwise_average(
    engine: Engine, kernel: Callable, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, order: Float[Array, " m"] | None
) -> Float[Array, "m d"]:
    masses, sight, gap = jnp.exp(atoms.log_weights), atoms.sight(order), logit.differences
    if gap is not None and isinstance(engine, Tiled):
        q, k = gap.rows(x, atoms.points, _centre(atoms))
        none = jnp.zeros_like(masses), jnp.zeros(len(x), x.dtype)
        return engine.pointwise(kernel, q, k, none[0], masses, atoms.points, none[1], sight, gap.sharpness)
    q, b, a, k = logit.centred(x, atoms.points, _centre(atoms))
    return engine.pointwise(kernel, q, k, b, masses, atoms.points, a, sight)


def nearest_average(
    logit: Logit, x: Float[Array, "m d"], atoms: Atoms, sums: Engine | None = None, order: Float[Array, " m"] | None = None
) -> Float[Array, "m d"]:
    """The average of y over the keys of largest logit: the limit of softmax at zero temperature. Keys tie up to round-off."""
    return _nearest_average(choose(len(x), len(atoms.points), sums), logit, x, atoms, order)


@one_program
def _nearest_average(
    engine: Engine, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, order: Float[Array, " m"] | None
) -> Float[Array, "m d"]:
    c, sight, masses = _middle(atoms), atoms.sight(order), jnp.exp(atoms.log_weights)
    ones_and_points = jnp.concatenate([jnp.ones((len(masses), 1), masses.dtype), atoms.points - c[None]], axis=1)
    gap = logit.differences
    if gap is not None and isinstance(engine, Tiled):
        q, k = gap.rows(x, atoms.points, c)
        some = jnp.where(masses > 0, 0, -jnp.inf)
        row = _nearly_nearest(q, gap.sharpness, engine.largest(q, k, some, sight, gap.sharpness))
        total = engine.pointwise(at_least, q, k, some, masses, ones_and_points, row, sight, gap.sharpness)
    else:
        q, k, b = _with_mass(logit, x, atoms)
        row = engine.largest(q, k, b, sight)
        total = engine.pointwise(at_least, *_lifted(q, k, b), masses, ones_and_points, _lowered(row), sight)
    some = total[:, :1] > 0
    return jnp.where(some, total[:, 1:] / jnp.where(some, total[:, :1], 1) + c[None], 0)


@one_program
def visible_logits(logit: Logit, x: Float[Array, "m d"], atoms: Atoms, order: Float[Array, " m"] | None = None) -> Float[Array, "m n"]:
    """The matrix of logits, dense; minus infinity for keys that are not seen."""
    logits, sight = logit(x, atoms.points), atoms.sight(order)
    if sight is None:
        return logits
    seen = sight.apply(logits)
    return jnp.where(seen > lowest(seen.dtype) / 2, seen, -jnp.inf)


@one_program
def top_keys(logit: Logit, x: Float[Array, "m d"], atoms: Atoms, order: Float[Array, " m"] | None = None) -> Float[Array, "m n"]:
    """1 where the key is among those of largest logit, dense."""
    sight, gap = atoms.sight(order), logit.differences
    massive = jnp.isfinite(atoms.log_weights)[None]
    if gap is not None:
        q, k = gap.rows(x, atoms.points, _middle(atoms))
        logits = jnp.where(massive, -0.5 * gap.sharpness * squares(q.T, k.T), lowest(q.dtype))
        seen = logits if sight is None else sight.apply(logits)
        return at_least(seen, _nearly_nearest(q, gap.sharpness, jnp.max(seen, axis=1))[:, None])
    rows = _with_mass(logit, x, atoms)
    plain, lifted = (
        logits if sight is None else sight.apply(logits) for logits in (q @ k.T + b[None] for q, k, b in (rows, _lifted(*rows)))
    )
    return at_least(lifted, _lowered(jnp.max(plain, axis=1))[:, None])


def at_least(logits: Float[Array, "m n"], row: Float[Array, "m 1"]) -> Float[Array, "m n"]:
    """1 where the logit reaches the row's threshold."""
    return (logits >= row).astype(logits.dtype)


def _lifted(q: Float[Array, "m d"], k: Float[Array, "n d"], b: Float[Array, " n"]) -> tuple[Array, Array, Array]:
    """Rows with logits larger by their round-off, `c u (|q_i||k_j| + |b_j|)`: as one more coordinate, so that each pair has its own."""
    slack = _ROUNDINGS * (q.shape[1] + 1) * jnp.finfo(q.dtype).eps
    lengths = [jnp.linalg.norm(rows, axis=1, keepdims=True) for rows in jax.lax.stop_gradient((q, k))]
    return (
        jnp.concatenate([q, slack * lengths[0]], axis=1),
        jnp.concatenate([k, lengths[1]], axis=1),
        b + slack * jnp.abs(b),
    )


def _lowered(top: Float[Array, " m"]) -> Float[Array, " m"]:
    """The largest logit less its last digits."""
    return jax.lax.stop_gradient(top - _ROUNDINGS * jnp.finfo(top.dtype).eps * jnp.abs(top))


def _nearly_nearest(q: Float[Array, "m p"], sharpness: Float[Array, ""], top: Float[Array, " m"]) -> Float[Array, " m"]:
    """The largest of the logits `-s/2 r^2` less its round-off: r is known up to roundings of itself and of the rows."""
    r = jnp.sqrt(jnp.maximum(-2 * top / sharpness, 0))
    longer = r + _ROUNDINGS * jnp.finfo(q.dtype).eps * (r + jnp.linalg.norm(q, axis=1))
    return jax.lax.stop_gradient(-0.5 * sharpness * longer**2)


def _centre(atoms: Atoms) -> Float[Array, " d"]:
    return jax.lax.stop_gradient(jnp.mean(atoms.points, axis=0))


def _middle(atoms: Atoms) -> Float[Array, " d"]:
    """The median of every coordinate: where ties count, a key far away must not cost the others their digits."""
    return jax.lax.stop_gradient(jnp.median(atoms.points, axis=0))


def _with_mass(logit: Logit, x: Float[Array, "m d"], atoms: Atoms) -> tuple[Array, Array, Array]:
    """Queries, keys and biases for a maximum over the keys that have mass."""
    q, b, _, k = logit.centred(x, atoms.points, _middle(atoms))
    return q, k, jnp.where(jnp.isfinite(atoms.log_weights), b, lowest(b.dtype))
