"""Logits of learned matrices: a scalar product or a squared distance of `Q x` and `K y`."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._types import ArrayLike, Scalar
from attnflow.numerics.arrays import Numbers, array, floats, known, on_host, positive
from attnflow.numerics.linalg import is_psd
from attnflow.numerics.rows import array_namespace, dot, times
from attnflow.sums.logits.logit import Logit, RowsAndTerms
from attnflow.sums.logits.quadratic import FEW, Gap, Quadratic


class Factored(Logit):
    r"""$s \langle Q x + a, K y + b\rangle$, or `squared` $-\frac{s}{2} |Q x - K y|^2$, with the `scale` $s$, for heads of dimension
    $p < d$: rows are `[n, p]`, and nothing of size $d \times d$ is formed.

    `query` and `key` are `[p, d]`; a `key` of `None` means $K = Q$, which makes the mixed term positive semidefinite.
    """

    query: Float[Array, "p d"]
    key: Float[Array, "p d"] | None
    query_bias: Float[Array, " p"] | None
    key_bias: Float[Array, " p"] | None
    scale: Float[Array, ""]
    squared: bool = eqx.field(static=True, default=False)

    @property
    def psd(self) -> bool:
        return self.key is None

    @property
    def dim(self) -> int:
        return self.query.shape[-1]

    @property
    def A(self) -> Float[Array, "d d"]:
        r"""The matrix $s K^\top Q$ of the mixed term."""
        return self.form.A

    @property
    def form(self) -> Quadratic:
        Q, K, s = self.query, self._key, self.scale
        if self.squared:
            P, R = s * K.T @ K, s * Q.T @ Q
            return Quadratic(s * K.T @ Q, P, R, psd=self.psd, gap=Gap(s, Q, self.key), squared=True)
        a, b = self.query_bias, self.key_bias
        return Quadratic(
            s * K.T @ Q,
            p=None if a is None else s * K.T @ a,
            r=None if b is None else s * Q.T @ b,
            constant=None if a is None or b is None else s * (a @ b),
            psd=self.psd,
        )

    @property
    def differences(self) -> Gap | None:
        return Gap(self.scale, self.query, self.key) if self.squared and len(self.query) <= FEW else None

    @property
    def _key(self) -> Float[Numbers, "p d"]:
        return self.query if self.key is None else self.key

    def queries(self, x: Float[Numbers, "n d"], order: Float[Numbers, " n"] | None, c: Float[Numbers, " d"]) -> RowsAndTerms:
        r"""$q = s (Q x + a)$ and $\langle q, K c + b\rangle$; squared $q = s u$ and $-\frac{s}{2} |u|^2$ with $u = Q x - K c$."""
        if self.squared:
            # For Q = K the center cancels before anything is rounded.
            u = times(x - c[None], self.query) + ((self.query - self._key) @ c)[None]
            return self.scale * u, -0.5 * self.scale * dot(u, u)
        q = times(x, self.query)
        q = self.scale * (q if self.query_bias is None else q + self.query_bias[None])
        shift = self._key @ c
        return q, q @ (shift if self.key_bias is None else shift + self.key_bias)

    def keys(self, y: Float[Numbers, "n d"], order: Float[Numbers, " n"] | None, c: Float[Numbers, " d"]) -> RowsAndTerms:
        r"""$k = K (y - c)$ and 0; squared $-\frac{s}{2} |k|^2$."""
        k = times(y - c[None], self._key)
        return k, -0.5 * self.scale * dot(k, k) if self.squared else array_namespace(k).zeros(len(k), k.dtype)

    def scaled(self, factor: Float[Array, ""]) -> "Factored":
        return dataclasses.replace(self, scale=factor * self.scale)

    def pulled_back(self, matrix: Float[Array, "d d"] | Float[Array, " d"]) -> "Factored":
        query, key = (None if M is None else M @ matrix if matrix.ndim == 2 else M * matrix[None] for M in (self.query, self.key))
        return dataclasses.replace(self, query=query, key=key)

    def mixed(self) -> "Factored":
        return Factored(self.query, self.key, None, None, self.scale, self.psd)

    def swapped(self) -> "Factored":
        return self if self.key is None else Factored(self.key, self.query, None, None, self.scale)


def dot_product(
    query: ArrayLike,
    key: ArrayLike,
    temperature: Scalar = 1.0,
    *,
    query_bias: ArrayLike | None = None,
    key_bias: ArrayLike | None = None,
) -> Quadratic | Factored:
    r"""$\langle Q x + a, K y + b\rangle / T$ at the `temperature` $T$, with the biases $a$ and $b$ of trained models, zero if not given.

    $A = K^\top Q / T$, $p = K^\top a / T$, $r = Q^\top b / T$, the constant $\langle a, b\rangle / T$, $P = R = 0$.

    **Arguments:** `query` and `key` are `[p, d]`, `query_bias` and `key_bias` `[p]`. For $p < d$, $d > 3$, the matrices are kept as they
    are, and $A$ is formed only where it is needed.
    """
    Q, K, T = matrices(query, key, temperature)
    a, b = bias_for("query_bias", query_bias, Q), bias_for("key_bias", key_bias, K)
    if _is_low_rank(Q):
        return Factored(Q, None if _same(query, key, Q, K) else K, a, b, on_host(lambda T: 1 / T, T))
    A = on_host(lambda K, Q, T: K.T @ Q / T, K, Q, T)
    return Quadratic(
        A,
        p=None if a is None else on_host(lambda K, a, T: K.T @ a / T, K, a, T),
        r=None if b is None else on_host(lambda Q, b, T: Q.T @ b / T, Q, b, T),
        constant=None if a is None or b is None else on_host(lambda a, b, T: a @ b / T, a, b, T),
        psd=query is key or is_psd(A),
        gap=_gap(True, Q, Q, on_host(lambda T: 1 / T, T)) if query is key else None,
    )


def squared_distance(query: ArrayLike, key: ArrayLike, temperature: Scalar = 1.0) -> Quadratic | Factored:
    r"""$-|Q x - K y|^2 / T$ at the `temperature` $T$: $A = 2 K^\top Q / T$, $P = 2 K^\top K / T$, $R = 2 Q^\top Q / T$."""
    Q, K, T = matrices(query, key, temperature)
    if _is_low_rank(Q):
        return Factored(Q, None if _same(query, key, Q, K) else K, None, None, on_host(lambda T: 2 / T, T), squared=True)
    A, P, R = on_host(lambda K, Q, T: (2 * K.T @ Q / T, 2 * K.T @ K / T, 2 * Q.T @ Q / T), K, Q, T)
    return Quadratic(A, P, R, psd=query is key or is_psd(A), gap=_gap(query is key, Q, K, on_host(lambda T: 2 / T, T)), squared=True)


def _gap(same: bool, Q: Array, K: Array, sharpness: Array) -> Gap:
    """The squared distance between `Q x` and `K y`, in its simplest form if the matrices are known."""
    same = same or _same(None, 0, Q, K)
    if not (same and known(Q) and Q.shape[0] == Q.shape[1]):
        return Gap(sharpness, Q, None if same else K)
    host = np.asarray(Q)
    if not np.array_equal(host, host[0, 0] * np.eye(len(host), dtype=host.dtype)):
        return Gap(sharpness, Q)
    return Gap(on_host(lambda s, q: s * q * q, sharpness, array(host[0, 0])))


def _is_low_rank(Q: Array) -> bool:
    """Whether to keep the factors: rows are shorter than tokens, and there are too many dimensions for fast sums of tokens themselves."""
    return Q.shape[0] < Q.shape[1] and Q.shape[1] > FEW


def _same(query: object, key: object, Q: Array, K: Array) -> bool:
    return query is key or (known(Q, K) and np.array_equal(Q, K))


def matrices(query: ArrayLike, key: ArrayLike, temperature: Scalar) -> tuple[Array, Array, Array]:
    """The matrices and the temperature that a user gives, as arrays of one precision."""
    Q, K, T = floats("query", query, "p d"), floats("key", key, "p d"), positive("temperature", temperature)
    if Q.shape != K.shape:
        raise ValueError(f"query and key must have the same shape [p, d], got {list(Q.shape)} and {list(K.shape)}")
    dtype = jnp.result_type(Q, K)
    return array(Q, dtype), array(K, dtype), array(T, dtype)


def bias_for(name: str, value: ArrayLike | None, matrix: Array) -> Array | None:
    """The bias that a user gives for the rows of a matrix."""
    if value is None:
        return None
    bias = array(floats(name, value, "p"), matrix.dtype)
    if len(bias) != len(matrix):
        raise ValueError(f"{name} must have one entry per row of query and key, {len(matrix)}, got {len(bias)}")
    return bias
