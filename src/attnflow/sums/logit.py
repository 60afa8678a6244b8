"""Every attention logit of the literature is one quadratic polynomial."""

import functools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._arrays import array, floats, known, on_host, one_program, positive, stored
from attnflow._check import flag, instance
from attnflow._linalg import is_psd
from attnflow._rows import dot, times

# Up to this many coordinates the logits of a squared distance are sums of squared differences. They keep digits that scalar products lose,
# and an exponential takes longer than either.
_FEW = 3


class Gap(eqx.Module):
    r"""The squared distance $-\frac{s}{2} |Q x - K y|^2$ with the `sharpness` $s$.

    `key` is `None` if $K = Q$, `query` is `None` if both are the identity. It is computed from differences: from scalar products it would
    lose the digits of $|Q x|^2$, which for clusters far apart is much larger than the distances within them.
    """

    sharpness: Float[Array, ""]
    query: Float[Array, "p d"] | None = None
    key: Float[Array, "p d"] | None = None

    def rows(
        self, x: Float[Array, "m d"], y: Float[Array, "n d"], c: Float[Array, " d"]
    ) -> tuple[Float[Array, "m p"], Float[Array, "n p"]]:
        """$q$ and $k$ with $|q_i - k_j| = |Q x_i - K y_j|$: the tokens themselves for the identity, else about the center $c$."""
        if self.query is None:
            return x, y
        q = times(x - c[None], self.query)
        if self.key is None:
            return q, times(y - c[None], self.query)
        return q + ((self.query - self.key) @ c)[None], times(y - c[None], self.key)

    def scaled(self, factor: Float[Array, ""] | float) -> "Gap":
        """The squared distance times a factor."""
        return Gap(self.sharpness * factor, self.query, self.key)

    def pulled_back(self, matrix: Float[Array, "d d"]) -> "Gap":
        r"""$(x, y) \mapsto -\frac{s}{2} |Q E x - K E y|^2$."""
        query = matrix if self.query is None else self.query @ matrix
        return Gap(self.sharpness, query, None if self.key is None else self.key @ matrix)


