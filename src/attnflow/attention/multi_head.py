"""Ordinary multi-head attention, by the weights of its linear layers."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import ArrayLike, Scalar
from attnflow.attention.law import Attention
from attnflow.attention.normalizations.base import Normalization
from attnflow.attention.stacked import StackedHeads, entry
from attnflow.numerics.arrays import array, floats, known, on_host, positive
from attnflow.sums import Logit, Mask, dot_product
from attnflow.sums.logits.factored import Factored
from attnflow.sums.logits.quadratic import FEW
from attnflow.sums.logits.rotary import rotary as rotary_logit


def multi_head(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    out: ArrayLike,
    heads: int,
    *,
    query_bias: ArrayLike | None = None,
    key_bias: ArrayLike | None = None,
    value_bias: ArrayLike | None = None,
    out_bias: ArrayLike | None = None,
    key_heads: int | None = None,
    temperature: Scalar | None = None,
    rotary: ArrayLike | None = None,
    interleaved: bool = False,
    normalize: Normalization | None = None,
    mask: Mask | None = None,
) -> StackedHeads:
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
    frequencies = None if rotary is None else floats("rotary", rotary, "r")
    if frequencies is not None and 2 * len(frequencies) > p:
        raise ValueError(f"rotary [r] turns 2 r of the {p} coordinates of a head, got r = {len(frequencies)}")
    dtype = jnp.result_type(*(found for found in (Q, K, V, U, a, b, c, shift) if found is not None))

    def split(found: Array | None, parts: int) -> Any:
        """The rows of each head."""
        return None if found is None else on_host(lambda rows: rows.reshape(parts, -1, *rows.shape[1:]), array(found, dtype))

    split_out = on_host(lambda U: U.reshape(d, count, e).transpose(1, 0, 2), array(U, dtype))
    queries, keys = (split(Q, count), split(a, count)), (split(K, groups), split(b, groups))
    logit = _logits(*queries, *keys, array(T, dtype), frequencies, interleaved, key is query)
    laws = _laws(logit, split_out, split(V, groups), split(c, groups), normalize, mask)
    return StackedHeads(laws, None if shift is None else array(shift, dtype))


def _laws(
    logit: Logit,
    out: Float[Array, "H d e"],
    inner: Float[Array, "G e d"],
    bias: Float[Array, "G e"] | None,
    normalize: Normalization | None,
    mask: Mask | None,
) -> Attention:
    """Stacked heads, from the logits and the factors of their values. The first head is made as a law of its own, which checks it; then
    its arrays become those of all."""
    count, d, e = out.shape
    if bias is None and (d <= FEW or e >= d):
        # Of heads as wide as tokens the product is no larger; in few dimensions fast sums average the tokens themselves.
        product = on_host(lambda out, inner: out @ inner.repeat(count // len(inner), axis=0), out, inner)
        laws = _leading(Attention(entry(logit, 0), entry(product, 0), normalize, mask=mask))
        return eqx.tree_at(lambda law: (law.logit, law.out), laws, (logit, product))
    value = entry((out, inner) if bias is None else (out, inner, bias), 0)
    laws = _leading(Attention(entry(logit, 0), value, normalize, mask=mask))
    parts = (logit, out, inner, laws.inner.offset if bias is None else bias)
    return eqx.tree_at(lambda law: (law.logit, law.out, law.inner.matrix, law.inner.offset), laws, parts)


def _logits(
    Q: Float[Array, "H p d"],
    a: Float[Array, "H p"] | None,
    K: Float[Array, "G p d"],
    b: Float[Array, "G p"] | None,
    T: Float[Array, ""],
    frequencies: Float[Array, " r"] | None,
    interleaved: bool,
    same: bool,
) -> Logit:
    """The logits of all heads in one, whose arrays have a leading axis."""
    (count, p, d), groups = Q.shape, len(K)
    if frequencies is None and (p >= d or d <= FEW):
        return _stacked_quadratics(Q, a, K, b, T, same)
    query, query_bias, key, key_bias = entry((Q, a, K, b), 0)
    if frequencies is not None:
        one = rotary_logit(query, key, T, query_bias=query_bias, key_bias=key_bias, frequencies=frequencies, interleaved=interleaved)
    else:
        same = groups == count and (same or (known(Q, K) and np.array_equal(Q, K)))
        one = Factored(query, None if same else key, query_bias, key_bias, on_host(lambda T: 1 / T, T))  # pyright: ignore[reportCallIssue]
    given = {"query": Q, "key": K, "query_bias": a, "key_bias": b}
    given = {name: found for name, found in given.items() if getattr(one, name) is not None}
    return eqx.tree_at(lambda logit: [getattr(logit, name) for name in given], _leading(one), list(given.values()))


def _stacked_quadratics(Q: Array, a: Array | None, K: Array, b: Array | None, T: Array, same: bool) -> Logit:
    """Dot products of full rank, made one by one. A fact of a batch is one of all its heads."""
    count, groups = len(Q), len(K)
    heads: list[Any] = []
    for h in range(count):
        (query, query_bias), (key, key_bias) = entry((Q, a), h), entry((K, b), h * groups // count)
        heads.append(dot_product(query, query if same and groups == count else key, T, query_bias=query_bias, key_bias=key_bias))
    if not all(head.psd for head in heads):
        heads = [dataclasses.replace(head, psd=False, gap=None) for head in heads]
    if len({jax.tree.structure(head) for head in heads}) > 1:
        heads = [dataclasses.replace(head, gap=None) for head in heads]
    return jax.tree.map(lambda *leaves: array(np.stack(leaves)) if known(leaves) else jnp.stack(leaves), *heads)


def _leading(tree: Any) -> Any:
    """Every array with a leading axis of one entry; on the host where values are known."""
    return jax.tree.map(lambda leaf: array(np.asarray(leaf)[None]) if known(leaf) else leaf[None], tree)


def _shaped(name: str, found: Array, shape: tuple[int, int], what: str) -> None:
    if found.shape != shape or 0 in shape:
        raise ValueError(f"{name} must have shape {list(shape)}, {what}, got {list(found.shape)}")


def _bias(name: str, value: ArrayLike | None, length: int) -> Array | None:
    if value is None:
        return None
    bias = floats(name, value, "rows")
    if len(bias) != length:
        raise ValueError(f"{name} must have {length} entries, one for each row of its matrix, got {len(bias)}")
    return bias
