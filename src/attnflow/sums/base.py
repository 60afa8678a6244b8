"""What an engine is."""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from attnflow.sums.atoms import Atoms
from attnflow.sums.logit import Logit
from attnflow.sums.mask import Sight


class Engine(eqx.Module):
    """Evaluates kernel sums on rows in the form `l_ij = <q_i, k_j> + b_j`, where b has the log-weights of the keys too."""

    @abc.abstractmethod
    def softmax(
        self, q: Float[Array, "m d"], k: Float[Array, "n d"], b: Float[Array, " n"], sight: Sight | None = None, with_mean: bool = True
    ) -> tuple[Float[Array, " m"], Float[Array, "m d"] | None]:
        r"""$\log \sum_j e^{\ell_{ij}}$, and the mean of the keys under the weights $e^{\ell_{ij}}$ if it is wanted."""

    @abc.abstractmethod
    def pointwise(
        self,
        kernel: Callable,
        q: Float[Array, "m d"],
        k: Float[Array, "n d"],
        b: Float[Array, " n"],
        w: Float[Array, " n"],
        v: Float[Array, "n e"],
        row: Float[Array, " m"],
        sight: Sight | None = None,
    ) -> Float[Array, "m e"]:
        r"""$\sum_j w_j\, \kappa(\ell_{ij}, r_i)\, v_j$ for the `kernel` $\kappa$ and the row $r_i$ of a query."""

    @abc.abstractmethod
    def largest(
        self, q: Float[Array, "m d"], k: Float[Array, "n d"], b: Float[Array, " n"], sight: Sight | None = None
    ) -> Float[Array, " m"]:
        r"""$\max_j \ell_{ij}$."""

    def fit(self, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, sight: Sight | None = None) -> "Engine":
        """The engine that serves these queries and keys: itself, or one made for them from their values."""
        return self

    def over(self, queries: int, keys: int) -> "Engine":
        """The engine that looks at so many queries and keys, pair by pair."""
        return self

    def centre(self, points: Float[Array, "n d"]) -> Float[Array, " d"]:
        """What is taken from the keys before they become rows."""
        return jax.lax.stop_gradient(jnp.mean(points, axis=0))

    def report(
        self, q: Float[Array, "m d"], k: Float[Array, "n d"], b: Float[Array, " n"], sight: Sight | None = None
    ) -> dict[str, PyTree]:
        """Figures on how good the sums are; nothing for sums that are exact up to round-off."""
        return {}
