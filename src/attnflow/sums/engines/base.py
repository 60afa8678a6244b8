"""What an engine is, and what it means to ask for one."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow.sums.rows import Pairs, Rows

# The log-sums of an exponential sum, and the means if they are wanted.
LogSumsAndMeans: TypeAlias = tuple[Float[Array, " m"], Float[Array, "m e"] | None]
# A function of a matrix of logits, entry by entry.
Kernel: TypeAlias = Callable[[Float[Array, "m n"]], Float[Array, "m n"]]


class Request(eqx.Module):
    """How kernel sums are to be evaluated: what users pass as `sums`. It makes the engine that evaluates them.

    A request of your own implements `fit`, for exponential sums, and `over`, for all others. Its fields are static: they are known while
    a program is compiled. If the engine depends on the values of tokens, which are not known inside `jit` and `grad`, `by_value` says so,
    and `solve` asks for the engine beforehand; the other methods have defaults that fit every request.
    """

    differences: ClassVar[bool] = False
    """Whether logits of squared distances are computed from differences, which keep their digits."""

    @abc.abstractmethod
    def fit(self, pairs: Pairs) -> "Engine":
        """The engine for exponential sums over these queries and keys."""

    @abc.abstractmethod
    def over(self, queries: int, keys: int) -> "Engine":
        """The engine for other sums, which evaluates all pairs of this number of `queries` and `keys`."""

    def by_value(self, dim: int, pairs: int) -> bool:
        """Whether the engine depends on the values of the tokens, for tokens of this dimension and this number of pairs."""
        return False

    def decided(self) -> "Request":
        """The same request, with what depends on the machine decided."""
        return self

    def for_motion(self) -> "Request":
        """The request for a run whose tokens may leave the circle that they start on."""
        return self


class Engine(Request):
    r"""Evaluates kernel sums; it is a request for itself.

    An engine of your own implements `softmax`, `pointwise` and `largest` on `Rows`: queries `q [m, p]` and keys `k [n, p]` with the logits
    $\ell_{ij} = \langle q_i, k_j\rangle + b_j + a_i$, the logarithms of the weights $w_j$ of the keys, and what each query sees of them;
    `pairs.about(center)` makes such rows. Sums are over the keys that the query sees: one that sees none has the log-sum $-\infty$ and the
    mean 0. What it cannot evaluate it refuses with a `ValueError`. It is called inside `jit`, and differentiated.
    """

    planned: ClassVar[bool] = False
    """Whether it was made from the values of tokens, so that it may no longer serve when they have moved."""
    stackable: ClassVar[bool] = False
    """Whether `vmap` may stack many sums of one shape."""

    @abc.abstractmethod
    def softmax(self, rows: Rows, values: Float[Array, "n e"] | None = None, with_mean: bool = True) -> LogSumsAndMeans:
        r"""$\log \sum_j w_j e^{\ell_{ij} - a_i}$, and if it is wanted the mean of the `values`, by default of the rows of keys, under the
        weights $w_j e^{\ell_{ij}}$; `None` if it is not wanted."""

    @abc.abstractmethod
    def pointwise(self, kernel: Kernel, rows: Rows, values: Float[Array, "n e"]) -> Float[Array, "m e"]:
        r"""$\sum_j \kappa(\ell_{ij})\, v_j$ for the `kernel` $\kappa$, a named function of a matrix of logits; the values
        contain the weights."""

    @abc.abstractmethod
    def largest(self, rows: Rows) -> Float[Array, " m"]:
        r"""$\max_j \ell_{ij} - a_i$ over the keys that have a positive weight."""

    def rows(self, pairs: Pairs, center: Float[Array, " d"] | None = None) -> Rows:
        """The rows that this engine works on, about a center, by default its own."""
        return pairs.about(self.center(pairs.atoms.points) if center is None else center)

    def center(self, points: Float[Array, "n d"]) -> Float[Array, " d"]:
        """The center that is subtracted from queries and keys before they become rows."""
        return jax.lax.stop_gradient(jnp.mean(points, axis=0))

    def fit(self, pairs: Pairs) -> "Engine":
        return self.decided()

    def over(self, queries: int, keys: int) -> "Engine":
        return self.decided()

    def decided(self) -> "Engine":
        return self

    def report(self, rows: Rows) -> dict[str, Any]:
        """Figures on the accuracy of the sums; nothing for sums that are exact up to round-off."""
        return {}

    @property
    def description(self) -> str:
        """The engine in one line, for `path.stats`."""
        return repr(self)
