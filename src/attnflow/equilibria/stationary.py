"""Measures that a field with noise leaves in place: `div(mu Gamma_mu) = 1/2 sigma^2 Laplace mu`."""

import dataclasses

import jax.numpy as jnp

from attnflow import _check as check
from attnflow._types import FieldLike, MeasureLike, Scalar
from attnflow.equilibria.newton import Borders, Found, InNoise, System, borders, growth, newton, system
from attnflow.measures import Grid
from attnflow.numerics.arrays import positive


@dataclasses.dataclass(frozen=True, eq=False)
class Stationary:
    r"""A stationary measure and how well it was found.

    - `measure`: the `Grid`; `noise`: its $\sigma$.
    - `growth`: the rate at which the fastest small perturbation on the same grid grows; the measure is stable where this is negative. On a
      `Zonal` grid perturbations are symmetric about the axis. Rotations of the whole measure do not count.
    - `error`: the largest rate of change of the density, relative to the mean density; `converged` if that is within the tolerance.
    """

    measure: Grid
    noise: float
    growth: float
    error: float
    iterations: int
    converged: bool

    @property
    def order(self) -> float:
        """The order parameter, the length of the mean: on a sphere 0 for the uniform measure, 1 for a point mass."""
        return float(jnp.linalg.norm(self.measure.mean))


def stationary(
    field: FieldLike, guess: MeasureLike, noise: Scalar, *, tolerance: Scalar | None = None, max_iterations: int = 50
) -> Stationary:
    r"""The stationary measure near a guess, stable or not, by Newton's method with a dense Jacobian.

    **Arguments:**

    - `field`: a law or a field; one that depends on time is taken at 0.
    - `guess`: a `Grid` over intervals, the circle or a `Zonal` axis, of at most 4096 cells; 1000 take some ten seconds.
    - `noise`: $\sigma$.
    - `tolerance`: of the rate of change of the density, relative to the mean density; by default $10^{-9}$ in float64, $10^{-3}$ in
      float32.
    """
    sigma = float(positive("noise", noise))
    check.field("field", field)
    check.count("max_iterations", max_iterations)
    problem = system(InNoise(field), guess, sigma, tolerance)
    # Refuses cells that are wider than the kernel.
    field.at(guess)
    u = problem.relative(problem.grid)
    border = borders(problem, u)
    return state(problem, newton(problem, u, sigma, border, max_iterations), border)


def state(problem: System, found: Found, border: Borders) -> Stationary:
    """What Newton's method found, with its stability."""
    sigma = float(problem.family(jnp.asarray(found.p, problem.grid.dtype))[1])
    rate = growth(problem, found, border)
    return Stationary(problem.measure(found.u), sigma, rate, found.error, found.iterations, found.error <= problem.tolerance)
