"""Logits that are quadratic polynomials, by their matrices."""

import functools
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._check import flag, instance
from attnflow.numerics.arrays import Numbers, check_array
from attnflow.numerics.rows import array_namespace, dot, times
from attnflow.sums.logits.logit import Logit, RowsAndTerms

# Up to this many coordinates the logits of a squared distance are sums of squared differences. These keep digits that scalar products lose,
# and cost less than the exponential that follows.
FEW = 3


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

    def __call__(self, x: Float[Array, "m d"], y: Float[Array, "n d"], c: Float[Array, " d"]) -> Float[Array, "m n"]:
        """The matrix of logits."""
        return -0.5 * self.sharpness * squares(*(rows.T for rows in self.rows(x, y, c)))

    def scaled(self, factor: Float[Array, ""] | float) -> "Gap":
        """The squared distance times a factor."""
        return Gap(self.sharpness * factor, self.query, self.key)

    def pulled_back(self, matrix: Float[Array, "d d"]) -> "Gap":
        r"""$(x, y) \mapsto -\frac{s}{2} |Q E x - K E y|^2$."""
        query = matrix if self.query is None else self.query @ matrix
        return Gap(self.sharpness, query, None if self.key is None else self.key @ matrix)


class Quadratic(Logit):
    r"""The logit of a query $x$ and a key $y$, a quadratic form:

    $$\ell(x, y) = \langle y, A x\rangle - \tfrac12 \langle y, P y\rangle - \tfrac12 \langle x, R x\rangle
    + \langle p, y\rangle + \langle r, x\rangle + c.$$

    $P$ and $R$ are symmetric; `None` means zero, and $c$ is the `constant`. The terms of degree one come from the biases of trained models.
    Softmax and hardmax do not depend on $R$, $r$ and the constant; Sinkhorn depends on $A$ only. `psd` says that $A$ is known to be
    symmetric positive semidefinite, which lets Sinkhorn use its fast symmetric update.

    `gap` is a squared distance whose mixed term is $\langle y, A x\rangle$, where one is known; `squared` says that it is the whole logit.
    """

    A: Float[Array, "d d"]
    P: Float[Array, "d d"] | None = None
    R: Float[Array, "d d"] | None = None
    p: Float[Array, " d"] | None = None
    r: Float[Array, " d"] | None = None
    constant: Float[Array, ""] | None = None
    psd: bool = eqx.field(static=True, kw_only=True, default=False)  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]
    gap: Gap | None = eqx.field(kw_only=True, default=None)
    squared: bool = eqx.field(static=True, kw_only=True, default=False)

    keys_are_tokens = True

    def __check_init__(self) -> None:
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
        return self.A.shape[1]

    @property
    def differences(self) -> Gap | None:
        if not self.squared or self.gap is None:
            return None
        return self.gap if (self.dim if self.gap.query is None else len(self.gap.query)) <= FEW else None

    @property
    def form(self) -> "Quadratic":
        return self

    def queries(self, x: Float[Numbers, "n d"], order: Float[Numbers, " n"] | None, c: Float[Numbers, " d"]) -> RowsAndTerms:
        r"""With $x = c + u$ and $y = c + k$,

        $$q = A u + (A - P) c + p, \qquad a = \langle u, (A^\top - R) c + r\rangle + \tfrac12 \langle c, (2A - P - R) c\rangle
        + \langle p + r, c\rangle - \tfrac12 \langle u, R u\rangle$$

        and the constant. For a squared distance with $Q = K$ the terms in $c$ vanish identically, so a cloud far from the origin loses no
        digits.
        """
        A, P, R = self.A, self.P, self.R
        u = x - c[None]
        from_key = A if P is None else A - P
        from_query = A.T if R is None else A.T - R
        shift, slope = from_key @ c, from_query @ c
        level = 0.5 * (c @ (shift + slope))
        if self.p is not None:
            shift, level = shift + self.p, level + self.p @ c
        if self.r is not None:
            slope, level = slope + self.r, level + self.r @ c
        if self.constant is not None:
            level = level + self.constant
        rest = u @ slope + level
        if R is not None:
            rest = rest - 0.5 * dot(times(u, R.T), u)
        return times(u, A) + shift[None], rest

    def keys(self, y: Float[Numbers, "n d"], order: Float[Numbers, " n"] | None, c: Float[Numbers, " d"]) -> RowsAndTerms:
        r"""$k = y - c$ and $b = -\tfrac12 \langle k, P k\rangle$."""
        k = y - c[None]
        return k, array_namespace(k).zeros(len(k), k.dtype) if self.P is None else -0.5 * dot(times(k, self.P.T), k)

    def pulled_back(self, matrix: Float[Array, "d d"] | Float[Array, " d"]) -> "Quadratic":
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
        return Quadratic((A + A.T) / 2 if self.psd else A, P, R, p, r, self.constant, psd=self.psd, gap=gap, squared=self.squared)

    def scaled(self, factor: Float[Array, ""]) -> "Quadratic":
        forms = jax.tree.map(lambda form: factor * form, (self.A, self.P, self.R, self.p, self.r, self.constant))
        return Quadratic(*forms, psd=self.psd, gap=None if self.gap is None else self.gap.scaled(factor), squared=self.squared)

    def mixed(self) -> "Quadratic":
        r"""The mixed term alone: as $-\frac12 \langle x - y, A (x - y)\rangle$ for a positive
        semidefinite $A$, whose potentials are small, else as $\langle y, A x\rangle$."""
        if not self.psd:
            return Quadratic(self.A)
        gap = None if self.gap is None or self.gap.key is not None else self.gap
        return Quadratic(self.A, self.A, self.A, psd=True, gap=gap, squared=gap is not None)

    def swapped(self) -> "Quadratic":
        return self if self.psd else Quadratic(self.A.T)


def isotropic(sharpness: Float[Array, ""], dim: int) -> Quadratic:
    r"""$-\frac{s}{2} |x - y|^2$ with the `sharpness` $s$: the logit of a Gaussian kernel."""
    form = sharpness * jnp.eye(dim, dtype=sharpness.dtype)
    return Quadratic(form, form, form, psd=True, gap=Gap(sharpness), squared=True)


def squares(
    q: Sequence[Float[Array, " m"]] | Float[Array, "p m"], k: Sequence[Float[Array, " n"]] | Float[Array, "p n"]
) -> Float[Array, "m n"]:
    """`|q_i - k_j|^2` from differences, for few coordinates, each a column."""
    return functools.reduce(jnp.add, ((a[:, None] - b[None]) ** 2 for a, b in zip(q, k, strict=True)))


def _shaped(name: str, form: object, shape: str) -> tuple[int, ...]:
    """The shape of an array that a logit is made of, which is checked."""
    found = check_array(name, form, shape).shape
    if len(set(found)) > 1:
        raise ValueError(f"{name} must be square [d, d], got {list(found)}")
    return found
