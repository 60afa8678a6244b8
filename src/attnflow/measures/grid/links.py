"""Which cells lie around a face, and which faces around a cell: by slices where cells are regular, by lists where they are not.

A face lies between the cells `left` and `right`; `behind` and `ahead` are the next cells on the same line, from which the slope of a
density is found. Beyond the last cell before a wall comes the cell itself.
"""

import abc
import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


class Links(eqx.Module):
    """Which cells and faces are neighbors."""

    @abc.abstractmethod
    def around(self, values: Float[Array, "n ..."]) -> tuple[Array, Array, Array, Array]:
        """The values of the cells behind, left, right and ahead of each face, `[f, ...]`."""

    @abc.abstractmethod
    def collect(self, left: Float[Array, " f"], right: Float[Array, " f"]) -> Float[Array, " n"]:
        """For each cell the sum of what each of its faces gives to its left cell or to its right one."""

    def sides(self, values: Float[Array, "n ..."]) -> tuple[Array, Array]:
        """The values of the cells left and right of each face."""
        return self.around(values)[1:3]

    def gather(self, flux: Float[Array, " f"]) -> Float[Array, " n"]:
        """What flows into each cell: every face gives to one side what it takes from the other."""
        return self.collect(-flux, flux)


class Rows(Links):
    """Rows of cells along each of the `moving` axes of a box: the faces across the first of them, then the next.

    A row of n cells has n + 1 faces, with face i in front of cell i; then everything is a slice. A face in a wall has no area. On a
    `circle` the last face is the first one again.
    """

    shape: tuple[int, ...] = eqx.field(static=True)
    moving: tuple[int, ...] = eqx.field(static=True)
    circle: bool = eqx.field(static=True, default=False)

    def around(self, values: Float[Array, "n ..."]) -> tuple[Array, Array, Array, Array]:
        found = []
        for a in self.moving:
            along = jnp.moveaxis(values.reshape(*self.shape, *values.shape[1:]), a, 0)
            first, last = (along[-2:], along[:2]) if self.circle else (jnp.stack([along[0]] * 2), jnp.stack([along[-1]] * 2))
            padded = jnp.concatenate([first, along, last])
            found.append([padded[i : i + self.shape[a] + 1].reshape(-1, *values.shape[1:]) for i in range(4)])
        behind, left, right, ahead = (jnp.concatenate([parts[i] for parts in found]) for i in range(4))
        return behind, left, right, ahead

    def collect(self, left: Float[Array, " f"], right: Float[Array, " f"]) -> Float[Array, " n"]:
        total, start = None, 0
        for a in self.moving:
            rest = self.shape[:a] + self.shape[a + 1 :]
            stop = start + (self.shape[a] + 1) * math.prod(rest)
            give, take = (part[start:stop].reshape(-1, *rest) for part in (left, right))
            here = jnp.moveaxis(give[1:] + take[:-1], 0, a)
            total, start = here if total is None else total + here, stop
        return jnp.asarray(total).reshape(-1)


class Listed(Links):
    """Any cells. `lines [f, 4]`: the cells behind, left, right and ahead of each face; `faces [n, k]`: the faces of each cell, with `signs`
    1 where it is on the right, -1 on the left, 0 for none."""

    lines: Int[Array, "f 4"]
    faces: Int[Array, "n k"]
    signs: Int[Array, "n k"]

    def around(self, values: Float[Array, "n ..."]) -> tuple[Array, Array, Array, Array]:
        behind, left, right, ahead = values[self.lines.T]
        return behind, left, right, ahead

    def sides(self, values: Float[Array, "n ..."]) -> tuple[Array, Array]:
        return values[self.lines[:, 1]], values[self.lines[:, 2]]

    def collect(self, left: Float[Array, " f"], right: Float[Array, " f"]) -> Float[Array, " n"]:
        given = jnp.where(self.signs > 0, right[self.faces], jnp.where(self.signs < 0, left[self.faces], 0))
        return jnp.sum(given, axis=1)


def listed(lines: np.ndarray, cells: int) -> Listed:
    """The links of cells given by the lines of their faces."""
    f = len(lines)
    sides = np.concatenate([lines[:, 1], lines[:, 2]])
    rank = np.argsort(sides, kind="stable")
    most = np.bincount(sides, minlength=cells)
    place = np.arange(2 * f) - np.repeat(np.cumsum(most) - most, most)
    faces, signs = np.zeros((cells, most.max()), np.int32), np.zeros((cells, most.max()), np.int8)
    faces[sides[rank], place] = rank % f
    signs[sides[rank], place] = np.where(rank < f, -1, 1)
    return Listed(jnp.asarray(lines, jnp.int32), jnp.asarray(faces), jnp.asarray(signs))
