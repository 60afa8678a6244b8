"""A density: the masses of the cells of a grid."""

import math
from collections.abc import Callable
from typing import Any, cast

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import ArrayLike, PyTree, RowFunction, Scalar
from attnflow.measures.flowing import AttentionLike, Drift, Frame, LawLike, Noise
from attnflow.measures.grid.axes import axes_from, axes_to
from attnflow.measures.grid.cells import Cells
from attnflow.measures.grid.deposit import check_inside, deposited, masses, values_at
from attnflow.measures.grid.intervals import Order
from attnflow.measures.grid.mesh import AxesLike, Mesh, mesh
from attnflow.measures.grid.upwind import Courant, Transported, Upwind
from attnflow.measures.grid.volumes import face_velocity, outflow, transport
from attnflow.measures.particles import Particles
from attnflow.measures.velocity import Velocity, moved
from attnflow.numerics.arrays import known
from attnflow.sums import Atoms, InCells, Lattice, Mask


class Grid(Cells):
    """A probability density on cells, moved by finite volumes: mass is kept to round-off and never negative, the error is of second order
    in the width of a cell.

    **Arguments:**

    - `density`: one number per cell, `[*cells]`, of total mass 1; per length, area, arc length or surface area.
    - `axes`: `[Interval(low, high, cells)]` or two of them, `[Circle(cells)]`, `[Icosphere(frequency)]` for $S^2$, `[Zonal(dim, cells)]`
      for densities on $S^{d-1}$ symmetric about the first axis, `[Order(cells, length), Interval(...)]` for masked laws of tokens on the
      line.

    `points [n, d]` are the middles of the cells, `mass [*cells]` is the state.
    """

    mass: Float[Array, "..."]
    mesh: Mesh

    def __init__(self, density: ArrayLike, axes: AxesLike):
        self.mesh = mesh(axes)
        self.mass = masses(density, self.mesh)

    @classmethod
    def from_density(cls, fn: Callable[..., Array], axes: AxesLike, *, normalize: bool = False) -> "Grid":
        """The density `fn` at the middles of the cells.

        **Arguments:**

        - `fn`: a function of points, `[n, d]` to `[n]`, or of the angle on a `Circle` and the coordinate on an `Interval`, `[n]` to `[n]`
          (of two coordinates in the plane); whichever it is, is seen from what it gives. With an `Order` axis it has the order as one more
          argument: `fn(points, order)` or `fn(x, order)`.
        - `normalize`: divide by the total mass. Without it a density of another mass than 1 is refused.
        """
        where = mesh(axes)
        values = values_at(fn, where, check.flag("normalize", normalize))
        return cls(values.reshape(where.shape), where)

    @classmethod
    def uniform(cls, axes: AxesLike) -> "Grid":
        """The uniform density."""
        where = mesh(axes)
        return cls(np.full(where.shape, 1 / np.sum(np.asarray(where.volumes))), where)

    @classmethod
    def deposit(cls, mu: Particles, axes: AxesLike) -> "Grid":
        """A cloud of tokens on a grid: each gives its mass to the nearest cells, so that mass and mean are kept (on an `Icosphere`: to
        the nearest cell)."""
        mu = check.measure("mu", mu, Particles, "Particles")
        where = mesh(axes)
        blank = cls.uniform(where)
        if mu.space != where.space or mu.dim != blank.dim:
            raise ValueError(f"this grid takes tokens of R^{blank.dim} on {where.space}, got tokens of R^{mu.dim} on {mu.space}")
        order = mu.sequence.astype(blank.dtype) if where.order is not None else None
        check_inside(where, mu.points, order)
        weights = jnp.exp(mu.log_weights).astype(blank.dtype)
        return blank.with_state(deposited(where, mu.points.astype(blank.dtype), weights, order))

    @property
    def sequence(self) -> Float[Array, " n"]:
        """The order of the tokens in each cell."""
        if self.mesh.order is None:
            raise ValueError("a mask needs the order of tokens, got a grid without; make it over [af.Order(cells), af.Interval(...)]")
        return self.mesh.order

    def around(self, average: Velocity) -> Velocity:
        """An average over the `atoms`, at any query: as it is, except on a `Zonal` axis."""
        return self.axes[0].around(average)

    @property
    def lattice(self) -> Lattice | None:
        """The engine for sums over cells that are regular; `None` if they are not."""
        if not all(axis.regular for axis in self.axes):
            return None
        return Lattice(self.mesh.shape, self.axes[0].periodic, not self.axes[0].moves)

    def atoms(self, mask: Mask | None = None, ordered: bool = False) -> Atoms:
        """The cells as the keys of a sum, on a `Zonal` axis points around each band as a query on the meridian sees them: with their order
        if that is asked for, or under a mask, which may see a part of a cell of order."""
        if mask is None:
            return Atoms(*self.axes[0].keys(self.points, self.log_weights), order=self.sequence if ordered else None, engine=self.lattice)
        self._check_mask(mask)
        order, axis = self.sequence, cast(Order, self.order_axis)
        mask.check_unit(axis.length)
        return Atoms(self.points, self.log_weights, order, InCells(cast(Any, mask), axis.width), self.lattice)

    @property
    def order_axis(self) -> Order | None:
        """The axis of the order of tokens; `None` if there is none."""
        return None if self.axes[0].moves else cast(Order, self.axes[0])

    def check_law(self, law: AttentionLike) -> None:
        """Raise if the grid cannot carry a law: a mask matrix, a law that breaks the symmetry, a kernel narrower than a cell."""
        self._check_mask(law.mask)
        self.check_symmetry(law)
        if known(law.logit, law.value):
            self.check_resolution(float(np.linalg.norm(np.asarray(law.logit.form.A, dtype=np.float64), 2)))

    def check_symmetry(self, law: LawLike) -> None:
        """Raise if a zonal density would not stay one under a law."""
        self.axes[0].check_law(law)

    @staticmethod
    def _check_mask(mask: Mask | None) -> None:
        if mask is not None and mask.by_rows:
            raise ValueError("a mask matrix is for tokens, got a Grid; use Causal, Window or ALiBi on [af.Order(cells), af.Interval(...)]")

    @property
    def sharpest(self) -> float:
        """The largest sharpness of a kernel that its cells, and the rule around its bands, resolve."""
        return min(limit.gap**-2 for axis in self.axes for limit in axis.resolution)

    def check_resolution(self, sharpness: float) -> None:
        """Raise if a kernel of width $k^{-1/2}$, $k$ the `sharpness`, is narrower than a cell, or than the gaps of the rule around a
        band."""
        for gap, what, unit, number in (limit for axis in self.axes for limit in axis.resolution):
            if gap**2 * sharpness > 1:
                due = f"the axis needs at least {unit.format(math.ceil(number * gap * math.sqrt(sharpness)))}, got {number}"
                raise ValueError(f"{what} is wider than the kernel, whose width is {1 / math.sqrt(sharpness):.3g}: {due}")

    @property
    def state(self) -> Float[Array, "..."]:
        return self.mass

    def with_state(self, state: Float[Array, "..."]) -> "Grid":
        return eqx.tree_at(lambda mu: mu.mass, self, state)

    def rate(self, velocity: Velocity | RowFunction) -> Float[Array, "..."]:
        return transport(self.mesh, self.weights, self.face_velocity(velocity)).reshape(self.mesh.shape)

    def face_velocity(self, velocity: Velocity | RowFunction) -> Float[Array, " f"]:
        """The speed across each face."""
        return face_velocity(self.mesh, self._apply(velocity))

    def push(self, map: Velocity | RowFunction) -> "Grid":
        """Every cell's mass goes where the map takes its middle, shared among the cells there; what would pass a wall stays in front of
        it. On intervals and circles."""
        moved = self._apply(map)
        if self.axes[-1].coordinate is None:
            raise ValueError(
                f"a map pushes a grid over intervals or the circle, got {type(self.axes[0]).__name__}; push .particles() instead"
            )
        return self.with_state(deposited(self.mesh, self.space.nearest(moved), self.weights, self.mesh.order))

    def _apply(self, map: Velocity | RowFunction) -> Float[Array, "n d"]:
        return moved(map, self.points, self.mesh.order)

    def retract(self, state: Float[Array, "..."]) -> Float[Array, "..."]:
        return state

    @staticmethod
    def error_norm(scaled_error: Float[Array, "..."]) -> Float[Array, ""]:
        return jnp.max(jnp.abs(scaled_error))

    def motion(self, velocity: Drift, noise: Noise | None = None) -> Transported:
        def rate(t: Scalar, mass: Array) -> tuple[Array, Array]:
            mu = self.with_state(mass)
            speed = mu.face_velocity(velocity(mu, t))
            return transport(mu.mesh, mu.weights, speed).reshape(mu.mesh.shape), outflow(mu.mesh, speed)

        return Transported(rate)

    def default_solver(self, noise: Noise | None = None) -> Upwind:
        return Upwind(self.mesh, None if noise is None else noise.sigma.astype(self.dtype) ** 2 / 2)

    def own_steps(self, longest: Scalar) -> Courant:
        return Courant(jnp.asarray(longest))

    @property
    def bounded(self) -> bool:
        return True

    def frame(self, states: PyTree) -> Frame:
        return {"mass": (("time", *self.axis_names), states)}

    @property
    def axis_names(self) -> tuple[str, ...]:
        names: list[str] = []
        for axis in self.axes:
            names.append(next(name for name in axis.names if name not in names))
        return tuple(names)

    @property
    def about(self) -> dict[str, Any]:
        return super().about | {"axes": axes_to(self.axes)}

    @classmethod
    def from_frame(cls, about: dict[str, Any], variables: dict[str, Any]) -> "Grid":
        return cls.uniform(axes_from(about["axes"])).with_state(jnp.asarray(variables["mass"][0]))
