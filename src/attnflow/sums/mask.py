"""Masks: which keys a query sees, by the order of tokens in their sequence: any finite numbers, which never move.

By default tokens are at the positions 0, 1, ..., n - 1, whole numbers that are compared without round-off. A token at s sees those at
tau <= s, itself included (the masked mean field of arXiv:2501.18322: order is a coordinate of the measure).
"""

import abc
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from attnflow.numerics.arrays import array, known, positive

# Additive masks hide a key by minus infinity, or by a number that no logit makes up for.
_HIDDEN = -1e3


class Mask(eqx.Module):
    """Says for queries at `s` and keys at `tau` what is seen, and what is added to the logit."""

    # Whether it is `tau <= s` and nothing more, which some sums have a faster form for; whether it goes by rows of tokens, not by order.
    causal: ClassVar[bool] = False
    by_rows: ClassVar[bool] = False

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

    def sight(self, s: Float[Array, " m"] | None, tau: Float[Array, " n"] | None, queries: int, keys: int) -> "Sight":
        """The mask for so many queries and keys, with their order."""
        if s is None or tau is None:
            raise ValueError("a masked law needs the order of the queries, got none; call velocity(x, order)")
        return Sight(self, s, tau)

    def check_count(self, keys: int) -> None:
        """Raise if the mask is not for so many tokens."""

    def check_unit(self, length: float | int | None) -> None:
        """Raise if the numbers of the mask are not in the unit of the order: of tokens at the positions 0, 1, ..., n - 1, where `length` is
        `None`, or of cells that fill `[0, length]`."""


class Causal(Mask):
    r"""Tokens see the past and themselves: $\tau \le s$."""

    causal = True

    def visible(self, s: Float[Array, "m 1"], tau: Float[Array, "1 n"]) -> Bool[Array, "m n"]:
        return tau <= s

    def reach(self, s: Float[Array, "m 1"]) -> tuple[Float[Array, "m 1"], Float[Array, "m 1"]]:
        """The first and the last order that a query sees."""
        return jnp.zeros_like(s), s

    def tile(self, s: tuple[Array, Array], tau: tuple[Array, Array]) -> tuple[Array, Array]:
        return tau[0] > s[1], tau[1] <= s[0]


class Window(Mask):
    r"""Tokens see the recent past and themselves: $s - w < \tau \le s$, $w$ the `width`.

    At positions 0, 1, ... `Window(3)` sees three tokens, itself and the two before it.
    """

    width: Float[Array, ""]

    def __init__(self, width: Any):
        self.width = positive("width", width)

    def visible(self, s: Float[Array, "m 1"], tau: Float[Array, "1 n"]) -> Bool[Array, "m n"]:
        return (tau <= s) & (s - tau < self.width)

    def reach(self, s: Float[Array, "m 1"]) -> tuple[Float[Array, "m 1"], Float[Array, "m 1"]]:
        return s - self.width, s

    def tile(self, s: tuple[Array, Array], tau: tuple[Array, Array]) -> tuple[Array, Array]:
        # The same differences as in `visible`, which round-off keeps in order: a tile says what its pairs would.
        nothing = (tau[0] > s[1]) | (s[0] - tau[1] >= self.width)
        return nothing, (tau[1] <= s[0]) & (s[1] - tau[0] < self.width)

    def check_unit(self, length: float | int | None) -> None:
        if not known(self.width):
            return
        width = float(self.width)
        if length is None and width < 1:
            raise ValueError(
                f"at the positions 0, 1, ..., n - 1 a Window of width {width:g} sees the token itself alone; count in tokens, as "
                "Window(3), or give af.Particles(order='fraction') for parts of the sequence"
            )
        if length is not None and width > length:
            raise ValueError(
                f"a Window of width {width:g} is longer than the order, [0, {length:g}]; use Causal(), or "
                "Order(cells, length=...) in its unit"
            )


