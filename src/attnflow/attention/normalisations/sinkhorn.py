"""Sinkhorn: rows and columns integrate to one."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from attnflow._arrays import positive
from attnflow._linalg import psd_sqrt
from attnflow.attention.normalisations.base import Average, Normalisation
from attnflow.measures import Affine, Gaussian
from attnflow.sums import Atoms, Engine, Logit, accuracy, average, log_integral
from attnflow.transport import Scaling, half_steps, planned, scale


class Sinkhorn(Normalisation):
    """`k(x, y) = e^{f(x) + l(x,y) + g(y)}` with both marginals one (Sander et al. 2022, arXiv:2110.11773).

    **Arguments:**

    - `tolerance`: the largest violation of a column sum (rows are exact); by default 1e-10 in float64, 1e-5 in float32.
    - `max_iterations`: the budget; the result says whether it was enough.
    - `half_steps`: if given, stop after this many normalisations, rows first, as trained Sinkformers do. 1 is softmax.

    `law.at(mu).report["sinkhorn"]` has `converged`, `iterations` and `error`; `solve` gathers them in `path.stats`.
    """

    tolerance: Float[Array, ""] | None
    max_iterations: Int[Array, ""]
    half_steps: int | None = eqx.field(static=True)

    def __init__(self, tolerance: Any = None, max_iterations: int = 10_000, half_steps: int | None = None):
        if max_iterations < 1:
            raise ValueError(f"max_iterations must be at least 1, got {max_iterations}")
        if half_steps is not None and half_steps < 1:
            raise ValueError(f"half_steps must be at least 1, got {half_steps}")
        self.tolerance = None if tolerance is None else positive("tolerance", tolerance)
        self.max_iterations = jnp.asarray(max_iterations)
        self.half_steps = half_steps

    def average(self, logit: Logit, atoms: Atoms, sums: Engine | None) -> "SinkhornAverage":
        centre = jnp.mean(atoms.points, axis=0)
        centred = Atoms(atoms.points - centre[None], atoms.log_weights)
        if self.half_steps is None:
            tolerance = self._tolerance(centred.points.dtype)
            sums = planned(logit, centred, sums)
            scaling = scale(logit, centred, tolerance, self.max_iterations, sums)
        else:
            # Unlike the limit, a cut iteration sees the terms of the logit in y alone: they are where it starts.
            queries, bias, _, keys = logit.centred(centre[None], atoms.points, centre)
            scaling = half_steps(logit, centred, keys @ queries[0] + bias, self.half_steps, sums)
        return SinkhornAverage(logit.A, centred, centre, scaling, sums, self.half_steps is not None and self.half_steps % 2 == 0)

    def weights(self, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, order: Float[Array, " m"] | None = None) -> Float[Array, "m n"]:
        scaled = self.average(logit, atoms, None)
        return jnp.exp(scaled.log_kernel(x) + atoms.log_weights[None])

    def gaussian(self, logit: Logit, mu: Gaussian) -> Affine:
        """`m + W A (x - m)`, `W = S^1/2 w S^1/2`, `w = 2 (I + (I + 4N)^1/2)^-1`, `N = S^1/2 A S A^T S^1/2`.

        W solves `W + W A S A^T W = S`; no inverse of A, S or N is needed (after arXiv:2501.18322, matrix order corrected).
        """
        if self.half_steps is not None:
            raise ValueError(
                "Sinkhorn cut after a number of half-steps has no Gaussian picture here; use Sinkhorn() for the converged law, or tokens"
            )
        eye = jnp.eye(mu.dim, dtype=mu.dtype)
        root = psd_sqrt(mu.cov)
        inner = root @ logit.A @ root
        w = 2 * jnp.linalg.inv(eye + psd_sqrt(eye + 4 * inner @ inner.T))
        matrix = root @ w @ root @ logit.A
        return Affine(matrix, mu.mean - matrix @ mu.mean)

    def check_maskable(self) -> None:
        raise ValueError(
            "Sinkhorn takes no mask: the first token sees itself only, so its column is full, the second sees itself only, and so on: "
            "the one doubly stochastic causal matrix is the identity; use Softmax, Unnormalized, Hardmax, Sigmoid or Linear instead"
        )

    def _tolerance(self, dtype: Any) -> Array:
        if self.tolerance is None:
            return jnp.asarray(1e-10 if dtype == jnp.float64 else 1e-5, dtype)
        return self.tolerance.astype(dtype)


class SinkhornAverage(Average):
    """The average under the scaled kernel, on a cloud moved to its centre."""

    A: Float[Array, "d d"]
    atoms: Atoms
    centre: Float[Array, " d"]
    scaling: Scaling
    sums: Engine | None
    ends_with_columns: bool = eqx.field(static=True)

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        u = x - self.centre[None]
        log_norm, mean = average(Logit(self.A), u, self._atoms(self.scaling.g), self.sums)
        mean = mean + self.centre[None]
        if not self.ends_with_columns:
            return mean
        return jnp.exp(log_norm + self._row_potential(u))[:, None] * mean

    def log_kernel(self, x: Float[Array, "m d"]) -> Float[Array, "m n"]:
        """`log k(x_i, y_j)`, dense."""
        u = x - self.centre[None]
        return Logit(self.A)(u, self.atoms.points) + self.scaling.g[None] + self._row_potential(u)[:, None]

    @property
    def report(self) -> dict[str, PyTree]:
        figures = {name: getattr(self.scaling, name) for name in ("converged", "iterations", "error")}
        exactness = accuracy(Logit(self.A), self._atoms(self.scaling.g), self.sums)
        return {"sinkhorn": {name: value for name, value in figures.items() if value is not None}} | exactness

    def _row_potential(self, u: Float[Array, "m d"]) -> Float[Array, " m"]:
        return -log_integral(Logit(self.A), u, self._atoms(self.scaling.before), self.sums)

    def _atoms(self, potential: Float[Array, " n"]) -> Atoms:
        return Atoms(self.atoms.points, self.atoms.log_weights + potential)
