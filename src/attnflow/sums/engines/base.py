"""What an engine is, and what it means to ask for one."""

import abc
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from attnflow.sums.rows import Pairs, Rows


class Request(eqx.Module):
    """How kernel sums are to be evaluated. `fit` makes the engine that serves given queries and keys, from their values where it needs
    them; inside `jit` and `grad` these are not known."""

    # Whether logits of squared distances come from differences, which keep their digits.
    differences: ClassVar[bool] = False

    @abc.abstractmethod
    def fit(self, pairs: Pairs) -> "Engine":
        """The engine that serves these queries and keys in exponential sums."""

    @abc.abstractmethod
    def over(self, queries: int, keys: int) -> "Engine":
        """The engine that looks at so many queries and keys pair by pair, for sums that are not exponential."""

    def by_value(self, dim: int, pairs: int) -> bool:
        """Whether the engine for so many pairs of tokens of this dimension depends on their values, so that it must be fitted before values
        are traced."""
        return False

    def decided(self) -> "Request":
        """The same request, with what depends on the machine decided."""
        return self

    def for_motion(self) -> "Request":
        """The request of a run whose tokens may leave a circle that they begin on."""
        return self


class Engine(Request):
    """Evaluates kernel sums over `Rows`; an engine is a request for itself.

    Sums are of the keys that each query sees. A query that sees none has log-sum minus infinity and mean zero.
    """

    # Whether it was made from the values of tokens, which may outgrow it; whether many sums of one shape may be stacked by `vmap`.
    planned: ClassVar[bool] = False
    stackable: ClassVar[bool] = False

    @abc.abstractmethod
    def softmax(
        self, rows: Rows, values: Float[Array, "n e"] | None = None, with_mean: bool = True
    ) -> tuple[Float[Array, " m"], Float[Array, "m e"] | None]:
        r"""$\log \sum_j w_j e^{\ell_{ij} - a_i}$, and if it is wanted the mean of the `values`, by default of the rows of keys, under the
        weights $w_j e^{\ell_{ij}}$."""

    @abc.abstractmethod
    def pointwise(self, kernel: Callable, rows: Rows, values: Float[Array, "n e"]) -> Float[Array, "m e"]:
        r"""$\sum_j \kappa(\ell_{ij})\, v_j$ for the `kernel` $\kappa$, a named function of a matrix of logits; weights are in the
        values."""

    @abc.abstractmethod
    def largest(self, rows: Rows) -> Float[Array, " m"]:
        r"""$\max_j \ell_{ij} - a_i$ over the keys that have mass."""

    def rows(self, pairs: Pairs, center: Float[Array, " d"] | None = None) -> Rows:
        """Queries and keys as this engine wants them, about a center that it chooses unless one is given."""
        return pairs.about(self.center(pairs.atoms.points) if center is None else center)

    def center(self, points: Float[Array, "n d"]) -> Float[Array, " d"]:
        """What is taken from the keys before they become rows."""
        return jax.lax.stop_gradient(jnp.mean(points, axis=0))

    def fit(self, pairs: Pairs) -> "Engine":
        return self

    def over(self, queries: int, keys: int) -> "Engine":
        return self

    def report(self, rows: Rows) -> dict[str, PyTree]:
        """Figures on how good the sums are; nothing for sums that are exact up to round-off."""
        return {}

    @property
    def description(self) -> str:
        """The engine in a line of `path.stats`."""
        return repr(self)
