"""Masks: which keys a query sees, by the order of tokens in their sequence. Orders are any finite numbers, which never change.

By default tokens are at the positions 0, 1, ..., n - 1, integers that are compared without round-off. Under a causal mask a token at s sees
those at tau <= s, itself included (the masked mean field of arXiv:2501.18322: order is a coordinate of the measure).
"""

import abc
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from attnflow._types import ArrayLike, Scalar
from attnflow.numerics.arrays import array, known, positive

# Additive masks hide a key by minus infinity, or by a number so low that no logit makes up for it.
_HIDDEN = -1e3


class Mask(eqx.Module):
    """What queries at the orders `s` see of keys at the orders `tau`.

    A mask of your own implements `visible`, made of `jax.numpy`; its numbers are fields that are arrays. All else has a default: `tile`
    lets streamed sums skip what is hidden, `penalty` is added to the logits, `reach` is needed on a `Grid`, `share` where keys are seen in
    part, and the checks refuse tokens that the mask is not for.
    """

    causal: ClassVar[bool] = False
    """Whether it is `tau <= s` and nothing more, for which some sums have a faster form."""
    by_rows: ClassVar[bool] = False
    """Whether it goes by the rows of tokens, not by their order."""

    @abc.abstractmethod
    def visible(self, s: Float[Array, "m 1"], tau: Float[Array, "1 n"]) -> Bool[Array, "m n"]:
        """Whether the query sees the key."""

    def tile(self, s: tuple[Array, Array], tau: tuple[Array, Array]) -> tuple[Array, Array]:
        """For a tile of queries and keys with orders from `s[0]` to `s[1]` and from `tau[0]` to `tau[1]`: whether nothing in it is seen,
        and whether everything is seen and nothing is added. Two times false, the default, is always right and skips nothing."""
        return jnp.array(False), jnp.array(False)

    def reach(self, s: Float[Array, "m 1"]) -> tuple[Float[Array, "m 1"], Float[Array, "m 1"]]:
        """The first and the last order that a query sees, if it sees all between them. Orders begin at 0."""
        raise ValueError(f"on a Grid a mask says how far queries see, got {type(self).__name__} without a method reach(s); use tokens")

    def penalty(self, s: Float[Array, "m 1"], tau: Float[Array, "1 n"]) -> Float[Array, "m n"] | None:
        """What is added to the logits of keys that are seen; `None` for nothing."""
        return None

    def share(self, s: Float[Array, "m 1"], tau: Float[Array, "1 n"]) -> Float[Array, "m n"] | None:
        """The part of the key's mass that the query sees; `None` for all of it."""
        return None

    def sight(self, s: Float[Array, " m"] | None, tau: Float[Array, " n"] | None, queries: int, keys: int) -> "Sight":
        """The mask with the orders of its `queries` and `keys`, so many of each."""
        if s is None or tau is None:
            raise ValueError("a masked law needs the order of the queries, got none; call velocity(x, order)")
        return Sight(self, s, tau)

    def check_count(self, keys: int) -> None:
        """Raise if the mask is not for this number of tokens."""

    def check_unit(self, length: float | int | None) -> None:
        """Raise if the numbers of the mask cannot be in the unit of the order: that of tokens at the positions 0, 1, ..., n - 1, if
        `length` is `None`, else that of cells that fill `[0, length]`."""


class Past(Mask):
    r"""Tokens see the past and themselves: $\tau \le s$. What is added to the logits is left to subclasses."""

    def visible(self, s: Float[Array, "m 1"], tau: Float[Array, "1 n"]) -> Bool[Array, "m n"]:
        return tau <= s

    def reach(self, s: Float[Array, "m 1"]) -> tuple[Float[Array, "m 1"], Float[Array, "m 1"]]:
        return jnp.zeros_like(s), s


class Causal(Past):
    r"""Tokens see the past and themselves: $\tau \le s$."""

    causal = True

    def tile(self, s: tuple[Array, Array], tau: tuple[Array, Array]) -> tuple[Array, Array]:
        return tau[0] > s[1], tau[1] <= s[0]


class Window(Mask):
    r"""Tokens see the recent past and themselves: $s - w < \tau \le s$, $w$ the `width`.

    At positions 0, 1, ... `Window(3)` sees three tokens, itself and the two before it.
    """

    width: Float[Array, ""]

    def __init__(self, width: Scalar):
        self.width = positive("width", width)

    def visible(self, s: Float[Array, "m 1"], tau: Float[Array, "1 n"]) -> Bool[Array, "m n"]:
        return (tau <= s) & (s - tau < self.width)

    def reach(self, s: Float[Array, "m 1"]) -> tuple[Float[Array, "m 1"], Float[Array, "m 1"]]:
        return s - self.width, s

    def tile(self, s: tuple[Array, Array], tau: tuple[Array, Array]) -> tuple[Array, Array]:
        # The same differences as in `visible`, and rounding is monotone: a tile agrees with its pairs.
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


