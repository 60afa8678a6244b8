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
from attnflow.sums.logit import Logit
from attnflow.sums.mask import lowest


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
    q, k, b, a, c = rows(engine, logit, x, atoms)
    log_norm, mean = engine.softmax(q, k, b, sight)
    assert mean is not None
    # Who sees nobody has no average: it is zero, not the centre.
    return log_norm + a, mean + (c[None] if sight is None else jnp.where(jnp.isfinite(log_norm)[:, None], c[None], 0))


def log_integral(logit: Logit, x: Float[Array, "m d"], atoms: Atoms, sums: Engine | None = None) -> Float[Array, " m"]:
    """`log integral e^{l(x,y)} dmu(y)`."""
    return _log_integral(fitted(logit, x, atoms, sums), logit, x, atoms)


@one_program
def _log_integral(engine: Engine, logit: Logit, x: Float[Array, "m d"], atoms: Atoms) -> Float[Array, " m"]:
    q, k, b, a, _ = rows(engine, logit, x, atoms)
    return engine.softmax(q, k, b, with_mean=False)[0] + a


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
    """How good the sums at these queries are, under a mask the tokens themselves: the figures of an engine that is not exact up to
    round-off."""
    if sums is None:
        return {}
    q, k, b, _, _ = rows(sums, logit, x, atoms)
    return sums.report(q, k, b, atoms.sight(atoms.order))


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
    q, b, a, k = logit.centred(x, atoms.points, _centre(atoms))
    return engine.pointwise(kernel, q, k, b, jnp.exp(atoms.log_weights), atoms.points, a, atoms.sight(order))


def nearest_average(
    logit: Logit, x: Float[Array, "m d"], atoms: Atoms, sums: Engine | None = None, order: Float[Array, " m"] | None = None
) -> Float[Array, "m d"]:
    """The average of y over the keys of largest logit: the limit of softmax at zero temperature. Keys tie up to round-off."""
    return _nearest_average(choose(len(x), len(atoms.points), sums), logit, x, atoms, order)


@one_program
def _nearest_average(
    engine: Engine, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, order: Float[Array, " m"] | None
) -> Float[Array, "m d"]:
    c, sight = _centre(atoms), atoms.sight(order)
    q, k, b = _with_mass(logit, x, atoms)
    row = _tie_threshold(q, k, b, engine.largest(q, k, b, sight))
    ones_and_points = jnp.concatenate([jnp.ones((len(k), 1), k.dtype), k], axis=1)
    total = engine.pointwise(at_least, q, k, b, jnp.exp(atoms.log_weights), ones_and_points, row, sight)
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
    q, k, b = _with_mass(logit, x, atoms)
    sight = atoms.sight(order)
    row = _tie_threshold(q, k, b, choose(len(q), len(k)).largest(q, k, b, sight))
    logits = q @ k.T + b[None]
    return at_least(logits if sight is None else sight.apply(logits), row[:, None])


def at_least(logits: Float[Array, "m n"], row: Float[Array, "m 1"]) -> Float[Array, "m n"]:
    """1 where the logit reaches the row's threshold."""
    return (logits >= row).astype(logits.dtype)


def _tie_threshold(q: Float[Array, "m d"], k: Float[Array, "n d"], b: Float[Array, " n"], top: Float[Array, " m"]) -> Float[Array, " m"]:
    """The largest logit less the round-off of a logit: the scalar products of one query with coincident keys may differ by this."""
    size = jnp.linalg.norm(q, axis=1) * jnp.max(jnp.linalg.norm(k, axis=1)) + jnp.max(jnp.abs(jnp.where(jnp.isfinite(b), b, 0)))
    return jax.lax.stop_gradient(top - 4 * q.shape[1] * jnp.finfo(q.dtype).eps * size)


def _centre(atoms: Atoms) -> Float[Array, " d"]:
    return jax.lax.stop_gradient(jnp.mean(atoms.points, axis=0))


def _with_mass(logit: Logit, x: Float[Array, "m d"], atoms: Atoms) -> tuple[Array, Array, Array]:
    """Queries, keys and biases for a maximum over the keys that have mass."""
    q, b, _, k = logit.centred(x, atoms.points, _centre(atoms))
    return q, k, jnp.where(jnp.isfinite(atoms.log_weights), b, -jnp.inf)
