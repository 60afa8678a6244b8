"""What a logit is: tokens and their positions become rows whose scalar products are the logits."""

import abc
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow.numerics.arrays import Numbers, one_program

if TYPE_CHECKING:
    from attnflow.sums.logits.quadratic import Gap, Quadratic


class Logit(eqx.Module):
    r"""The logit $\ell(x, y)$ of a query $x$ and a key $y$, as a scalar product of rows:

    $$\ell(x_i, y_j) = \langle q_i, k_j\rangle + b_j + a_i.$$

    A subclass gives `queries` and `keys`, the rows of tokens `[n, d]` at their `order [n]`, which only a `positional` logit reads. Both are
    taken about a center `c [d]`, so that a cloud far from the origin keeps its digits. What is a quadratic polynomial in $x$ and $y$ has a
    `form`, which Gaussians, mixtures and closed forms need. `psd` is a static fact found at construction: the mixed term is symmetric
    positive semidefinite, which lets Sinkhorn use its fast symmetric update.
    """

    # Whether rows depend on the order of tokens.
    positional: ClassVar[bool] = False
    # Whether a center may be taken from the tokens, so that what it changes are terms in x or y alone.
    centers: ClassVar[bool] = True
    # Whether the rows of keys are the keys themselves less the center.
    keys_are_tokens: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def psd(self) -> bool:
        """Whether the mixed term is known to be symmetric positive semidefinite."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """The dimension $d$ of the tokens."""

    @abc.abstractmethod
    def queries(
        self, x: Float[Numbers, "m d"], order: Float[Numbers, " m"] | None, c: Float[Numbers, " d"]
    ) -> tuple[Float[Numbers, "m p"], Float[Numbers, " m"]]:
        """$q$ and $a$, the term in $x$ alone."""

    @abc.abstractmethod
    def keys(
        self, y: Float[Numbers, "n d"], order: Float[Numbers, " n"] | None, c: Float[Numbers, " d"]
    ) -> tuple[Float[Numbers, "n p"], Float[Numbers, " n"]]:
        """$k$ and $b$, the term in $y$ alone."""

    @property
    def form(self) -> "Quadratic":
        """The quadratic polynomial that the logit is."""
        raise ValueError(f"a {type(self).__name__} logit is no quadratic form in the tokens, which this needs; use tokens and dot_product")

    @property
    def differences(self) -> "Gap | None":
        """The squared distance that this logit is, where it is computed from differences."""
        return None

    @abc.abstractmethod
    def scaled(self, factor: Float[Array, ""]) -> "Logit":
        """The logit times a factor that is not negative."""

    @abc.abstractmethod
    def pulled_back(self, matrix: Float[Array, "d d"] | Float[Array, " d"]) -> "Logit":
        r"""The logit $(x, y) \mapsto \ell(E x, E y)$ for a matrix $E$, or for its diagonal."""

    @abc.abstractmethod
    def mixed(self) -> "Logit":
        """What a doubly stochastic kernel sees of a logit: all but terms in $x$ or $y$ alone, in the form whose potentials are smallest."""

    @abc.abstractmethod
    def swapped(self) -> "Logit":
        """The mixed logit with queries and keys in each other's place."""

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
    def dtype(self) -> Any:
        """The precision of its numbers."""
        return jax.tree.leaves(self)[0].dtype