class ALiBi(Past):
    r"""Tokens see the past and themselves, with a logit that falls with distance: $-\lambda (s - \tau)$, $\lambda$ the `slope` (Press et
    al. 2022, arXiv:2108.12409).

    At positions 0, 1, ... the slope is per token, as in that paper; at `order="fraction"` it is over the whole sequence.
    """

    slope: Float[Array, ""]

    def __init__(self, slope: Scalar):
        self.slope = positive("slope", slope)

    def tile(self, s: tuple[Array, Array], tau: tuple[Array, Array]) -> tuple[Array, Array]:
        return tau[0] > s[1], jnp.array(False)

    def penalty(self, s: Float[Array, "m 1"], tau: Float[Array, "1 n"]) -> Float[Array, "m n"]:
        return -self.slope * (s - tau)


class Explicit(Mask):
    """A matrix `[n, n]` that says which of the $n$ tokens of a cloud each of them sees, a row per query.

    True or 1 is seen, false or 0 is not. For an additive mask, of 0 and minus infinity, give `mask == 0`.
    """

    matrix: Bool[Array, "n n"]

    by_rows = True

    def __init__(self, matrix: ArrayLike):
        self.matrix = _boolean(matrix)
        if known(self.matrix) and not np.asarray(self.matrix).any(axis=1).all():
            row = int(np.asarray(self.matrix).any(axis=1).argmin())
            raise ValueError(
                f"every token must see at least one, got an empty row {row} in the mask matrix; 1 is seen, and for an additive mask give "
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


class InCells(Mask):
    """A mask over keys that fill cells of order, as those of a grid do: a query sees the part of a cell that it reaches.

    A query in the middle of its cell sees half of it, which makes the integral over what it sees second-order accurate in the width of the
    cells; with whole cells it would reach half a cell too far, and the integral would be first-order accurate.
    """

    mask: Mask
    width: float = eqx.field(static=True)

    def visible(self, s: Float[Array, "m 1"], tau: Float[Array, "1 n"]) -> Bool[Array, "m n"]:
        return self.share(s, tau) > 0

    def tile(self, s: tuple[Array, Array], tau: tuple[Array, Array]) -> tuple[Array, Array]:
        return self.mask.tile(s, (tau[0] - self.width / 2, tau[1] + self.width / 2))

    def penalty(self, s: Float[Array, "m 1"], tau: Float[Array, "1 n"]) -> Float[Array, "m n"] | None:
        return self.mask.penalty(s, tau)

    def share(self, s: Float[Array, "m 1"], tau: Float[Array, "1 n"]) -> Float[Array, "m n"]:
        first, last = self.mask.reach(s)
        # Order begins at 0. A query there sees the very beginning of the first cell, so that its average is the limit.
        last = jnp.maximum(last, 1e-6 * self.width)
        seen = jnp.minimum(tau + self.width / 2, last) - jnp.maximum(tau - self.width / 2, first)
        return jnp.clip(seen / self.width, 0, 1)


class Sight(NamedTuple):
    """A mask with the orders of the queries, `s [m]`, and of the keys, `tau [n]`."""

    mask: Mask
    s: Float[Array, " m"]
    tau: Float[Array, " n"]

    def apply(self, logits: Float[Array, "m n"]) -> Float[Array, "m n"]:
        """The logits with the penalty of the mask; those of hidden keys are lower than any other, but finite."""
        s, tau = self.s[:, None], self.tau[None, :]
        penalty = self.mask.penalty(s, tau)
        logits = logits if penalty is None else logits + penalty.astype(logits.dtype)
        return jnp.where(self.mask.visible(s, tau), logits, lowest(logits.dtype))

    def share(self) -> Float[Array, "m n"] | None:
        """The part of each key that is seen; `None` if keys are seen whole or not at all."""
        return self.mask.share(self.s[:, None], self.tau[None, :])

    def weights(self, massive: Bool[Array, " n"]) -> tuple[Float[Array, "m n"], Float[Array, " m"]]:
        """The factor `factor_ij e^{level_i}` by which the mask multiplies `e^logit`, zero for keys that are not `massive`. The level is the
        largest penalty of a row, so that the factors do not underflow when the nearest key is far."""
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


def lowest(dtype: np.dtype) -> np.floating:
    """The logit of a key that is hidden or missing: far below all others, and finite so that products with zero stay zero."""
    return -jnp.finfo(dtype).max / 8


def _boolean(matrix: ArrayLike) -> Array:
    """A mask matrix of zeros and ones as one of false and true; anything else is refused."""
    if not known(matrix):
        found = jnp.asarray(matrix)
        if found.dtype != bool:
            raise ValueError(f"inside jit and grad a mask matrix must be boolean, got {found.dtype}; give matrix == 1")
        _square(found)
        return found
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


def _square(matrix: Array | np.ndarray) -> None:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"a mask matrix must be square [n, n], got {list(matrix.shape)}")