class Logit(eqx.Module):
    r"""The logit of a query $x$ and a key $y$, a quadratic form:

    $$\ell(x, y) = \langle y, A x\rangle - \tfrac12 \langle y, P y\rangle - \tfrac12 \langle x, R x\rangle
    + \langle p, y\rangle + \langle r, x\rangle + c.$$

    $P$ and $R$ are symmetric; `None` is zero, and $c$ is the `constant`. The terms of degree one come from the biases of trained models.
    Softmax and hardmax do not see $R$, $r$ and the constant; Sinkhorn sees $A$ only. `psd` is a static fact found at construction: $A$ is
    symmetric positive semidefinite, which lets Sinkhorn use its fast symmetric update.

    `gap` is a squared distance whose mixed term is $\langle y, A x\rangle$, where one is known; `squared` says that it is the whole logit.
    """

    A: Float[Array, "d d"]
    P: Float[Array, "d d"] | None = None
    R: Float[Array, "d d"] | None = None
    p: Float[Array, " d"] | None = None
    r: Float[Array, " d"] | None = None
    constant: Float[Array, ""] | None = None
    psd: bool = eqx.field(static=True, default=False)
    gap: Gap | None = None
    squared: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        d = _shaped("A", self.A, "d d")[1]
        forms = (("P", self.P, "d d"), ("R", self.R, "d d"), ("p", self.p, "d"), ("r", self.r, "d"), ("constant", self.constant, ""))
        for name, form, shape in forms:
            if form is not None and _shaped(name, form, shape) != (d,) * len(shape.split()):
                raise ValueError(f"{name} must be of dimension {d} like A, got {list(form.shape)}")
        if self.gap is not None:
            instance("gap", self.gap, Gap, "a Gap", "af.squared_distance makes one")
        flag("psd", self.psd)
        flag("squared", self.squared)

    @property
    def dim(self) -> int:
        """The dimension $d$ of the tokens."""
        return self.A.shape[1]

    @property
    def differences(self) -> Gap | None:
        """The squared distance that this logit is, where it is computed from differences."""
        if not self.squared or self.gap is None:
            return None
        return self.gap if (self.dim if self.gap.query is None else len(self.gap.query)) <= _FEW else None

    @one_program
    def __call__(self, x: Float[Array, "m d"], y: Float[Array, "n d"]) -> Float[Array, "m n"]:
        """The matrix of logits `l(x_i, y_j)`."""
        center, gap = jax.lax.stop_gradient(jnp.mean(y, axis=0)), self.differences
        if gap is not None:
            return -0.5 * gap.sharpness * squares(*(rows.T for rows in gap.rows(x, y, center)))
        queries, bias, rest, keys = self.centred(x, y, center)
        return queries @ keys.T + bias[None, :] + rest[:, None]

    @one_program
    def centred(
        self, x: Float[Array, "m d"], y: Float[Array, "n d"], c: Float[Array, " d"]
    ) -> tuple[Float[Array, "m d"], Float[Array, " n"], Float[Array, " m"], Float[Array, "n d"]]:
        r"""$q$, $b$, $a$, $k$ with $\ell(x_i, y_j) = \langle q_i, k_j\rangle + b_j + a_i$ and $k = y - c$.

        With $x = c + u$ and $y = c + k$,

        $$q = A u + (A - P) c + p, \qquad b = -\tfrac12 \langle k, P k\rangle,$$

        $$a = \langle u, (A^\top - R) c + r\rangle + \tfrac12 \langle c, (2A - P - R) c\rangle
        + \langle p + r, c\rangle - \tfrac12 \langle u, R u\rangle$$

        and the constant. For a squared distance with $Q = K$ the terms in $c$ vanish identically, so a cloud far from the origin loses no
        digits.
        """
        A, P, R = self.A, self.P, self.R
        u, k = x - c[None], y - c[None]
        from_key = A if P is None else A - P
        from_query = A.T if R is None else A.T - R
        shift, slope = from_key @ c, from_query @ c
        level = 0.5 * jnp.vdot(c, shift + slope)
        if self.p is not None:
            shift, level = shift + self.p, level + jnp.vdot(self.p, c)
        if self.r is not None:
            slope, level = slope + self.r, level + jnp.vdot(self.r, c)
        if self.constant is not None:
            level = level + self.constant
        rest = u @ slope + level
        if R is not None:
            rest = rest - 0.5 * dot(times(u, R.T), u)
        bias = jnp.zeros(len(k), k.dtype) if P is None else -0.5 * dot(times(k, P.T), k)
        return times(u, A) + shift[None], bias, rest, k

    def pulled_back(self, matrix: Float[Array, "d d"] | Float[Array, " d"]) -> "Logit":
        r"""The logit $(x, y) \mapsto \ell(E x, E y)$ for a matrix $E$, or for its diagonal: $E^\top A E$, $E^\top P E$, $E^\top R E$,
        $E^\top p$, $E^\top r$."""
        gap = None if self.gap is None else self.gap.pulled_back(jnp.diag(matrix) if matrix.ndim == 1 else matrix)
        if matrix.ndim == 1:
            both = matrix[:, None] * matrix[None]
            A, P, R = (None if form is None else form * both for form in (self.A, self.P, self.R))
            p, r = (None if form is None else matrix * form for form in (self.p, self.r))
        else:
            E = matrix
            A, P, R = (None if form is None else E.T @ form @ E for form in (self.A, self.P, self.R))
            p, r = (None if form is None else E.T @ form for form in (self.p, self.r))
        assert A is not None
        return Logit((A + A.T) / 2 if self.psd else A, P, R, p, r, self.constant, self.psd, gap, self.squared)

    def scaled(self, factor: Float[Array, ""]) -> "Logit":
        """The logit times a factor that is not negative."""
        A, P, R, p, r, constant = jax.tree.map(lambda form: factor * form, (self.A, self.P, self.R, self.p, self.r, self.constant))
        return Logit(A, P, R, p, r, constant, self.psd, None if self.gap is None else self.gap.scaled(factor), self.squared)

    def mixed(self) -> "Logit":
        r"""What a doubly stochastic kernel sees of a logit, its mixed term: as $-\frac12 \langle x - y, A (x - y)\rangle$ for a positive
        semidefinite $A$, whose potentials are small, else as $\langle y, A x\rangle$."""
        if not self.psd:
            return Logit(self.A)
        gap = None if self.gap is None or self.gap.key is not None else self.gap
        return Logit(self.A, self.A, self.A, psd=True, gap=gap, squared=gap is not None)

    def swapped(self) -> "Logit":
        """The mixed logit with queries and keys in each other's place."""
        return self if self.psd else Logit(self.A.T)


