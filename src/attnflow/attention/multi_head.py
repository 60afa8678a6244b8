r"""Ordinary multi-head attention, by the weights of its linear layers: heads of one shape, stacked and evaluated as one batch."""

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from attnflow import _check as check
from attnflow.attention.law import Attention, Law
from attnflow.attention.normalizations.base import Normalization
from attnflow.attention.stacked import Stacked
from attnflow.measures import Affine, FlowingMeasure, Velocity
from attnflow.measures.field import check_at
from attnflow.measures.velocity import query_order, total
from attnflow.numerics.arrays import array, cast, floats, known, on_host, one_program, positive, rows
from attnflow.sums import Logit, Mask, Request, dot_product, request, warn_of_round_off
from attnflow.sums.engines.choose import choose
from attnflow.sums.logits.factored import Factored
from attnflow.sums.logits.quadratic import FEW
from attnflow.sums.logits.rotary import rotary as rotary_logit

# Up to this many pairs in all heads together they are one batch, which takes down to half the time of one head after the other; at ten
# times that it takes up to four times as long, because XLA multiplies stacks of matrices slowly on a CPU.
AT_ONCE = 2**15


def multi_head(
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    heads: int,
    *,
    query_bias: Any = None,
    key_bias: Any = None,
    value_bias: Any = None,
    out_bias: Any = None,
    key_heads: int | None = None,
    temperature: Any = None,
    rotary: Any = None,
    interleaved: bool = False,
    normalize: Normalization | None = None,
    mask: Mask | None = None,
) -> "Heads":
    r"""The attention of a transformer, by the weights of its linear layers $x \mapsto W x + b$: with $H$ `heads`, whose parts of the four
    layers are $Q_h, K_h, V_h$ (rows) and $O_h$ (columns), the **sum**

    $$\Gamma_\mu(x) = \sum_{h=1}^{H} O_h \int k_h(x, y) \left(V_h y + b^V_h\right) d\mu(y) + b^O, \qquad
    \ell_h(x, y) = \langle Q_h x + b^Q_h,\, K_h y + b^K_h \rangle / T.$$

    **Arguments:**

    - `query`, `key`: `[H p, d]`, `value`: `[H e, d]`, `out`: `[d, H e]`, as `weight` of `torch.nn.Linear` has them. Those of
      `torch.nn.MultiheadAttention` are `query, key, value = in_proj_weight.reshape(3, d, d)`, and `in_proj_bias.reshape(3, d)`.
    - `query_bias`, `key_bias` `[H p]`, `value_bias` `[H e]`, `out_bias` `[d]`: zero if not given.
    - `key_heads`: the number $G$ of heads of keys and values, if it is less than $H$: `key` is `[G p, d]`, `value` `[G e, d]`, and each of
      them serves $H / G$ successive heads.
    - `temperature`: $T$, by default $\sqrt p$.
    - `rotary`: the frequencies `[r]` by which positions turn queries and keys, as in `af.rotary`; `interleaved` says that pairs are
      coordinates $(2i, 2i + 1)$, by default $(i, i + r)$.
    - `normalize` and `mask`: as in `Attention`, the same for all heads.
    """
    count = check.count("heads", heads)
    groups = count if key_heads is None else check.count("key_heads", key_heads)
    if count % groups:
        raise ValueError(f"key_heads must divide heads, {count}, got {groups}")
    check.flag("interleaved", interleaved)
    if interleaved and rotary is None:
        raise ValueError("interleaved says how rotary positions pair coordinates, got no rotary; give its frequencies")
    Q, K, V = (floats(name, found, "rows d") for name, found in (("query", query), ("key", key), ("value", value)))
    U, d = floats("out", out, "d columns"), Q.shape[1]
    p, e = len(Q) // count, len(V) // groups
    cure = "; give key_heads, how many heads the keys have" if key_heads is None and len(K) != len(Q) else ""
    _shaped("query", Q, (count * p, d), f"rows for each of {count} heads")
    _shaped("key", K, (groups * p, d), f"{p} rows for each of {groups} heads{cure}")
    _shaped("value", V, (groups * e, d), f"rows for each of {groups} heads")
    _shaped("out", U, (d, count * e), f"{e} columns for each of {count} heads")
    a, b = _bias("query_bias", query_bias, count * p), _bias("key_bias", key_bias, groups * p)
    c, shift = _bias("value_bias", value_bias, groups * e), _bias("out_bias", out_bias, d)
    T = array(np.sqrt(p), Q.dtype) if temperature is None else positive("temperature", temperature)
    dtype = jnp.result_type(*(found for found in (Q, K, V, U, a, b, c, shift) if found is not None))
    numbers: Any = (None if found is None else array(found, dtype) for found in (Q, K, V, U, T, a, b, c, shift))
    Q, K, V, U, T, a, b, c, shift = numbers
    numbers = (
        None if found is None else on_host(lambda found, g=g: found.reshape(g, -1, *found.shape[1:]), found)
        for found, g in ((Q, count), (K, groups), (V, groups), (a, count), (b, groups), (c, groups))
    )
    Q, K, V, a, b, c = numbers
    U = on_host(lambda U: U.reshape(d, count, e).transpose(1, 0, 2), U)
    turned = None if rotary is None else {"frequencies": floats("rotary", rotary, "r"), "interleaved": interleaved}
    if turned is not None and 2 * len(turned["frequencies"]) > p:
        raise ValueError(f"rotary [r] turns 2 r of the {p} coordinates of a head, got r = {len(turned['frequencies'])}")
    return Heads(_laws(_logit(Q, K, a, b, T, turned, key is query), U, V, c, normalize, mask), shift)


