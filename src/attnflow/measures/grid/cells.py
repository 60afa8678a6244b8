"""A density on cells as a measure: its moments, its entropy, itself as tokens."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import Key, RowFunction
from attnflow.measures.base import values_of
from attnflow.measures.flowing import FlowingMeasure
from attnflow.measures.grid.axes import Axis
from attnflow.measures.grid.deposit import quantiles, sampled
from attnflow.measures.grid.mesh import Mesh
from attnflow.measures.line import Histogram, Tokens
from attnflow.measures.particles import Particles
from attnflow.numerics.arrays import known, one_program
from attnflow.spaces import Space


class Cells(FlowingMeasure):
    """Masses `mass [*cells]` on the cells of a `mesh`."""

    discrete = True

    mass: eqx.AbstractVar[Float[Array, "..."]]
    mesh: eqx.AbstractVar[Mesh]

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
        """Mass per volume in every cell, `[*cells]`."""
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
    def dim(self) -> int:
        return self.points.shape[1]

    @property
    @one_program
    def mean(self) -> Float[Array, " d"]:
        return self.axes[0].symmetric(self.weights @ self.points)

    @property
    @one_program
    def cov(self) -> Float[Array, "d d"]:
        centered = self.points - self.mean[None]
        return self.axes[0].symmetric(centered.T @ (centered * self.weights[:, None]))

    def integrate(self, f: RowFunction) -> Float[Array, "..."]:
        r"""$\int f \,d\mu$, by its values at the middles of the cells; on a `Zonal` axis for functions of $x_1$ alone."""
        return jnp.tensordot(self.weights, values_of(f, self.points), axes=1)

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

    def tokens(self, eps: Float[Array, ""], *, key: Key | None) -> Particles:
        self.check_places()
        return self.particles()

    def projected(self, direction: Float[Array, " d"]) -> Tokens | Histogram:
        """On the line the density that is constant in each cell, else the middles of the cells."""
        if self.dim > 1:
            return Tokens(self.points @ direction, self.weights)
        edges, back = self.angles().edges * direction[0], direction[0] < 0
        return Histogram(jnp.where(back, edges[::-1], edges), jnp.where(back, self.weights[::-1], self.weights))

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
        middles; a face next to an empty cell does not count."""
        left, right = self.mesh.links.sides(self.weights / self.mesh.volumes)
        some = (left > 0) & (right > 0)
        logs = jnp.log(jnp.where(some, left, 1)) - jnp.log(jnp.where(some, right, 1))
        rates = self.mesh.areas / self.mesh.gaps * (left - right) * logs
        # Each face is read from both of its cells, so that none counts twice.
        return 0.5 * jnp.sum(self.mesh.links.collect(rates, rates))

    def quantiles(self, n: int) -> Particles:
        r"""$n$ tokens of equal mass at the quantiles $(i + \frac12)/n$, for one `Interval` or the `Circle`: the closest cloud of $n$
        tokens."""
        check.count("n", n)
        axis, *others = self.axes
        if others or axis.coordinate is None:
            raise ValueError("quantiles are for a grid over one Interval or the Circle; draw tokens with .sample(n, key=key)")
        return Particles(quantiles(axis, self.weights, n), space=self.space)

    def sample(self, n: int, *, key: Key) -> Particles:
        """$n$ independent tokens: a cell by its mass, then a point of the cell (on an `Icosphere`, of a disk of the same area)."""
        check.count("n", n)
        check.key("key", key)
        points, order = sampled(self.axes, self.weights, n, key=key)
        return Particles(points, order=order, space=self.space)
