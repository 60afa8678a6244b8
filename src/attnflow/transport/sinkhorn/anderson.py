"""Anderson's acceleration (1965) of a fixed point iteration on potentials: of the last steps, the mixture whose residuals cancel best.

On a linear iteration this is GMRES; of a nearly decoupled kernel, whose plain iteration takes thousands of steps for a few slow modes, it
finds those modes.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attnflow.sums import Atoms


class History(NamedTuple):
    """The last plain steps and their residuals, overwritten in turn; `count` is how many there have been."""

    steps: Float[Array, "k n"]
    residuals: Float[Array, "k n"]
    count: Int[Array, ""]


def empty(depth: int, like: Float[Array, " n"]) -> History:
    """Room for so many steps."""
    blank = jnp.zeros((depth, len(like)), like.dtype)
    return History(blank, blank, jnp.asarray(0))


def remember(history: History, step: Float[Array, " n"], residual: Float[Array, " n"], forget: Bool[Array, ""]) -> History:
    """The history with one more step; with `forget`, with none."""
    place = history.count % len(history.steps)
    steps, residuals = history.steps.at[place].set(step), history.residuals.at[place].set(residual)
    return History(steps, residuals, jnp.where(forget, 0, history.count + 1))


def mixed(history: History, atoms: Atoms) -> Float[Array, " n"]:
    """`sum_k a_k step_k` with `sum_k a_k = 1` and the least `|sum_k a_k residual_k|` in L2 of the tokens; the last step if none is."""
    depth, dtype = len(history.steps), history.steps.dtype
    used = jnp.arange(depth) < history.count
    massive = jnp.isfinite(atoms.log_weights)[None]
    residuals = jnp.where(massive, history.residuals, 0) * jnp.exp(0.5 * atoms.log_weights)[None]
    gram = residuals @ residuals.T
    size = jnp.sqrt(jnp.diagonal(gram))
    size = jnp.where(used & (size > 0), size, 1)
    gram = jnp.where(used[:, None] & used[None], gram / (size[:, None] * size[None]), 0)
    # Residuals are nearly dependent in the end: a little on the diagonal keeps the system soluble.
    ridge = jnp.where(used, 1e4 * jnp.finfo(dtype).eps, 1)
    shares = jnp.linalg.solve(gram + jnp.diag(ridge), jnp.where(used, 1 / size, 0)) / size
    total = jnp.sum(shares)
    last = history.steps[(history.count - 1) % depth]
    return jnp.where(jnp.isfinite(total) & (total != 0), shares @ history.steps / jnp.where(total == 0, 1, total), last)
