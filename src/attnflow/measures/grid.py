"""A density: the masses of the cells of a grid."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from attnflow import _check as check
from attnflow._arrays import one_program
from attnflow.measures.axes import Axis, Circle, Icosphere, Interval, Order, Zonal
from attnflow.measures.base import FlowingMeasure, Noise, Velocity, moved, values_of
from attnflow.measures.deposit import check_inside, deposited, masses, rule_around, values_at
from attnflow.measures.mesh import Mesh, mesh
from attnflow.measures.particles import Particles
from attnflow.measures.upwind import Courant, Transported, Upwind
from attnflow.measures.volumes import face_velocity, outflow, transport
from attnflow.spaces import Space

_NAMES = {Interval: ("x", "y"), Circle: ("angle",), Order: ("order",), Zonal: ("angle",), Icosphere: ("cell",)}


class Grid(FlowingMeasure):
    """A probability density on cells, moved by finite volumes: mass to round-off, never negative, second order in the cell.

    **Arguments:**

    - `density`: one number a cell, `[*cells]`, of total mass 1; by length, area, arc length or surface area.
    - `axes`: `[Interval(low, high, cells)]` or two of them, `[Circle(cells)]`, `[Icosphere(frequency)]` for $S^2$, `[Zonal(dim, cells)]`
      for laws on $S^{d-1}$ symmetric about the first axis, `[Order(cells, length), Interval(...)]` for masked laws of tokens on the line.

    `points [n, d]` are the middles of the cells, `mass [*cells]` is the state.
    """

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
        if type(mu.space) is not type(where.space) or mu.dim != blank.dim:
            spaces = [type(space).__name__ for space in (where.space, mu.space)]
            raise ValueError(f"this grid takes tokens of R^{blank.dim}, {spaces[0]}, got tokens of R^{mu.dim}, {spaces[1]}")
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
        centre = self.weights @ self.points
        return centre * jnp.eye(self.dim, dtype=self.dtype)[0] if self._zonal else centre

    @property
    @one_program
    def cov(self) -> Float[Array, "d d"]:
        if self._zonal:
            x, mean = self.points[:, 0], self.mean[0]
            across = self.weights @ (1 - x**2) / (self.dim - 1)
            return jnp.diag(jnp.full(self.dim, across).at[0].set(self.weights @ (x - mean) ** 2))
        centred = self.points - self.mean[None]
        return centred.T @ (centred * self.weights[:, None])

    def integrate(self, f: Callable[[Float[Array, "n d"]], Float[Array, "n ..."]]) -> Float[Array, "..."]:
        r"""$\int f \,d\mu$, by its values at the middles of the cells; on a `Zonal` axis for functions of $x_1$ alone."""
        return jnp.tensordot(self.weights, values_of(f, self.points), axes=1)

    @property
    def keys(self) -> tuple[Float[Array, "k d"], Float[Array, " k"]]:
        r"""The grid as weighted points for an integral over it: its cells; on a `Zonal` axis points around each band, as a query on the
        meridian sees them: at $(\cos a, s \sin a, \dots)$ with $s$ the cosine of the angle around."""
        if not self._zonal:
            return self.points, self.log_weights
        axis = self.axes[0]
        assert isinstance(axis, Zonal)
        cosines, shares = (jnp.asarray(values, self.dtype) for values in rule_around(axis.dim, axis.nodes))
        x, y = self.points[:, :1], self.points[:, 1:2]
        across = jnp.sqrt(jnp.maximum(1 - cosines**2, 0))
        columns = [jnp.broadcast_to(x, (len(x), axis.nodes)), y * cosines[None], y * across[None]]
        around = jnp.stack(columns + [jnp.zeros_like(columns[0])] * (self.dim - 3), axis=-1)
        logs = self.log_weights[:, None] + jnp.log(shares)[None]
        return around.reshape(-1, self.dim), logs.reshape(-1)

    @property
    def _zonal(self) -> bool:
        return isinstance(self.axes[0], Zonal)

    @property
    def sharpest(self) -> float:
        """The largest sharpness of a kernel that its cells, and the rule around its bands, resolve."""
        rules = [(axis.nodes / math.pi) ** 2 for axis in self.axes if isinstance(axis, Zonal)]
        return min([axis.width**-2 for axis in self.axes if not isinstance(axis, Order)] + rules)

    def check_resolution(self, sharpness: float) -> None:
        """Raise if a kernel of width $k^{-1/2}$, $k$ the `sharpness`, is narrower than a cell, or than the gaps of the rule around a
        band."""
        for axis in self.axes:
            if isinstance(axis, Zonal) and math.pi * math.sqrt(sharpness) > axis.nodes:
                needed = f"{math.ceil(math.pi * math.sqrt(sharpness))} nodes"
                raise ValueError(_NARROW.format(1 / math.sqrt(sharpness), needed, axis.nodes).replace("a cell", "the gap of nodes", 1))
            if isinstance(axis, Order) or axis.width**2 * sharpness <= 1:
                continue
            factor = axis.width * math.sqrt(sharpness)
            if isinstance(axis, Icosphere):
                raise ValueError(
                    _NARROW.format(1 / math.sqrt(sharpness), f"frequency {math.ceil(axis.frequency * factor)}", axis.frequency)
                )
            raise ValueError(_NARROW.format(1 / math.sqrt(sharpness), f"{math.ceil(axis.cells * factor)} cells", axis.cells))

    @property
    def state(self) -> Float[Array, "..."]:
        return self.mass

    def with_state(self, state: Float[Array, "..."]) -> "Grid":
        return eqx.tree_at(lambda mu: mu.mass, self, state)

    def rate(self, velocity: Velocity) -> Float[Array, "..."]:
        return transport(self.mesh, self.weights, self.face_velocity(velocity)).reshape(self.mesh.shape)

    def face_velocity(self, velocity: Any) -> Float[Array, " f"]:
        """The speed across each face."""
        return face_velocity(self.mesh, self._apply(velocity))

    def push(self, map: Velocity) -> "Grid":
        """Every cell's mass goes where the map takes its middle, shared among the cells there; what would pass a wall stays in front of
        it. On intervals and circles."""
        moved = self._apply(map)
        if isinstance(self.axes[0], Zonal | Icosphere):
            raise ValueError(
                f"a map pushes a grid over intervals or the circle, got {type(self.axes[0]).__name__}; push .particles() instead"
            )
        return self.with_state(deposited(self.mesh, self.space.nearest(moved), self.weights, self.mesh.order))

    def _apply(self, map: Any) -> Float[Array, "n d"]:
        return moved(map, self.points, self.sequence if getattr(map, "needs_order", False) else None)

    def settle(self, state: Float[Array, "..."]) -> Float[Array, "..."]:
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
        used: dict[type, int] = {}
        names = []
        for axis in self.axes:
            names.append(_NAMES[type(axis)][used.get(type(axis), 0)])
            used[type(axis)] = used.get(type(axis), 0) + 1
        return tuple(names)

    @property
    def about(self) -> dict[str, Any]:
        import json

        return super().about | {"axes": json.dumps([[type(axis).__name__, dataclasses.asdict(axis)] for axis in self.axes])}

    def particles(self) -> Particles:
        """The cells as weighted tokens at their middles."""
        if self._zonal:
            raise ValueError("a cell of a Zonal grid is a band, not a point; draw tokens with .sample(n, key=key)")
        return Particles(self.points, self.weights, self.mesh.order, self.space)

    def quantiles(self, n: int) -> Particles:
        r"""$n$ tokens of equal mass at the quantiles $(i + \frac12)/n$, for one `Interval` or the `Circle`: the closest cloud of $n$
        tokens."""
        axis = self.axes[0]
        check.count("n", n)
        if len(self.axes) > 1 or not isinstance(axis, Interval | Circle):
            raise ValueError("quantiles are for a grid over one Interval or the Circle; draw tokens with .sample(n, key=key)")
        edges = jnp.asarray(axis.centres[0] - axis.width / 2 + axis.width * np.arange(axis.cells + 1), self.dtype)
        levels = jnp.concatenate([jnp.zeros(1, self.dtype), jnp.cumsum(self.weights)])
        where = jnp.interp((jnp.arange(n, dtype=self.dtype) + 0.5) / n, levels / levels[-1], edges)
        return self._tokens(where[:, None] if isinstance(axis, Interval) else jnp.stack([jnp.cos(where), jnp.sin(where)], axis=1))

    def sample(self, n: int, *, key: PRNGKeyArray) -> Particles:
        """$n$ independent tokens: a cell by its mass, then a point of the cell (of a round cell of the same area on an `Icosphere`)."""
        check.count("n", n)
        check.key("key", key)
        pick, place, turn = jax.random.split(key, 3)
        cell = jax.random.choice(pick, len(self.points), (n,), p=self.weights)
        middle, axis = self.points[cell], self.axes[0]
        if isinstance(axis, Circle | Zonal):
            within = axis.width * jax.random.uniform(place, (n,), self.dtype, -0.5, 0.5)
            angle = jnp.asarray(axis.centres, self.dtype)[cell] + within
            if isinstance(axis, Circle):
                return self._tokens(jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1))
            around = self.space.nearest(jax.random.normal(turn, (n, self.dim - 1), self.dtype))
            return self._tokens(jnp.concatenate([jnp.cos(angle)[:, None], jnp.sin(angle)[:, None] * around], axis=1))
        if isinstance(axis, Icosphere):
            radius = jnp.sqrt(self.mesh.volumes[cell] / jnp.pi * jax.random.uniform(place, (n,), self.dtype))
            direction = self.space.nearest(self.space.project(middle, jax.random.normal(turn, middle.shape, self.dtype)))
            return self._tokens(self.space.exp(middle, radius[:, None] * direction))
        widths = jnp.asarray([axis.width for axis in self.axes if isinstance(axis, Interval)], self.dtype)
        points = middle + widths[None] * jax.random.uniform(place, middle.shape, self.dtype, -0.5, 0.5)
        if self.mesh.order is None:
            return self._tokens(points)
        assert isinstance(axis, Order)
        order = self.mesh.order[cell] + axis.width * jax.random.uniform(turn, (n,), self.dtype, -0.5, 0.5)
        return Particles(points, order=jnp.clip(order, 0, axis.length))

    def _tokens(self, points: Array) -> Particles:
        return Particles(points, space=self.space)


_NARROW = "a cell is wider than the kernel, whose width is {:.3g}: the axis needs at least {}, got {}"
