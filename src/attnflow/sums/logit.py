"""Every attention logit of the literature is one quadratic form."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._arrays import floats, positive
from attnflow._linalg import is_psd


class Logit(eqx.Module):
    """`l(x, y) = <y, A x> - 1/2 <y, P y> - 1/2 <x, R x>` for a query x and a key y; P and R are symmetric, `None` is zero.

    Softmax and hardmax do not see R; Sinkhorn sees neither P nor R. `psd` is a static fact found at construction: A is symmetric
    positive semidefinite, which lets Sinkhorn use its fast symmetric update.
    """

    A: Float[Array, "d d"]
    P: Float[Array, "d d"] | None = None
    R: Float[Array, "d d"] | None = None
    psd: bool = eqx.field(static=True, default=False)

    @property
    def dim(self) -> int:
        """The dimension d of the tokens."""
        return self.A.shape[1]

    def __call__(self, x: Float[Array, "m d"], y: Float[Array, "n d"]) -> Float[Array, "m n"]:
        """The matrix of logits `l(x_i, y_j)`."""
        queries, bias, rest, keys = self.centred(x, y, jnp.mean(y, axis=0))
        return queries @ keys.T + bias[None, :] + rest[:, None]

    def centred(
        self, x: Float[Array, "m d"], y: Float[Array, "n d"], c: Float[Array, " d"]
    ) -> tuple[Float[Array, "m d"], Float[Array, " n"], Float[Array, " m"], Float[Array, "n d"]]:
        """q, b, a, k with `l(x_i, y_j) = <q_i, k_j> + b_j + a_i` and `k = y - c`.

        With x = c + u and y = c + k,
        `q = A u + (A - P) c`, `b = -1/2 <k, P k>`, `a = <u, (A^T - R) c> + 1/2 <c, (2A - P - R) c> - 1/2 <u, R u>`.
        For a squared distance with Q = K the terms in c vanish identically, so a cloud far from the origin loses no digits.
        """
        A, P, R = self.A, self.P, self.R
        u, k = x - c[None], y - c[None]
        from_key = A if P is None else A - P
        from_query = A.T if R is None else A.T - R
        queries = u @ A.T + (from_key @ c)[None]
        rest = u @ (from_query @ c) + 0.5 * jnp.vdot(c, (from_key + from_query.T) @ c)
        if R is not None:
            rest = rest - 0.5 * jnp.sum((u @ R) * u, axis=1)
        bias = jnp.zeros(len(k), k.dtype) if P is None else -0.5 * jnp.sum((k @ P) * k, axis=1)
        return queries, bias, rest, k


def dot_product(query: Any, key: Any, temperature: Any = 1.0) -> Logit:
    """`<Q x, K y> / temperature`: `A = K^T Q / temperature`, `P = R = 0`. `query` and `key` are `[p, d]`."""
    Q, K, T = _matrices(query, key, temperature)
    A = K.T @ Q / T
    return Logit(A, psd=query is key or is_psd(A))


def squared_distance(query: Any, key: Any, temperature: Any = 1.0) -> Logit:
    """`-|Q x - K y|^2 / temperature`: `A = 2 K^T Q / temperature`, `P = 2 K^T K / temperature`, `R = 2 Q^T Q / temperature`."""
    Q, K, T = _matrices(query, key, temperature)
    A = 2 * K.T @ Q / T
    return Logit(A, 2 * K.T @ K / T, 2 * Q.T @ Q / T, psd=query is key or is_psd(A))


def _matrices(query: Any, key: Any, temperature: Any) -> tuple[Array, Array, Array]:
    Q, K, T = floats("query", query, "p d"), floats("key", key, "p d"), positive("temperature", temperature)
    if Q.shape != K.shape:
        raise ValueError(f"query and key must have the same shape [p, d], got {list(Q.shape)} and {list(K.shape)}")
    dtype = jnp.result_type(Q, K)
    return Q.astype(dtype), K.astype(dtype), T.astype(dtype)
