"""A doubly stochastic kernel on a cloud, and its averages at any point."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from attnflow.sums import Atoms, Engine, Logit, accuracy, average, log_integral
from attnflow.transport.sinkhorn import Scaling, half_steps, planned, scale


def scaled(
    logit: Logit,
    atoms: Atoms,
    tolerance: Array,
    max_iterations: Array,
    sums: Engine | None = None,
    start: Float[Array, " n"] | None = None,
) -> "Scaled":
    """The kernel scaled to `tolerance` in every column sum; `start` is a first guess of the potential of the keys."""
    centre, centred = _centred(atoms)
    engine = planned(logit, centred, sums)
    return Scaled(logit.A, centred, centre, scale(logit, centred, tolerance, max_iterations, engine, start), sums, engine, False)


def cut(logit: Logit, atoms: Atoms, count: int, sums: Engine | None = None) -> "Scaled":
    """The kernel after `count` half-steps, rows first."""
    centre, centred = _centred(atoms)
    # Unlike the limit, a cut iteration sees the terms of the logit in y alone: they are where it starts.
    queries, bias, _, keys = logit.centred(centre[None], atoms.points, centre)
    return Scaled(logit.A, centred, centre, half_steps(logit, centred, keys @ queries[0] + bias, count, sums), sums, sums, count % 2 == 0)


def _centred(atoms: Atoms) -> tuple[Array, Atoms]:
    centre = jnp.mean(atoms.points, axis=0)
    return centre, Atoms(atoms.points - centre[None], atoms.log_weights)


class Scaled(eqx.Module):
    """`K(x, y) = e^{f(x) + <y, A x> + g(y)}` on a cloud moved to its centre.

    `engine` is what the scaling ran on; queries other than the tokens may need another, which `sums` gives.
    """

    A: Float[Array, "d d"]
    atoms: Atoms
    centre: Float[Array, " d"]
    scaling: Scaling
    sums: Engine | None
    engine: Engine | None
    ends_with_columns: bool = eqx.field(static=True)

    def __call__(self, x: Float[Array, "m d"]) -> Float[Array, "m d"]:
        """`integral K(x, y) y dmu(y)`."""
        u = x - self.centre[None]
        log_norm, mean = average(Logit(self.A), u, self._atoms(self.scaling.g), self.sums)
        mean = mean + self.centre[None]
        if not self.ends_with_columns:
            return mean
        return jnp.exp(log_norm + self._row_potential(u))[:, None] * mean

    def log_kernel(self, x: Float[Array, "m d"]) -> Float[Array, "m n"]:
        """`log K(x_i, y_j)`, dense."""
        u = x - self.centre[None]
        return Logit(self.A)(u, self.atoms.points) + self.scaling.g[None] + self._row_potential(u)[:, None]

    @property
    def report(self) -> dict[str, PyTree]:
        """Convergence, and the error of sums that are not exact."""
        figures = {name: getattr(self.scaling, name) for name in ("converged", "iterations", "error")}
        exactness = accuracy(Logit(self.A), self._atoms(self.scaling.g), self.engine)
        return {"sinkhorn": {name: value for name, value in figures.items() if value is not None}} | exactness

    def _row_potential(self, u: Float[Array, "m d"]) -> Float[Array, " m"]:
        return -log_integral(Logit(self.A), u, self._atoms(self.scaling.before), self.sums)

    def _atoms(self, potential: Float[Array, " n"]) -> Atoms:
        return Atoms(self.atoms.points, self.atoms.log_weights + potential)
