"""Heads of one shape, stacked: one law, whose heads are evaluated as one batch."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import ArrayLike, Scalar
from attnflow.attention.batch import Batch
from attnflow.attention.law import Attention, Law
from attnflow.measures import Affine, FlowingMeasure, Velocity
from attnflow.measures.field import check_at
from attnflow.measures.velocity import query_order, total
from attnflow.numerics.arrays import array, cast, known, one_program, rows
from attnflow.sums import Engine, Request, request, warn_of_round_off
from attnflow.sums.engines.choose import choose

# Up to this many pairs in all heads together they are one batch, which takes down to half the time of one head after the other; at ten
# times that it takes up to four times as long, because XLA multiplies stacks of matrices slowly on a CPU.
AT_ONCE = 2**15


class StackedHeads(Law):
    r"""The sum of heads of one shape and a constant, $\Gamma = \sum_h \Gamma^{(h)} + b$: what `multi_head` makes. `law.head(h)` is one of
    them, `len(law)` their number.

    `laws` has the arrays of an `Attention`, each with a leading axis of $g$ entries, $g$ a divisor of the number of heads: one for each
    head, for each group of heads that share it, or for all. They are evaluated as one batch, or one after the other where an engine cannot
    be stacked or has enough to do with one. `MultiHead` is the mean, of heads of any kind.
    """

    laws: Attention
    out_bias: Float[Array, " d"] | None

    def __len__(self) -> int:
        return len(self.laws.out)

    @property
    def dim(self) -> int:
        """The dimension $d$ of the tokens."""
        return self.laws.out.shape[1]

    def head(self, h: int) -> Attention:
        """The head with number $h$, a law of its own."""
        check.count("h", h, least=0)
        if h >= len(self):
            raise IndexError(f"h must be below {len(self)}, the number of heads, got {h}")
        return jax.tree.map(lambda leaf: entry(leaf, h * len(leaf) // len(self)), self.laws)

    def at(self, mu: FlowingMeasure, t: Scalar = 0.0, sums: Request | None = None) -> Velocity:
        """The velocity of `mu`, the sum over the heads."""
        check_at(mu, t, sums)
        law = self._fitted(mu, sums)
        if known(self, mu) and request(sums).by_value(mu.dim, mu.pairs):
            # Engines that are made from values are made for each head.
            heads = [law.head(h).at(mu, t, sums) for h in range(len(law))]
            bias = law.out_bias
            return total(heads if bias is None else [*heads, Affine(jnp.zeros((len(bias), len(bias)), bias.dtype), bias)])
        return _velocity(law, mu, sums)

    def weights(self, x: ArrayLike, mu: FlowingMeasure, order: ArrayLike | None = None) -> Float[Array, "heads m n"]:
        """One attention matrix per head."""
        check.measure("mu", mu, FlowingMeasure, "Particles or a Grid")
        queries = rows("x", x, mu.dim).astype(mu.dtype)
        return _weights(self._fitted(mu, None), queries, mu, query_order(order, queries))

    def batch(self) -> Batch:
        """The heads as a batch: what a group shares is repeated, what all share is not."""
        count = len(self)
        many, one = eqx.partition(self.laws, lambda leaf: eqx.is_array(leaf) and (len(leaf) > 1 or count == 1))
        many = jax.tree.map(lambda leaf: leaf if len(leaf) == count else jnp.repeat(leaf, count // len(leaf), axis=0), many)
        return Batch(many, jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, one), count)

    def _fitted(self, mu: FlowingMeasure, sums: Request | None) -> "StackedHeads":
        """These heads in the precision of the measure, refused if the measure cannot carry them; values are looked at here, where they are
        known."""
        if mu.dim != self.dim:
            raise ValueError(f"the law acts on R^{self.dim}, got a measure on R^{mu.dim}")
        law = cast(self, mu.dtype)
        if known(law, mu):
            heads = [law.head(h) for h in range(len(law))]
            atoms = mu.atoms(heads[0].mask, heads[0].logit.positional) if mu.pairs else None
            for head in heads:
                mu.check_law(head)
                if atoms is not None:
                    warn_of_round_off(head.logit, atoms, sums)
        return law


class StackedVelocity(Velocity):
    """The sum of the velocities of stacked heads; the worst of their figures stands in the report."""

    heads: Batch
    out_bias: Float[Array, " d"] | None
    sums: Request | None
    dim: int = eqx.field(static=True)
    keys: int = eqx.field(static=True)
    axis: Any = eqx.field(static=True)

    def __call__(self, x: ArrayLike, order: ArrayLike | None = None) -> Float[Array, "m d"]:
        queries = rows("x", x, self.dim)
        places = query_order(order, queries)
        if self.axis is not None and places is not None:
            self.axis.check(places)
        return _moved(self, queries, places)

    def at_once(self, queries: int) -> bool:
        """Whether the sums over so many queries are evaluated for all heads at once."""
        return _at_once(self.heads.count, queries * self.keys, self.sums)

    @property
    def report(self) -> dict[str, Any]:
        """The largest of every figure, and of flags whether all are set."""
        return _worst(self)

    @property
    def engines(self) -> tuple[Engine, ...]:
        """Those of the first head."""
        return self.heads.first.engines


def entry(tree: Any, i: int) -> Any:
    """Entry i of the leading axis of every array; on the host where values are known, because a slice by JAX would be compiled."""
    return jax.tree.map(lambda leaf: array(np.asarray(leaf)[i]) if known(leaf) else leaf[i], tree)


def _at_once(heads: int, pairs: int, sums: Request | None) -> bool:
    """Whether so many heads with so many pairs each are stacked: if the engine can be, and one head alone is too small for the machine."""
    return heads * pairs <= AT_ONCE and choose(pairs, 1, sums).stackable


@one_program
def _velocity(law: StackedHeads, mu: FlowingMeasure, sums: Request | None) -> Velocity:
    heads = law.batch().map(lambda head: head.at(mu, sums=sums), _at_once(len(law), mu.pairs, sums))
    if isinstance(heads.one, Affine):
        matrix, offset = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), heads.each(lambda v: (v.matrix, v.offset), True))
        return Affine(matrix, offset if law.out_bias is None else offset + law.out_bias)
    return StackedVelocity(heads, law.out_bias, sums, mu.dim, round(mu.pairs**0.5), mu.order_axis)


@one_program
def _moved(velocity: StackedVelocity, x: Float[Array, "m d"], order: Float[Array, " m"] | None) -> Float[Array, "m d"]:
    moved = velocity.heads.summed(lambda head: head(x, order), velocity.at_once(len(x)))
    return moved if velocity.out_bias is None else moved + velocity.out_bias[None]


@one_program
def _worst(velocity: StackedVelocity) -> dict[str, Any]:
    reports = velocity.heads.each(lambda head: head.report, velocity.at_once(velocity.keys))
    return jax.tree.map(lambda figures: jnp.all(figures) if figures.dtype == bool else jnp.max(figures), reports)


@one_program
def _weights(law: StackedHeads, x: Float[Array, "m d"], mu: FlowingMeasure, order: Float[Array, " m"] | None) -> Float[Array, "heads m n"]:
    return law.batch().each(lambda head: head.weights(x, mu, order), _at_once(len(law), mu.pairs, None))
