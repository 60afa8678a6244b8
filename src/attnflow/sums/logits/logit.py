"""What a logit is: tokens and their positions become rows whose scalar products are the logits."""

import abc
from typing import TYPE_CHECKING, ClassVar, NoReturn, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow.numerics.arrays import Numbers, one_program

if TYPE_CHECKING:
    from attnflow.sums.logits.quadratic import Gap, Quadratic

# The rows of tokens, `q` or `k`, and the terms in them alone, `a` or `b`.
RowsAndTerms: TypeAlias = tuple[Float[Numbers, "n p"], Float[Numbers, " n"]]


class Logit(eqx.Module):
    r"""The logit $\ell(x, y)$ of a query $x$ and a key $y$, as a scalar product of rows:

    $$\ell(x_i, y_j) = \langle q_i, k_j\rangle + b_j + a_i.$$

    A logit of your own implements `dim`, `queries` and `keys`, of operators and methods that arrays of NumPy and JAX share; its numbers are
    fields that are arrays. Softmax, hardmax, sigmoid and unnormalized attention of tokens need nothing more. What else has a use for it
    asks for a method by name: Sinkhorn for `swapped`, which is called on what `mixed` returns, and for `scaled`; `rescaled` for
    `pulled_back`; Gaussians, mixtures and closed forms for the quadratic polynomial `form`.
    """

    positional: ClassVar[bool] = False
    """Whether rows depend on the order of tokens."""
    centers: ClassVar[bool] = True
    """Whether subtracting a center from queries and keys alike changes the logit by terms in $x$ or $y$ alone."""
    keys_are_tokens: ClassVar[bool] = False
    """Whether the rows of keys are the keys themselves less the center."""

    @property
    def psd(self) -> bool:
        """Whether the mixed term is known to be symmetric positive semidefinite, which lets Sinkhorn use its fast symmetric update: a
        static fact, found when the logit is made."""
        return False

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """The dimension $d$ of the tokens."""

    @abc.abstractmethod
    def queries(self, x: Float[Numbers, "n d"], order: Float[Numbers, " n"] | None, c: Float[Numbers, " d"]) -> RowsAndTerms:
        """The rows $q$ of queries `x` at their `order`, which only a positional logit reads, and the terms $a$ in $x$ alone. Both are taken
        about the center `c`, so that a cloud far from the origin keeps its digits; a logit may ignore it."""

    @abc.abstractmethod
    def keys(self, y: Float[Numbers, "n d"], order: Float[Numbers, " n"] | None, c: Float[Numbers, " d"]) -> RowsAndTerms:
        """The rows $k$ of keys `y`, and the terms $b$ in $y$ alone, about the same center."""

    @property
    def form(self) -> "Quadratic":
        """The logit as a quadratic polynomial in $x$ and $y$, if it is one."""
        raise ValueError(f"a {type(self).__name__} logit is no quadratic form in the tokens, which this needs; use tokens and dot_product")

    @property
    def differences(self) -> "Gap | None":
        """The logit as a squared distance, if it is one and is to be computed from differences."""
        return None

    def scaled(self, factor: Float[Array, ""]) -> "Logit":
        """The logit times a nonnegative factor."""
        self._lacks("scaled(factor)")

    def pulled_back(self, matrix: Float[Array, "d d"] | Float[Array, " d"]) -> "Logit":
        r"""The logit $(x, y) \mapsto \ell(E x, E y)$ for a matrix $E$, or for its diagonal."""
        self._lacks("pulled_back(matrix)")

    def mixed(self) -> "Logit":
        """A logit that differs from this one by terms in $x$ or $y$ alone, which a doubly stochastic kernel does not see, chosen so that
        Sinkhorn's potentials are small."""
        return self

    def swapped(self) -> "Logit":
        r"""The logit $(y, x) \mapsto \ell(x, y)$, up to terms in $x$ or $y$ alone."""
        self._lacks("swapped()")

    def _lacks(self, method: str) -> NoReturn:
        raise ValueError(f"a {type(self).__name__} logit has no method {method}, which this needs; give it one, or use af.dot_product")

    @one_program
    def __call__(
        self,
        x: Float[Array, "m d"],
        y: Float[Array, "n d"],
        s: Float[Array, " m"] | None = None,
        tau: Float[Array, " n"] | None = None,
    ) -> Float[Array, "m n"]:
        """The matrix of logits of queries `x` at order `s` and keys `y` at order `tau`."""
        center, gap = jax.lax.stop_gradient(jnp.mean(y, axis=0)), self.differences
        if gap is not None:
            return gap(x, y, center)
        (q, a), (k, b) = self.queries(x, s, center), self.keys(y, tau, center)
        return q @ k.T + b[None, :] + a[:, None]

    @property
    def dtype(self) -> np.dtype:
        """The precision of its numbers."""
        return jax.tree.leaves(self)[0].dtype
