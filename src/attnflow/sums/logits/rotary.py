"""Rotary positions: queries and keys turned by their place in the sequence (Su et al. 2021, arXiv:2104.09864)."""

import dataclasses

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from attnflow._check import flag
from attnflow._types import ArrayLike, Scalar
from attnflow.numerics.arrays import Numbers, array, floats, on_host, positive
from attnflow.numerics.rows import array_namespace, times
from attnflow.sums.logits.factored import bias_for, matrices
from attnflow.sums.logits.logit import Logit, RowsAndTerms


class Rotary(Logit):
    r"""$s \langle R_\sigma (Q x + a), R_\tau (K y + b)\rangle$ for a query at the place $\sigma$ and a key at $\tau$, where $R_\tau$ turns
    the $i$-th pair of coordinates by the angle $\tau \omega_i$, $\omega$ the `frequencies`: the logit depends on positions through
    $\sigma - \tau$ alone. `rotary` makes one."""

    query: Float[Array, "p d"]
    key: Float[Array, "p d"]
    query_bias: Float[Array, " p"] | None
    key_bias: Float[Array, " p"] | None
    scale: Float[Array, ""]
    frequencies: Float[Array, " r"]
    interleaved: bool = eqx.field(static=True, default=False)

    positional = True
    centers = False

    @property
    def dim(self) -> int:
        return self.query.shape[-1]

    def queries(self, x: Float[Numbers, "n d"], order: Float[Numbers, " n"] | None, c: Float[Numbers, " d"]) -> RowsAndTerms:
        """$q = s R (Q x + a)$. A center would not give a term in $x$ alone, so that there is none."""
        q = self.scale * self._turned(self.query, self.query_bias, x, order)
        return q, array_namespace(q).zeros(len(q), q.dtype)

    def keys(self, y: Float[Numbers, "n d"], order: Float[Numbers, " n"] | None, c: Float[Numbers, " d"]) -> RowsAndTerms:
        """$k = R (K y + b)$."""
        k = self._turned(self.key, self.key_bias, y, order)
        return k, array_namespace(k).zeros(len(k), k.dtype)

    def _turned(
        self, matrix: Float[Numbers, "p d"], bias: Float[Numbers, " p"] | None, x: Float[Numbers, "n d"], order: Float[Numbers, " n"] | None
    ) -> Float[Numbers, "n p"]:
        if order is None:
            raise ValueError("a rotary logit needs the order of the queries, got none; call velocity(x, order)")
        rows, xp = times(x, matrix), array_namespace(x)
        rows = rows if bias is None else rows + bias[None]
        r = len(self.frequencies)
        angle = order[:, None] * self.frequencies[None]
        cos, sin = xp.cos(angle), xp.sin(angle)
        first, second = (rows[:, 0 : 2 * r : 2], rows[:, 1 : 2 * r : 2]) if self.interleaved else (rows[:, :r], rows[:, r : 2 * r])
        turned = (first * cos - second * sin, second * cos + first * sin)
        if self.interleaved:
            return xp.concatenate([xp.stack(turned, axis=-1).reshape(len(rows), 2 * r), rows[:, 2 * r :]], axis=1)
        return xp.concatenate([*turned, rows[:, 2 * r :]], axis=1)

    def scaled(self, factor: Float[Array, ""]) -> "Rotary":
        return dataclasses.replace(self, scale=factor * self.scale)

    def pulled_back(self, matrix: Float[Array, "d d"] | Float[Array, " d"]) -> "Rotary":
        query, key = (M @ matrix if matrix.ndim == 2 else M * matrix[None] for M in (self.query, self.key))
        return dataclasses.replace(self, query=query, key=key)

    def swapped(self) -> "Rotary":
        return dataclasses.replace(self, query=self.key, key=self.query, query_bias=self.key_bias, key_bias=self.query_bias)


def rotary(
    query: ArrayLike,
    key: ArrayLike,
    temperature: Scalar = 1.0,
    *,
    query_bias: ArrayLike | None = None,
    key_bias: ArrayLike | None = None,
    base: Scalar | None = None,
    frequencies: ArrayLike | None = None,
    interleaved: bool = False,
) -> Rotary:
    r"""The scalar product of queries and keys that are rotated by their positions, divided by the `temperature`.

    **Arguments:**

    - `query` and `key`: `[p, d]`, with the biases `query_bias` and `key_bias` `[p]` of trained models.
    - `base`: the frequencies are $\omega_i = \text{base}^{-2i/p}$, $i = 0, \dots, p/2 - 1$; by default 10,000.
    - `frequencies`: `[r]` with $2r \le p$, in place of `base`: the first $2r$ coordinates are rotated, the others are not.
    - `interleaved`: pairs are coordinates $(2i, 2i + 1)$, as in the paper; by default $(i, i + r)$, as trained models have them.
    """
    Q, K, T = matrices(query, key, temperature)
    flag("interleaved", interleaved)
    if base is not None and frequencies is not None:
        raise ValueError("base gives the frequencies, got both; leave one of them out")
    start = array(positive("base", 10_000.0 if base is None else base), Q.dtype)
    if frequencies is None:
        if len(Q) % 2:
            raise ValueError(f"rotary positions turn pairs of coordinates, got heads of odd dimension {len(Q)}; give frequencies")
        omega = on_host(lambda b, e: b**-e, start, array(np.arange(0, len(Q), 2) / len(Q), Q.dtype))
    else:
        omega = array(floats("frequencies", frequencies, "r"), Q.dtype)
    if 2 * len(omega) > len(Q):
        raise ValueError(f"frequencies [r] turn 2 r of the {len(Q)} coordinates of a head, got r = {len(omega)}")
    biases = bias_for("query_bias", query_bias, Q), bias_for("key_bias", key_bias, K)
    return Rotary(Q, K, *biases, on_host(lambda T: 1 / T, T), omega, interleaved)
