"""Engines that evaluate all pairs of queries and keys, exact up to round-off.

A reduction has a running value for each query. It is folded over tiles of keys: `step(value, query_rows, key_rows, seen)` takes in a tile.
`Dense` takes all pairs as one tile; `Streamed` splits both sides, so that memory stays O(n), for values and for derivatives.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow.sums import native
from attnflow.sums.engines import reductions
from attnflow.sums.engines.base import Engine, Kernel, LogSumsAndMeans
from attnflow.sums.mask import Sight
from attnflow.sums.rows import Pairs, Rows

# Up to this many pairs (n = 1448, 16 MB in float64) one pass and tiles take the same time; at four times that, tiles take about half.
DENSE_PAIRS = 2**21
# A pytree of arrays whose first axis is that of queries, or of keys.
Tree: TypeAlias = Any


class Tiled(Engine):
    """Evaluates a fold over all pairs, with logits of squared distances from differences."""

    differences = True

    def rows(self, pairs: Pairs, center: Float[Array, " d"] | None = None) -> Rows:
        return pairs.by_differences(self.center(pairs.atoms.points) if center is None else center)

    def softmax(self, rows: Rows, values: Float[Array, "n e"] | None = None, with_mean: bool = True) -> LogSumsAndMeans:
        v = rows.k if values is None else values
        log_sum, mean = reductions.softmax(self, rows.weighted(), v if with_mean else v[:, :0])
        return log_sum, mean if with_mean else None

    def pointwise(self, kernel: Kernel, rows: Rows, values: Float[Array, "n e"]) -> Float[Array, "m e"]:
        return reductions.pointwise(self, kernel, rows._replace(log_weights=None), values)

    def largest(self, rows: Rows) -> Float[Array, " m"]:
        return reductions.largest(self, rows.massive())

    @abc.abstractmethod
    def fold(self, step: Callable, start: Callable, queries: Tree, keys: Tree, empty: Tree, sight: Sight | None = None) -> Tree:
        """`step(value, query_rows, key_rows, seen)` folded over the key rows, for every query row.

        - `start(query_rows)` is the value before any key.
        - `queries`, `keys` are pytrees of arrays with the axis of rows first.
        - `empty` has the structure of `keys`: what pads the rows of the last tile. It must leave every value as it is.
        - `sight` is a mask with the orders of queries and keys; `seen` is that of the tile, `None` if all of it is seen.
        """


class Dense(Tiled):
    r"""All pairs at once: the fastest for a few thousand tokens, with an $m \times n$ array in memory."""

    stackable = True

    def fold(self, step: Callable, start: Callable, queries: Tree, keys: Tree, empty: Tree, sight: Sight | None = None) -> Tree:
        return step(start(queries), queries, keys, sight)


class Streamed(Tiled):
    """Tiles of queries × keys, with a running value: $O(n)$ memory for any $n$, in any dimension.

    Derivatives recompute each tile instead of storing it. Tiles that a mask hides entirely are skipped, which pays if tokens are sorted by
    order.

    **Arguments:** `queries` and `keys`, the largest numbers of either in a tile. `native`: whether softmax, without a mask or causal, runs
    in the compiled kernel, which has tiles of its own; `None` if that is available, `True` to insist on it.
    """

    # Of 1024, 2048, 4096 queries by 512, 1024 keys this is the fastest, or within 12 % of it, for d = 2 to 256 in both precisions: a few
    # megabytes, large enough for the matrix product, small enough for the cache.
    queries: int = eqx.field(static=True, default=2048)
    keys: int = eqx.field(static=True, default=512)
    native: bool | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        check.count("queries", self.queries)
        check.count("keys", self.keys)
        if self.native is not None:
            check.flag("native", self.native)
        if self.native and not native.available():
            raise ValueError(f"native=True needs the compiled kernel: {native.status().why}")

    def decided(self) -> "Streamed":
        return self if self.native is not None else dataclasses.replace(self, native=native.available())

    def fold(self, step: Callable, start: Callable, queries: Tree, keys: Tree, empty: Tree, sight: Sight | None = None) -> Tree:
        m = jax.tree.leaves(queries)[0].shape[0]
        query_tiles = jax.tree.map(lambda rows: _tiles(rows, self.queries, 0), queries)
        key_tiles = jax.tree.map(lambda rows, fill: _tiles(rows, self.keys, fill), keys, empty)
        mask, s_tiles, tau_tiles = None, None, None
        if sight is not None:
            mask, s_tiles, tau_tiles = sight.mask, _tiles(sight.s, self.queries), _tiles(sight.tau, self.keys)

        @jax.checkpoint
        def over_keys(query_tile: tuple[Tree, Array | None]) -> Tree:
            query_rows, s = query_tile

            @jax.checkpoint
            def body(value: Tree, key_tile: tuple[Tree, Array | None]) -> tuple[Tree, None]:
                key_rows, tau = key_tile
                if mask is None or s is None or tau is None:
                    return step(value, query_rows, key_rows, None), None
                nothing, everything = mask.tile((s.min(), s.max()), (tau.min(), tau.max()))
                seen = Sight(mask, s, tau)
                branches = (
                    lambda: value,
                    lambda: step(value, query_rows, key_rows, seen),
                    lambda: step(value, query_rows, key_rows, None),
                )
                return jax.lax.switch(jnp.where(nothing, 0, jnp.where(everything, 2, 1)), branches), None

            return jax.lax.scan(body, start(query_rows), (key_tiles, tau_tiles))[0]

        values = jax.lax.map(over_keys, (query_tiles, s_tiles))
        return jax.tree.map(lambda v: v.reshape(v.shape[0] * v.shape[1], *v.shape[2:])[:m], values)


def over_pairs(queries: int, keys: int) -> Tiled:
    """The faster engine over all pairs of this number of `queries` and `keys`."""
    return Dense() if queries * keys <= DENSE_PAIRS else Streamed().decided()


def _tiles(rows: Array, most: int, fill: float | int | None = None) -> Array:
    """`[n, ...]` split to `[tiles, size, ...]`: as few tiles of at most `most` rows as possible, of equal size, the last one padded with
    `fill`, or without it with its last row."""
    count = -(-len(rows) // most)
    size = -(-len(rows) // count)
    room = [(0, count * size - len(rows))] + [(0, 0)] * (rows.ndim - 1)
    padded = jnp.pad(rows, room, mode="edge") if fill is None else jnp.pad(rows, room, constant_values=fill)
    return padded.reshape(count, size, *rows.shape[1:])