class Heads(Law):
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
        return jax.tree.map(lambda leaf: _part(leaf, h * len(leaf) // len(self)), self.laws)

    def at(self, mu: FlowingMeasure, t: Any = 0.0, sums: Request | None = None) -> Velocity:
        check_at(mu, t, sums)
        law = self._fitted(mu, sums)
        if known(self, mu) and request(sums).by_value(mu.dim, mu.pairs):
            # Engines that are made from values are made for each head.
            heads = [law.head(h).at(mu, t, sums) for h in range(len(law))]
            return total(heads if law.out_bias is None else [*heads, _constant(law.out_bias)])
        return _velocity(law, mu, sums)

    def weights(self, x: Float[Array, "m d"], mu: Any, order: Float[Array, " m"] | None = None) -> Float[Array, "heads m n"]:
        """One attention matrix for each head."""
        check.measure("mu", mu, FlowingMeasure, "Particles or a Grid")
        x = rows("x", x, mu.dim).astype(mu.dtype)
        return _weights(self._fitted(mu, None), x, mu, query_order(order, x))

    def stacked(self) -> "Stacked":
        """The heads as a batch: what a group shares is repeated, what all share is not."""
        count = len(self)
        many, one = eqx.partition(self.laws, lambda leaf: eqx.is_array(leaf) and (len(leaf) > 1 or count == 1))
        many = jax.tree.map(lambda leaf: leaf if len(leaf) == count else jnp.repeat(leaf, count // len(leaf), axis=0), many)
        return Stacked(many, jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, one), count)

    def _fitted(self, mu: FlowingMeasure, sums: Request | None) -> "Heads":
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


class AllHeads(Velocity):
    """The sum of the velocities of stacked heads; the worst of their figures stands in the report."""

    heads: Stacked
    out_bias: Float[Array, " d"] | None
    sums: Request | None
    dim: int = eqx.field(static=True)
    keys: int = eqx.field(static=True)
    axis: Any = eqx.field(static=True)

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        x, order = rows("x", x, self.dim), query_order(order, x)
        if self.axis is not None and order is not None:
            self.axis.check(order)
        return _moved(self, x, order)

    def at_once(self, queries: int) -> bool:
        """Whether the sums over so many queries are evaluated for all heads at once."""
        return _at_once(self.heads.count, queries * self.keys, self.sums)

    @property
    def report(self) -> dict[str, PyTree]:
        return _worst(self)

    @property
    def engines(self) -> tuple[Any, ...]:
        return self.heads.first.engines


def _at_once(heads: int, pairs: int, sums: Request | None) -> bool:
    """Whether so many heads with so many pairs each are stacked: if the engine can be, and one head alone is too small for the machine."""
    return heads * pairs <= AT_ONCE and choose(pairs, 1, sums).stackable


@one_program
def _velocity(law: Heads, mu: FlowingMeasure, sums: Request | None) -> Velocity:
    at_once = _at_once(len(law), mu.pairs, sums)
    heads = law.stacked().made(lambda head: head.at(mu, sums=sums), at_once)
    if isinstance(heads.one, Affine):
        matrix, offset = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), heads.each(lambda v: (v.matrix, v.offset), True))
        return Affine(matrix, offset if law.out_bias is None else offset + law.out_bias)
    return AllHeads(heads, law.out_bias, sums, mu.dim, round(mu.pairs**0.5), mu.order_axis)


@one_program
def _moved(velocity: AllHeads, x: Float[Array, "m d"], order: Float[Array, " m"] | None) -> Float[Array, "m d"]:
    moved = velocity.heads.summed(lambda head: head(x, order), velocity.at_once(len(x)))
    return moved if velocity.out_bias is None else moved + velocity.out_bias[None]


@one_program
def _worst(velocity: AllHeads) -> dict[str, PyTree]:
    """The largest of every figure, and of flags whether all are set."""
    reports = velocity.heads.each(lambda head: head.report, velocity.at_once(velocity.keys))
    return jax.tree.map(lambda figures: jnp.all(figures) if figures.dtype == bool else jnp.max(figures), reports)


@one_program
def _weights(law: Heads, x: Float[Array, "m d"], mu: Any, order: Float[Array, " m"] | None) -> Float[Array, "heads m n"]:
    return law.stacked().each(lambda head: head.weights(x, mu, order), _at_once(len(law), mu.pairs, None))


def _laws(logit: Logit, out: Array, inner: Array, bias: Array | None, normalize: Normalization | None, mask: Mask | None) -> Attention:
    """Stacked heads, from the logits and the factors `out [H, d, e]`, `inner [G, e, d]` and `bias [G, e]` of their values. The first head
    is made as a law of its own, which checks it; then its arrays become those of all."""
    count, d, e = out.shape
    if bias is None and (d <= FEW or e >= d):
        # Of heads as wide as tokens the product is no larger; in few dimensions fast sums average the tokens themselves.
        product = on_host(lambda out, inner: out @ inner.repeat(count // len(inner), axis=0), out, inner)
        return eqx.tree_at(
            _fields("logit", "out"), _leading(Attention(_part(logit, 0), _part(product, 0), normalize, mask)), (logit, product)
        )
    parts = (out, inner) if bias is None else (out, inner, bias)
    laws = _leading(Attention(_part(logit, 0), _part(parts, 0), normalize, mask))
    where = _fields("logit", "out", "inner.matrix", "inner.offset")
    return eqx.tree_at(where, laws, (logit, out, inner, laws.inner.offset if bias is None else bias))


def _fields(*names: str) -> Callable[[Any], tuple]:
    """Where these fields are in a pytree."""
    return lambda tree: tuple(operator.attrgetter(name)(tree) for name in names)


def _leading(tree: Any) -> Any:
    """Every array with a leading axis of one entry; on the host where values are known."""
    return jax.tree.map(lambda leaf: array(np.asarray(leaf)[None]) if known(leaf) else leaf[None], tree)


def _logit(Q: Array, K: Array, a: Array | None, b: Array | None, T: Array, turned: dict | None, same: bool) -> Logit:
    """The logits of all heads, `Q [H, p, d]` and `K [G, p, d]`, in one whose arrays have a leading axis."""
    (count, p, d), groups = Q.shape, len(K)
    if turned is None and (p >= d or d <= FEW):
        heads: list[Any] = []
        for h in range(count):
            (query, query_bias), (key, key_bias) = _part((Q, a), h), _part((K, b), h * groups // count)
            heads.append(dot_product(query, query if same and groups == count else key, T, query_bias=query_bias, key_bias=key_bias))
        # A fact of a batch is one of all its heads.
        if not all(head.psd for head in heads):
            heads = [dataclasses.replace(head, psd=False, gap=None) for head in heads]
        if len({jax.tree.structure(head) for head in heads}) > 1:
            heads = [dataclasses.replace(head, gap=None) for head in heads]
        return jax.tree.map(lambda *leaves: array(np.stack(leaves)) if known(leaves) else jnp.stack(leaves), *heads)
    query, key, query_bias, key_bias = _part((Q, K, a, b), 0)
    if turned is not None:
        one = rotary_logit(query, key, T, query_bias=query_bias, key_bias=key_bias, **turned)
    else:
        same = groups == count and (same or (known(Q, K) and np.array_equal(Q, K)))
        one = Factored(query, None if same else key, query_bias, key_bias, on_host(lambda T: 1 / T, T))  # pyright: ignore[reportCallIssue]
    given = {"query": Q, "key": K, "query_bias": a, "key_bias": b}
    given = {name: found for name, found in given.items() if getattr(one, name) is not None}
    return eqx.tree_at(_fields(*given), _leading(one), tuple(given.values()))


def _part(tree: Any, i: int) -> Any:
    """Entry i of the leading axis of every array; on the host where values are known."""
    return jax.tree.map(lambda leaf: array(np.asarray(leaf)[i]) if known(leaf) else leaf[i], tree)


def _constant(vector: Float[Array, " d"]) -> Affine:
    return Affine(jnp.zeros((len(vector), len(vector)), vector.dtype), vector)


def _shaped(name: str, found: Array, shape: tuple[int, int], what: str) -> None:
    if found.shape != shape or 0 in shape:
        raise ValueError(f"{name} must have shape {list(shape)}, {what}, got {list(found.shape)}")


def _bias(name: str, value: Any, length: int) -> Array | None:
    if value is None:
        return None
    bias = floats(name, value, "rows")
    if len(bias) != length:
        raise ValueError(f"{name} must have {length} entries, one for each row of its matrix, got {len(bias)}")
    return bias
