"""The sum primitive: integrals of functions of the logit against a weighted cloud of keys.

Every function here centres the keys first. The sums do not change, but digits are kept when the cloud is far from the origin.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow.sums.choose import choose
from attnflow.sums.engine import Engine
from attnflow.sums.logit import Logit
from attnflow.sums.reductions import largest, pointwise, softmax


class Atoms(NamedTuple):
    """The keys of a sum: `points [n, d]` with `log_weights [n]`, minus infinity for no mass."""

    points: Float[Array, "n d"]
    log_weights: Float[Array, " n"]


def average(
    logit: Logit, x: Float[Array, "m d"], atoms: Atoms, sums: Engine | None = None
) -> tuple[Float[Array, " m"], Float[Array, "m d"]]:
    """`log Z(x) = log integral e^{l(x,y)} dmu(y)` and the average `integral e^{l(x,y)} y dmu(y) / Z(x)`."""
    c = _centre(atoms)
    q, b, a, k = logit.centred(x, atoms.points, c)
    log_norm, mean = softmax(choose(len(q), len(k), sums), q, k, b + atoms.log_weights, k)
    return log_norm + a, mean + c[None]


def log_integral(logit: Logit, x: Float[Array, "m d"], atoms: Atoms, sums: Engine | None = None) -> Float[Array, " m"]:
    """`log integral e^{l(x,y)} dmu(y)`."""
    q, b, a, k = logit.centred(x, atoms.points, _centre(atoms))
    log_norm, _ = softmax(choose(len(q), len(k), sums), q, k, b + atoms.log_weights, k[:, :0])
    return log_norm + a


def pointwise_average(
    kernel: Callable, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, sums: Engine | None = None
) -> Float[Array, "m d"]:
    """`integral kernel(l(x,y)) y dmu(y)` for a named function of `(logits, row offset)`, applied to `logits + offset`."""
    q, b, a, k = logit.centred(x, atoms.points, _centre(atoms))
    return pointwise(choose(len(q), len(k), sums), kernel, q, k, b, jnp.exp(atoms.log_weights), atoms.points, a)


def nearest_average(logit: Logit, x: Float[Array, "m d"], atoms: Atoms, sums: Engine | None = None) -> Float[Array, "m d"]:
    """The average of y over the keys of largest logit: the limit of softmax at zero temperature. Keys tie up to round-off."""
    c = _centre(atoms)
    q, k, b = _with_mass(logit, x, atoms)
    engine = choose(len(q), len(k), sums)
    row = _tie_threshold(q, k, b, largest(engine, q, k, b))
    ones_and_points = jnp.concatenate([jnp.ones((len(k), 1), k.dtype), k], axis=1)
    total = pointwise(engine, at_least, q, k, b, jnp.exp(atoms.log_weights), ones_and_points, row)
    return total[:, 1:] / total[:, :1] + c[None]


def top_keys(logit: Logit, x: Float[Array, "m d"], atoms: Atoms) -> Float[Array, "m n"]:
    """1 where the key is among those of largest logit, dense."""
    q, k, b = _with_mass(logit, x, atoms)
    row = _tie_threshold(q, k, b, largest(choose(len(q), len(k)), q, k, b))
    return at_least(q @ k.T + b[None], row[:, None])


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
