"""The two sides of a scaling, and its row and column sums."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow.measures import Particles
from attnflow.numerics.arrays import one_program
from attnflow.sums import Atoms, Logit, Request, log_integral


class Clouds(NamedTuple):
    """The keys of a scaling, and its queries where these are another cloud; both centered."""

    keys: Atoms
    others: Atoms | None = None

    @property
    def queries(self) -> Atoms:
        """The queries, which are the keys unless there are others."""
        return self.keys if self.others is None else self.others


def log_row_sums(logit: Logit, clouds: Clouds, g: Float[Array, " n"], sums: Request | None) -> Float[Array, " m"]:
    """`log integral e^{l(x, y) + g(y)} dnu(y)` at every query x."""
    keys = clouds.keys._replace(log_weights=clouds.keys.log_weights + g)
    return log_integral(logit, clouds.queries.points, keys, sums, clouds.queries.order)


def log_column_sums(logit: Logit, clouds: Clouds, f: Float[Array, " m"], sums: Request | None) -> Float[Array, " n"]:
    """`log integral e^{l(x, y) + f(x)} dmu(x)` at every key y."""
    queries = clouds.queries._replace(log_weights=clouds.queries.log_weights + f)
    return log_integral(logit.swapped(), clouds.keys.points, queries, sums, clouds.keys.order)


def largest_logit(logit: Logit, clouds: Clouds) -> Float[Array, ""]:
    """`max |q| max |k|`, which no mixed term of the logit exceeds."""
    origin = jnp.zeros_like(clouds.keys.points[0])
    queries, _ = logit.queries(clouds.queries.points, clouds.queries.order, origin)
    keys, _ = logit.keys(clouds.keys.points, clouds.keys.order, origin)
    return jnp.max(jnp.linalg.norm(queries, axis=1)) * jnp.max(jnp.linalg.norm(keys, axis=1))


@one_program
def largest(u: Float[Array, " n"], atoms: Atoms) -> Float[Array, ""]:
    """`max |u|` over the tokens that have mass."""
    return jnp.max(jnp.where(jnp.isfinite(atoms.log_weights), jnp.abs(u), 0))


@one_program
def violation(log_sums: Float[Array, " n"], atoms: Atoms) -> Float[Array, ""]:
    """`max |e^{log_sums} - 1|` over the tokens that have mass: the largest violation of a marginal."""
    return largest(jnp.expm1(log_sums), atoms)


@one_program
def integral(u: Float[Array, " n"], atoms: Atoms | Particles) -> Float[Array, ""]:
    """The integral of the values u at tokens with `log_weights`; at tokens without mass u may be anything."""
    return jnp.vdot(jnp.exp(atoms.log_weights), jnp.where(jnp.isfinite(atoms.log_weights), u, 0))
