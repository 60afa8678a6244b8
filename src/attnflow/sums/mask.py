"""Masks: which keys a query sees, by the order of tokens in their sequence. Order lies in [0, 1] and never moves.

A token at s sees those at tau <= s, itself included (the masked mean field of arXiv:2501.18322: order is a coordinate of the measure).
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from attnflow._arrays import known, positive


class Mask(eqx.Module):
    """Says for queries at `s` and keys at `tau` what is seen, and what is added to the logit."""

    @abc.abstractmethod
    def visible(self, s: Float[Array, "m 1"], tau: Float[Array, "1 n"]) -> Bool[Array, "m n"]:
        """Whether the query sees the key."""

    @abc.abstractmethod
    def tile(self, s: tuple[Array, Array], tau: tuple[Array, Array]) -> tuple[Array, Array]:
        """For a tile of queries and keys in these ranges: whether nothing is seen, and whether everything is seen and nothing added."""

    def penalty(self, s: Float[Array, "m 1"], tau: Float[Array, "1 n"]) -> Float[Array, "m n"] | None:
        """What is added to the logit of a key that is seen; `None` for nothing."""
        return None

    def share(self, s: Float[Array, "m 1"], tau: Float[Array, "1 n"]) -> Float[Array, "m n"] | None:
        """The part of the key's mass that the query sees; `None` for all of it."""
        return None


class Causal(Mask):
    r"""Tokens see the past and themselves: $\tau \le s$."""

    def visible(self, s: Float[Array, "m 1"], tau: Float[Array, "1 n"]) -> Bool[Array, "m n"]:
        return tau <= s

    def reach(self, s: Float[Array, "m 1"]) -> tuple[Float[Array, "m 1"], Float[Array, "m 1"]]:
        """The first and the last order that a query sees."""
        return jnp.zeros_like(s), s

    def tile(self, s: tuple[Array, Array], tau: tuple[Array, Array]) -> tuple[Array, Array]:
        return tau[0] > s[1], tau[1] <= s[0]


class Window(Mask):
    r"""Tokens see the recent past and themselves: $s - w \le \tau \le s$, $w$ the `width`."""

    width: Float[Array, ""]

    def __init__(self, width: Any):
        self.width = positive("width", width)

    def visible(self, s: Float[Array, "m 1"], tau: Float[Array, "1 n"]) -> Bool[Array, "m n"]:
        return (tau <= s) & (tau >= s - self.width)

    def reach(self, s: Float[Array, "m 1"]) -> tuple[Float[Array, "m 1"], Float[Array, "m 1"]]:
        return s - self.width, s

    def tile(self, s: tuple[Array, Array], tau: tuple[Array, Array]) -> tuple[Array, Array]:
        nothing = (tau[0] > s[1]) | (tau[1] < s[0] - self.width)
        return nothing, (tau[1] <= s[0]) & (tau[0] >= s[1] - self.width)


class ALiBi(Mask):
    r"""Tokens see the past and themselves, with a logit that falls with distance: $-\lambda (s - \tau)$, $\lambda$ the `slope` (Press et
    al. 2022, arXiv:2108.12409).

    Order runs over $[0, 1]$, so the slope is that over the whole sequence.
    """

    slope: Float[Array, ""]

    def __init__(self, slope: Any):
        self.slope = positive("slope", slope)

    def visible(self, s: Float[Array, "m 1"], tau: Float[Array, "1 n"]) -> Bool[Array, "m n"]:
        return tau <= s

    def reach(self, s: Float[Array, "m 1"]) -> tuple[Float[Array, "m 1"], Float[Array, "m 1"]]:
        return jnp.zeros_like(s), s

    def tile(self, s: tuple[Array, Array], tau: tuple[Array, Array]) -> tuple[Array, Array]:
        return tau[0] > s[1], jnp.array(False)

    def penalty(self, s: Float[Array, "m 1"], tau: Float[Array, "1 n"]) -> Float[Array, "m n"]:
        return -self.slope * (s - tau)


