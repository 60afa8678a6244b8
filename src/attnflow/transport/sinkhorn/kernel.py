"""A doubly stochastic kernel between clouds, and its averages at any point."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow.measures import Velocity
from attnflow.numerics.arrays import one_program
from attnflow.sums import Atoms, Engine, Logit, Pairs, Request, accuracy, average, log_integral
from attnflow.transport.sinkhorn.clouds import Clouds, log_row_sums
from attnflow.transport.sinkhorn.scaling import Scaling, fitted_engine, scale, truncated_scale


def scaled_kernel(
    logit: Logit,
    keys: Atoms,
    tolerance: Array,
    max_iterations: Array,
    sums: Request | None = None,
    start: Float[Array, " n"] | None = None,
    queries: Atoms | None = None,
) -> "ScaledKernel":
    """The kernel scaled to `tolerance` in every column sum, of a cloud with itself or between `queries` and `keys`; `start` is a first
    guess of the potential of the keys."""
    center, centered = _centered(logit, keys)
    origin, others = (center, None) if queries is None else _centered(logit, queries)
    clouds, logit = Clouds(centered, others), logit.mixed()
    engine = fitted_engine(logit, clouds, sums)
    return ScaledKernel(logit, clouds, center, origin, scale(logit, clouds, tolerance, max_iterations, engine, start), sums, engine, False)


def truncated_kernel(logit: Logit, atoms: Atoms, half_steps: int, sums: Request | None = None) -> "ScaledKernel":
    """The kernel after a number of half-steps, rows first."""
    center, centered = _centered(logit, atoms)
    # Unlike the limit, a truncated iteration sees the terms of the logit in y alone: they are where it starts.
    mixed = logit.mixed()
    engine = fitted_engine(mixed, Clouds(centered), sums)
    scaling = truncated_scale(mixed, centered, _key_terms(logit, mixed, centered, center), half_steps, engine)
    return ScaledKernel(mixed, Clouds(centered), center, center, scaling, sums, engine, half_steps % 2 == 0)


@one_program
def _key_terms(logit: Logit, mixed: Logit, keys: Atoms, c: Float[Array, " d"]) -> Float[Array, " n"]:
    """The terms of a logit in `y = c + k` alone, as those of `l(c, y)` less those of its mixed form at 0."""
    if not logit.centers:
        return jnp.zeros_like(keys.log_weights)

    def seen(logit: Logit, y: Array, c: Array) -> Array:
        (q, _), (k, b) = logit.queries(c[None], None, c), logit.keys(y, None, c)
        return k @ q[0] + b

    return seen(logit, keys.points + c[None], c) - seen(mixed, keys.points, jnp.zeros_like(c))


@one_program
def _centered(logit: Logit, atoms: Atoms) -> tuple[Array, Atoms]:
    center = jnp.mean(atoms.points, axis=0) if logit.centers else jnp.zeros_like(atoms.points[0])
    return center, atoms._replace(points=atoms.points - center[None])


class ScaledKernel(Velocity):
    """The average under `K(x, y) = e^{f(x) + l(x, y) + g(y)}`, l the mixed `logit`, with x taken from `origin` and y from `center`, the
    centers of the queries and the keys.

    `engine` is what the scaling ran on; queries other than the tokens may need another, which `sums` gives.
    """

    logit: Logit
    clouds: Clouds
    center: Float[Array, " d"]
    origin: Float[Array, " d"]
    scaling: Scaling
    sums: Request | None
    engine: Engine
    ends_with_columns: bool = eqx.field(static=True)

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None, sums: Request | None = None) -> Float[Array, "m e"]:
        """`integral K(x, y) v(y) dnu(y)` of the values of the keys, by default the keys themselves, on another engine if one is given."""
        u, keys = x - self.origin[None], self._atoms(self.scaling.g)
        log_norm, mean = average(self.logit, u, keys, self.sums if sums is None else sums, order)
        mean = mean + self.center[None] if keys.values is None else mean
        if not self.ends_with_columns:
            return mean
        return jnp.exp(log_norm + self._row_potential(u, order))[:, None] * mean

    def expect(self, values: Float[Array, " n"]) -> Float[Array, " m"]:
        """`integral K(x, y) v(y) dnu(y)` at every query, for the values of v at the keys: how `log integral e^{l + g + h v}` grows
        with h, which every engine can say."""
        return -jax.jvp(self.rows_for, (self.scaling.g,), (values.astype(self.scaling.g.dtype),))[1]

    def pull(self, x: Float[Array, "m d"], sums: Request | None = None) -> Float[Array, "m d"]:
        """`integral K(x, y) (y - x) dnu(y)`, which keeps its digits far from the origin; for rows that are exact."""
        u = x - self.origin[None]
        _, mean = average(self.logit, u, self._atoms(self.scaling.g), self.sums if sums is None else sums)
        return mean - u + (self.center - self.origin)[None]

    def rows_for(self, g: Float[Array, " n"]) -> Float[Array, " m"]:
        """The f that makes the rows exact for a potential g, at the queries themselves, on the engine of the scaling."""
        return -log_row_sums(self.logit, self.clouds, g, self.engine)

    def row_potential(self, x: Float[Array, "m d"]) -> Float[Array, " m"]:
        """`f(x)`."""
        return self._row_potential(x - self.origin[None])

    def log_kernel(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m n"]:
        """`log K(x_i, y_j)`, dense."""
        u, keys = x - self.origin[None], self.clouds.keys
        return self.logit(u, keys.points, order, keys.order) + self.scaling.g[None] + self._row_potential(u, order)[:, None]

    @property
    def report(self) -> dict[str, Any]:
        """Convergence, and the error of sums that are not exact."""
        figures = {name: getattr(self.scaling, name) for name in ("converged", "iterations", "error")}
        queries = self.clouds.queries
        exactness = accuracy(Pairs(self.logit, queries.points, self._atoms(self.scaling.g), queries.order), self.engine)
        return {"sinkhorn": {name: value for name, value in figures.items() if value is not None}} | exactness

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engine of the scaling."""
        return (self.engine,)

    def _row_potential(self, u: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, " m"]:
        return -log_integral(self.logit, u, self._atoms(self.scaling.before), self.sums, order)

    def _atoms(self, potential: Float[Array, " n"]) -> Atoms:
        return self.clouds.keys._replace(log_weights=self.clouds.keys.log_weights + potential)
