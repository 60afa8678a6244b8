"""Laws that a field with noise leaves in place: `div(mu Gamma_mu) = 1/2 sigma^2 Laplace mu`."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from attnflow._check import count
from attnflow._check import field as field_
from attnflow.equilibria.newton import Borders, Found, InNoise, System, borders, growth, newton, system
from attnflow.measures import Grid
from attnflow.numerics.arrays import positive


@dataclasses.dataclass(frozen=True, eq=False)
class Stationary:
    r"""A stationary law and how well it was found.

    - `measure`: the law; `noise`: its $\sigma$.
    - `growth`: the rate at which the fastest small perturbation on the same grid grows; the law is stable where it is negative. On a
      `Zonal` grid perturbations are symmetric about the axis. Turning the whole law does not count.
    - `error`: the largest rate of change of the density, over the mean density; `converged` if that is within the tolerance.
    """

    measure: Grid
    noise: float
    growth: float
    error: float
    iterations: int
    converged: bool

    @property
    def order(self) -> float:
        """The order parameter, the length of the mean: on a sphere 0 for the uniform law, 1 for a point mass."""
        return float(jnp.linalg.norm(self.measure.mean))


def stationary(field: Any, guess: Any, noise: Any, tolerance: float | None = None, max_iterations: int = 50) -> Stationary:
    r"""The stationary law near a guess, stable or not, by Newton's method with a dense Jacobian.

    **Arguments:**

    - `field`: a law or a field; one that depends on time is taken at 0.
    - `guess`: a `Grid` over intervals, the circle or a `Zonal` axis, of at most 4096 cells; 1000 take some ten seconds.
    - `noise`: $\sigma$.
    - `tolerance`: of the rate of change of the density over the mean density; by default $10^{-9}$ in float64, $10^{-3}$ in float32.
    """
    sigma = float(positive("noise", noise))
    field_("field", field)
    count("max_iterations", max_iterations)
    problem = system(InNoise(field), guess, sigma, tolerance)
    # Refuses cells that are wider than the kernel.
    field.at(guess)
    u = problem.relative(guess)
    border = borders(problem, u)
    found = newton(problem, u, sigma, border, max_iterations)
    return state(problem, found, border)


def state(problem: System, found: Found, border: Borders) -> Stationary:
    """What Newton's method found, with its stability."""
    sigma = float(problem.family(jnp.asarray(found.p, problem.grid.dtype))[1])
    rate = growth(problem, found, border)
    return Stationary(problem.law(found.u), sigma, rate, found.error, found.iterations, found.error <= problem.tolerance)
