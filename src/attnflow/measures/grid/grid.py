"""A density: the masses of the cells of a grid."""

import math
from collections.abc import Callable
from typing import Any, cast

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from attnflow import _check as check
from attnflow.measures.base import FlowingMeasure, Noise, moved, values_of
from attnflow.measures.grid.axes import Axis, axes_from, axes_to
from attnflow.measures.grid.deposit import check_inside, deposited, masses, quantiles, sampled, values_at
from attnflow.measures.grid.intervals import Order
from attnflow.measures.grid.mesh import Mesh, mesh
from attnflow.measures.grid.upwind import Courant, Transported, Upwind
from attnflow.measures.grid.volumes import face_velocity, outflow, transport
from attnflow.measures.line import Histogram, Tokens
from attnflow.measures.particles import Particles
from attnflow.measures.velocity import Velocity
from attnflow.numerics.arrays import known, one_program
from attnflow.spaces import Space
from attnflow.sums import Atoms, InCells, Lattice


class Grid(FlowingMeasure):
    """A probability density on cells, moved by finite volumes: mass to round-off, never negative, second order in the cell.

    **Arguments:**

    - `density`: one number a cell, `[*cells]`, of total mass 1; by length, area, arc length or surface area.
    - `axes`: `[Interval(low, high, cells)]` or two of them, `[Circle(cells)]`, `[Icosphere(frequency)]` for $S^2$, `[Zonal(dim, cells)]`
      for laws on $S^{d-1}$ symmetric about the first axis, `[Order(cells, length), Interval(...)]` for masked laws of tokens on the line.

    `points [n, d]` are the middles of the cells, `mass [*cells]` is the state.
    """

    discrete = True

    mass: Float[Array, "..."]
    mesh: Mesh

    def __init__(self, density: Any, axes: Any):
        self.mesh = axes if isinstance(axes, Mesh) else mesh(axes)
        self.mass = masses(density, self.mesh)

    @classmethod
    def from_density(cls, fn: Callable, axes: Any, normalize: bool = False) -> "Grid":
        """The density `fn` at the middles of the cells.

        **Arguments:**

        - `fn`: a function of points, `[n, d]` to `[n]`, or of the angle on a `Circle` and the coordinate on an `Interval`, `[n]` to `[n]`
          (of two coordinates in the plane); whichever it is, is seen from what it gives. With an `Order` axis it has the order as one more
          argument: `fn(points, order)` or `fn(x, order)`.
        - `normalize`: divide by the total mass. Without it a density of another mass than 1 is refused.
        """
        where = axes if isinstance(axes, Mesh) else mesh(axes)
        check.flag("normalize", normalize)
        values = values_at(fn, where, normalize)
        return cls(values.reshape(where.shape), where)

    @classmethod
    def uniform(cls, axes: Any) -> "Grid":
        """The uniform law."""
        where = axes if isinstance(axes, Mesh) else mesh(axes)
        return cls(np.full(where.shape, 1 / np.sum(np.asarray(where.volumes))), where)

    @classmethod
    def deposit(cls, mu: Particles, axes: Any) -> "Grid":
        """A cloud of tokens on a grid: each gives its mass to the nearest cells, so that mass and mean are kept (on an `Icosphere`: to
        the nearest cell)."""
        mu = check.measure("mu", mu, Particles, "Particles")
        where = axes if isinstance(axes, Mesh) else mesh(axes)
        blank = cls.uniform(where)
        if mu.space != where.space or mu.dim != blank.dim:
            raise ValueError(f"this grid takes tokens of R^{blank.dim} on {where.space}, got tokens of R^{mu.dim} on {mu.space}")
        order = mu.sequence.astype(blank.dtype) if where.order is not None else None
        check_inside(where, mu.points, order)
        weights = jnp.exp(mu.log_weights).astype(blank.dtype)
        return blank.with_state(deposited(where, mu.points.astype(blank.dtype), weights, order))

    @property
    def space(self) -> Space:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.mesh.space

    @property
    def axes(self) -> tuple[Axis, ...]:
        return self.mesh.axes

    @property
    def points(self) -> Float[Array, "n d"]:
        """The middles of the cells, row by row."""
        return self.mesh.points

    @property
    def density(self) -> Float[Array, "..."]:
        """Mass by volume in every cell."""
        return self.mass / self.mesh.volumes.reshape(self.mesh.shape)

    @property
    def weights(self) -> Float[Array, " n"]:
        """The masses of the cells, row by row."""
        return self.mass.reshape(-1)

    @property
    @one_program
    def log_weights(self) -> Float[Array, " n"]:
        r"""$\log$ of the mass, minus infinity for an empty cell."""
        some = self.weights > 0
        return jnp.where(some, jnp.log(jnp.where(some, self.weights, 1)), -jnp.inf)

    @property
    def sequence(self) -> Float[Array, " n"]:
        """The order of the tokens in each cell."""
        if self.mesh.order is None:
            raise ValueError("a mask needs the order of tokens, got a grid without; make it over [af.Order(cells), af.Interval(...)]")
        return self.mesh.order

    @property
    def dim(self) -> int:
        return self.points.shape[1]

    @property
    @one_program
    def mean(self) -> Float[Array, " d"]:
        return self.axes[0].symmetric(self.weights @ self.points)

    @property
    @one_program
    def cov(self) -> Float[Array, "d d"]:
        centerd = self.points - self.mean[None]
        return self.axes[0].symmetric(centerd.T @ (centerd * self.weights[:, None]))

    def integrate(self, f: Callable[[Float[Array, "n d"]], Float[Array, "n ..."]]) -> Float[Array, "..."]:
        r"""$\int f \,d\mu$, by its values at the middles of the cells; on a `Zonal` axis for functions of $x_1$ alone."""
        return jnp.tensordot(self.weights, values_of(f, self.points), axes=1)

    @property
    def keys(self) -> tuple[Float[Array, "k d"], Float[Array, " k"]]:
        """The grid as weighted points for an integral over it: its cells; on a `Zonal` axis points around each band, as a query on the
        meridian sees them."""
        return self.axes[0].keys(self.points, self.log_weights)

    def around(self, average: Velocity) -> Velocity:
        """An average over the `keys`, at any query: as it is, except on a `Zonal` axis."""
        return self.axes[0].around(average)

    @property
    def lattice(self) -> Lattice | None:
        """The engine for sums over cells that are regular; `None` if they are not."""
        if not all(axis.regular for axis in self.axes):
            return None
        return Lattice(self.mesh.shape, self.axes[0].periodic, not self.axes[0].moves)

    def atoms(self, mask: Any = None, ordered: bool = False) -> Atoms:
        """The grid as the keys of a sum: with their order if it is asked for, or under a mask, which sees cells of order in part."""
        if mask is None:
            return Atoms(*self.keys, order=self.sequence if ordered else None, engine=self.lattice)
        self._check_mask(mask)
        order, axis = self.sequence, cast(Order, self.order_axis)
        mask.check_unit(axis.length)
        return Atoms(self.points, self.log_weights, order, InCells(mask, axis.width), self.lattice)

    @property
    def order_axis(self) -> Order | None:
        """The axis of the order of tokens; `None` if there is none."""
        return None if self.axes[0].moves else cast(Order, self.axes[0])

    def check_order(self, order: Float[Array, " m"]) -> None:
        """Raise if the order of queries lies outside that of the grid."""
        if self.order_axis is not None:
            self.order_axis.check(order)

    def check_law(self, law: Any) -> None:
        """Raise if the grid cannot carry a law: a mask matrix, a law that breaks the symmetry, a kernel narrower than a cell."""
        self._check_mask(law.mask)
        self.check_symmetry(law)
        if known(law.logit, law.value):
            self.check_resolution(float(np.linalg.norm(np.asarray(law.logit.form.A, dtype=np.float64), 2)))

    def check_symmetry(self, law: Any) -> None:
        """Raise if a zonal density would not stay one under a law."""
        self.axes[0].check_law(law)

    @staticmethod
    def _check_mask(mask: Any) -> None:
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

    def rate(self, velocity: Velocity | Callable) -> Float[Array, "..."]:
        return transport(self.mesh, self.weights, self.face_velocity(velocity)).reshape(self.mesh.shape)

    def face_velocity(self, velocity: Any) -> Float[Array, " f"]:
        """The speed across each face."""
        return face_velocity(self.mesh, self._apply(velocity))

    def push(self, map: Velocity | Callable) -> "Grid":
        """Every cell's mass goes where the map takes its middle, shared among the cells there; what would pass a wall stays in front of
        it. On intervals and circles."""
        moved = self._apply(map)
        if self.axes[-1].coordinate is None:
            raise ValueError(
                f"a map pushes a grid over intervals or the circle, got {type(self.axes[0]).__name__}; push .particles() instead"
            )
        return self.with_state(deposited(self.mesh, self.space.nearest(moved), self.weights, self.mesh.order))

    def _apply(self, map: Any) -> Float[Array, "n d"]:
        return moved(map, self.points, self.mesh.order)

    def retract(self, state: Float[Array, "..."]) -> Float[Array, "..."]:
        return state

    @staticmethod
    def error_norm(scaled_error: Float[Array, "..."]) -> Float[Array, ""]:
        return jnp.max(jnp.abs(scaled_error))

    def motion(self, velocity: Callable, noise: Noise | None = None) -> Transported:
        def rate(t: Any, mass: Any) -> tuple[Array, Array]:
            mu = self.with_state(mass)
            speed = mu.face_velocity(velocity(mu, t))
            return transport(mu.mesh, mu.weights, speed).reshape(mu.mesh.shape), outflow(mu.mesh, speed)

        return Transported(rate)

    def default_solver(self, noise: Noise | None = None) -> Upwind:
        return Upwind(self.mesh, None if noise is None else noise.sigma.astype(self.dtype) ** 2 / 2)

    def own_steps(self, longest: Any) -> Courant:
        return Courant(longest)

    @property
    def bounded(self) -> bool:
        return True

    def frame(self, states: Any) -> dict[str, tuple[tuple[str, ...], Any]]:
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

    def particles(self) -> Particles:
        """The cells as weighted tokens at their middles."""
        if self.axes[0].bands:
            raise ValueError(f"a cell of a {type(self.axes[0]).__name__} grid is a band, not a point; draw tokens with .sample(n, key=key)")
        return Particles(self.points, self.weights, order=self.mesh.order, space=self.space)

    def support(self) -> Particles:
        """The cells that have mass as tokens; all of them inside `grad`, where masses have no values yet."""
        cloud = self.particles()
        if not known(cloud):
            return cloud
        some = np.flatnonzero(np.asarray(self.weights))
        return eqx.tree_at(lambda c: (c.points, c.weights), cloud, (self.points[some], self.weights[some]))

    def tokens(self, eps: Float[Array, ""], key: PRNGKeyArray | None) -> Particles:
        self.check_places()
        return self.particles()

    def projected(self, direction: Float[Array, " d"]) -> Tokens | Histogram:
        """On the line the density that is constant in each cell, else the middles of the cells."""
        if self.dim > 1:
            return Tokens(self.points @ direction, self.weights)
        bars, back = self.angles(), direction[0] < 0
        edges = bars.edges * direction[0]
        return Histogram(jnp.where(back, edges[::-1], edges), jnp.where(back, bars.w[::-1], bars.w))

    def angles(self) -> Histogram:
        """The density that is constant in each cell of its one axis, an angle or a coordinate."""
        return Histogram(jnp.asarray(self.axes[0].edges, self.dtype), self.weights)

    def latitude(self) -> Histogram | None:
        return self.angles() if self.axes[0].bands else None

    def check_places(self) -> None:
        if self.mesh.order is not None:
            raise ValueError(
                "a distance does not see the order of tokens, got a Grid over Order and Interval; "
                "forget the order first: af.Grid(mu.mass.sum(axis=0) / mu.axes[1].width, mu.axes[1:])"
            )
        if self.axes[0].bands:
            raise ValueError(
                "a cell of a Zonal grid is a band, not a place for a token; draw tokens with .sample(n, key=key), "
                "or give wasserstein2 two Zonal grids"
            )

    def entropy(self) -> Float[Array, ""]:
        r"""$-\sum m \log\rho$ over the cells, $\rho$ the density by length, area or surface area (and order)."""
        some = self.weights > 0
        return -jnp.vdot(self.weights, jnp.log(jnp.where(some, self.weights / self.mesh.volumes, 1)))

    def fisher_information(self) -> Float[Array, ""]:
        r"""The sum over faces of $\frac{a}{g} (\rho_l - \rho_r)(\log\rho_l - \log\rho_r)$ with the area $a$ and the gap $g$ between the
        middles; a face next to an empty cell counts nothing."""
        left, right = self.mesh.links.sides(self.weights / self.mesh.volumes)
        some = (left > 0) & (right > 0)
        logs = jnp.log(jnp.where(some, left, 1)) - jnp.log(jnp.where(some, right, 1))
        rates = self.mesh.areas / self.mesh.gaps * (left - right) * logs
        # Each face is read from both of its cells, so that none counts twice.
        return 0.5 * jnp.sum(self.mesh.links.collect(rates, rates))

    def quantiles(self, n: int) -> Particles:
        r"""$n$ tokens of equal mass at the quantiles $(i + \frac12)/n$, for one `Interval` or the `Circle`: the closest cloud of $n$
        tokens."""
        axis = self.axes[0]
        check.count("n", n)
        if len(self.axes) > 1 or axis.coordinate is None:
            raise ValueError("quantiles are for a grid over one Interval or the Circle; draw tokens with .sample(n, key=key)")
        return Particles(quantiles(axis, self.weights, n), space=self.space)

    def sample(self, n: int, *, key: PRNGKeyArray) -> Particles:
        """$n$ independent tokens: a cell by its mass, then a point of the cell (of a round cell of the same area on an `Icosphere`)."""
        check.count("n", n)
        check.key("key", key)
        points, order = sampled(self.axes, self.weights, n, key)
        return Particles(points, order=order, space=self.space)