def isotropic(sharpness: Float[Array, ""], dim: int) -> Logit:
    r"""$-\frac{s}{2} |x - y|^2$ with the `sharpness` $s$: the logit of a Gaussian kernel."""
    form = sharpness * jnp.eye(dim, dtype=sharpness.dtype)
    return Logit(form, form, form, psd=True, gap=Gap(sharpness), squared=True)


def squares(
    q: Sequence[Float[Array, " m"]] | Float[Array, "p m"], k: Sequence[Float[Array, " n"]] | Float[Array, "p n"]
) -> Float[Array, "m n"]:
    """`|q_i - k_j|^2` from differences, for few coordinates, each a column."""
    return functools.reduce(jnp.add, ((a[:, None] - b[None]) ** 2 for a, b in zip(q, k, strict=True)))


def _shaped(name: str, form: Any, shape: str) -> tuple[int, ...]:
    """The shape of an array that a logit is made of, refused if it is none."""
    stored(name, form, shape)
    if form.ndim == 2 and form.shape[0] != form.shape[1]:
        raise ValueError(f"{name} must be square [d, d], got {list(form.shape)}")
    return form.shape


def dot_product(query: Any, key: Any, temperature: Any = 1.0, query_bias: Any = None, key_bias: Any = None) -> Logit:
    r"""$\langle Q x + a, K y + b\rangle / T$ at the `temperature` $T$, with the biases $a$ and $b$ of trained models, zero if not given.

    $A = K^\top Q / T$, $p = K^\top a / T$, $r = Q^\top b / T$, the constant $\langle a, b\rangle / T$, $P = R = 0$.

    **Arguments:** `query` and `key` are `[p, d]`, `query_bias` and `key_bias` `[p]`.
    """
    Q, K, T = _matrices(query, key, temperature)
    a, b = _bias("query_bias", query_bias, Q), _bias("key_bias", key_bias, K)
    A = on_host(lambda K, Q, T: K.T @ Q / T, K, Q, T)
    return Logit(
        A,
        p=None if a is None else on_host(lambda K, a, T: K.T @ a / T, K, a, T),
        r=None if b is None else on_host(lambda Q, b, T: Q.T @ b / T, Q, b, T),
        constant=None if a is None or b is None else on_host(lambda a, b, T: a @ b / T, a, b, T),
        psd=query is key or is_psd(A),
        gap=_gap(True, Q, Q, on_host(lambda T: 1 / T, T)) if query is key else None,
    )


def squared_distance(query: Any, key: Any, temperature: Any = 1.0) -> Logit:
    r"""$-|Q x - K y|^2 / T$ at the `temperature` $T$: $A = 2 K^\top Q / T$, $P = 2 K^\top K / T$, $R = 2 Q^\top Q / T$."""
    Q, K, T = _matrices(query, key, temperature)
    A, P, R = on_host(lambda K, Q, T: (2 * K.T @ Q / T, 2 * K.T @ K / T, 2 * Q.T @ Q / T), K, Q, T)
    return Logit(A, P, R, psd=query is key or is_psd(A), gap=_gap(query is key, Q, K, on_host(lambda T: 2 / T, T)), squared=True)


def _gap(same: bool, Q: Array, K: Array, sharpness: Array) -> Gap:
    """The squared distance between `Q x` and `K y`; what is known of the matrices is used."""
    same = same or (known(Q, K) and np.array_equal(Q, K))
    if not (same and known(Q) and Q.shape[0] == Q.shape[1]):
        return Gap(sharpness, Q, None if same else K)
    host = np.asarray(Q)
    if not np.array_equal(host, host[0, 0] * np.eye(len(host), dtype=host.dtype)):
        return Gap(sharpness, Q)
    return Gap(on_host(lambda s, q: s * q * q, sharpness, array(host[0, 0])))


def _matrices(query: Any, key: Any, temperature: Any) -> tuple[Array, Array, Array]:
    Q, K, T = floats("query", query, "p d"), floats("key", key, "p d"), positive("temperature", temperature)
    if Q.shape != K.shape:
        raise ValueError(f"query and key must have the same shape [p, d], got {list(Q.shape)} and {list(K.shape)}")
    dtype = jnp.result_type(Q, K)
    return array(Q, dtype), array(K, dtype), array(T, dtype)


def _bias(name: str, value: Any, matrix: Array) -> Array | None:
    if value is None:
        return None
    bias = array(floats(name, value, "p"), matrix.dtype)
    if len(bias) != len(matrix):
        raise ValueError(f"{name} must have one entry a row of query and key, {len(matrix)}, got {len(bias)}")
    return bias