class Explicit(Mask):
    """A matrix of who sees whom, `[n, n]`, rows for queries: for the $n$ tokens of the cloud themselves, by their row."""

    matrix: Bool[Array, "n n"]

    def __init__(self, matrix: Any):
        self.matrix = jnp.asarray(matrix, dtype=bool)
        if self.matrix.ndim != 2 or self.matrix.shape[0] != self.matrix.shape[1]:
            raise ValueError(f"a mask matrix must be square [n, n], got {list(self.matrix.shape)}")
        if known(self.matrix) and not np.asarray(self.matrix).any(axis=1).all():
            row = int(np.asarray(self.matrix).any(axis=1).argmin())
            raise ValueError(f"every token must see at least one, got an empty row {row} in the mask matrix")

    def visible(self, s: Float[Array, "m 1"], tau: Float[Array, "1 n"]) -> Bool[Array, "m n"]:
        return self.matrix[s.astype(int), tau.astype(int)]

    def tile(self, s: tuple[Array, Array], tau: tuple[Array, Array]) -> tuple[Array, Array]:
        return jnp.array(False), jnp.array(False)


class InCells(Mask):
    """A mask over keys that fill cells of order, as those of a grid do: a query sees the part of a cell that it reaches.

    A query in the middle of its cell sees half of it, which makes the integral over what it sees second order in the width of the cells;
    with whole cells it would reach half a cell too far, which is first order.
    """

    mask: Causal | Window | ALiBi
    width: float = eqx.field(static=True)

    def visible(self, s: Float[Array, "m 1"], tau: Float[Array, "1 n"]) -> Bool[Array, "m n"]:
        return self.share(s, tau) > 0

    def tile(self, s: tuple[Array, Array], tau: tuple[Array, Array]) -> tuple[Array, Array]:
        return self.mask.tile(s, (tau[0] - self.width / 2, tau[1] + self.width / 2))

    def penalty(self, s: Float[Array, "m 1"], tau: Float[Array, "1 n"]) -> Float[Array, "m n"] | None:
        return self.mask.penalty(s, tau)

    def share(self, s: Float[Array, "m 1"], tau: Float[Array, "1 n"]) -> Float[Array, "m n"]:
        first, last = self.mask.reach(s)
        # Order begins at 0, where a query sees the beginning of the first cell: an average has a limit there.
        last = jnp.maximum(last, 1e-6 * self.width)
        seen = jnp.minimum(tau + self.width / 2, last) - jnp.maximum(tau - self.width / 2, first)
        return jnp.clip(seen / self.width, 0, 1)


class Sight(NamedTuple):
    """A mask with the order of the queries, `s [m]`, and of the keys, `tau [n]`."""

    mask: Mask
    s: Float[Array, " m"]
    tau: Float[Array, " n"]

    def apply(self, logits: Float[Array, "m n"]) -> Float[Array, "m n"]:
        """The logits as they are seen; hidden ones are lower than any other, but finite."""
        s, tau = self.s[:, None], self.tau[None, :]
        penalty = self.mask.penalty(s, tau)
        logits = logits if penalty is None else logits + penalty.astype(logits.dtype)
        return jnp.where(self.mask.visible(s, tau), logits, lowest(logits.dtype))

    def share(self) -> Float[Array, "m n"] | None:
        """The part of each key that is seen; `None` if keys are seen whole or not at all."""
        return self.mask.share(self.s[:, None], self.tau[None, :])

    def weights(self) -> Float[Array, "m n"]:
        """What the mask makes of `e^logit`: a factor for every pair."""
        s, tau = self.s[:, None], self.tau[None, :]
        penalty, share = self.mask.penalty(s, tau), self.mask.share(s, tau)
        factor = self.mask.visible(s, tau).astype(self.s.dtype) if share is None else share
        return factor if penalty is None else jnp.where(factor > 0, factor * jnp.exp(penalty), 0)


def lowest(dtype: Any) -> Any:
    """The logit of a key that is not there: far below all others, and finite so that products with zero stay zero."""
    return -jnp.finfo(dtype).max / 8