class ALiBi(Mask):
    r"""Tokens see the past and themselves, with a logit that falls with distance: $-\lambda (s - \tau)$, $\lambda$ the `slope` (Press et
    al. 2022, arXiv:2108.12409).

    At positions 0, 1, ... the slope is per token, as in that paper; at `order="fraction"` it is over the whole sequence.
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
    """A matrix of who sees whom, `[n, n]`, rows for queries: for the $n$ tokens of the cloud themselves, by their row.

    True or 1 is seen, false or 0 is not. Of an additive mask, 0 and minus infinity, give `mask == 0`.
    """

    matrix: Bool[Array, "n n"]

    by_rows = True

    def __init__(self, matrix: Any):
        self.matrix = _boolean(matrix)
        if known(self.matrix) and not np.asarray(self.matrix).any(axis=1).all():
            row = int(np.asarray(self.matrix).any(axis=1).argmin())
            raise ValueError(
                f"every token must see at least one, got an empty row {row} in the mask matrix; 1 is seen, and of an additive mask give "
                "mask == 0"
            )

    def sight(self, s: Float[Array, " m"] | None, tau: Float[Array, " n"] | None, queries: int, keys: int) -> "Sight":
        n = len(self.matrix)
        self.check_count(keys)
        if queries != n:
            raise ValueError(f"a mask matrix is for its {n} tokens themselves, got {queries} queries")
        places = jnp.arange(n, dtype=jnp.float32)
        return Sight(self, places, places)

    def check_count(self, keys: int) -> None:
        if keys != len(self.matrix):
            raise ValueError(f"the mask is for {len(self.matrix)} tokens, got {keys}")

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

    def weights(self, massive: Bool[Array, " n"]) -> tuple[Float[Array, "m n"], Float[Array, " m"]]:
        """What the mask makes of `e^logit`: `factor_ij e^{level_i}`, zero for keys that are not `massive`. The level is the largest penalty
        of a row, so that what is left of it is not lost when the nearest key is far."""
        s, tau = self.s[:, None], self.tau[None, :]
        penalty, share = self.mask.penalty(s, tau), self.mask.share(s, tau)
        factor = self.mask.visible(s, tau).astype(self.s.dtype) if share is None else share
        factor = jnp.where(massive[None], factor, 0)
        if penalty is None:
            return factor, jnp.zeros_like(self.s)
        some = factor > 0
        level = jax.lax.stop_gradient(jnp.max(jnp.where(some, penalty, -jnp.inf), axis=1))
        level = jnp.where(jnp.isfinite(level), level, 0)
        return jnp.where(some, factor * jnp.exp(jnp.where(some, penalty - level[:, None], 0)), 0), level


def lowest(dtype: Any) -> Any:
    """The logit of a key that is not there: far below all others, and finite so that products with zero stay zero."""
    return -jnp.finfo(dtype).max / 8


def _boolean(matrix: Any) -> Array:
    """A mask matrix of zeros and ones as one of false and true; anything else is named."""
    if not known(matrix):
        found = jnp.asarray(matrix)
        if found.dtype != bool:
            raise ValueError(f"inside jit and grad a mask matrix must be boolean, got {found.dtype}; give matrix == 1")
        return _square(found)
    try:
        host = np.asarray(matrix)
    except ValueError:
        raise ValueError("a mask matrix must be square [n, n], got rows of different lengths") from None
    _square(host)
    if host.dtype != bool:
        if not (jnp.issubdtype(host.dtype, jnp.floating) or jnp.issubdtype(host.dtype, jnp.integer)):
            raise ValueError(f"a mask matrix must hold true and false, or 1 and 0, got dtype {host.dtype}")
        host = host.astype(np.float64)
    if (wrong := (host != 0) & (host != 1)).any():
        if ((host == 0) | (host <= _HIDDEN)).all():
            raise ValueError(f"a mask matrix must be 1 where a key is seen, got an additive mask of 0 and {host.min():g}; give mask == 0")
        i, j = np.argwhere(wrong)[0]
        raise ValueError(
            f"a mask matrix must hold true and false, or 1 and 0, got {host[i, j]:g} at [{i}, {j}]; for what is added to logits there "
            "is ALiBi(slope)"
        )
    return array(host.astype(bool))


def _square(matrix: Any) -> Any:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"a mask matrix must be square [n, n], got {list(matrix.shape)}")
    return matrix
