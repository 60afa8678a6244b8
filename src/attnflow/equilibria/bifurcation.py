"""Where ordered states branch off the uniform measure on a sphere as the noise falls, and in which direction."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from attnflow import _check as check
from attnflow._types import FieldLike, MeasureLike, Scalar
from attnflow.equilibria.newton import Borders, System, bordered, borders, newton, system
from attnflow.measures import Grid
from attnflow.numerics.special import zonal_harmonic

_ITERATIONS = 20


class InDiffusion(eqx.Module):
    """A field with `sigma^2/2` as the parameter, in which the rate of change is almost linear."""

    field: FieldLike

    def __call__(self, p: Scalar) -> tuple[FieldLike, Scalar]:
        return self.field, jnp.sqrt(2 * p)


@dataclasses.dataclass(frozen=True, eq=False)
class Bifurcation:
    r"""The noise at which mode $k$ of the uniform measure stops decaying, and how the states that begin there continue.

    - `noise`: the critical $\sigma_c$; `mode`: $k$; `measure`: the uniform measure, corrected so that it is stationary on its grid.
    - `direction`: the change of the relative density, $Y_k$ up to errors of the grid, 1 at angle 0.
    - `curvature`: $c$ in $\sigma^2 = \sigma_c^2 (1 + c\, a^2 + \dots)$ for the state $1 + a Y_k + \dots$. If it is negative the transition
      is continuous; if it is positive the states begin unstable, and there is a jump.
    """

    measure: Grid
    noise: float
    mode: int
    direction: Float[np.ndarray, " n"]
    curvature: float


def bifurcation(field: FieldLike, uniform: MeasureLike, mode: int = 1) -> Bifurcation:
    r"""The bifurcation of mode $k$ from the uniform measure, on the `Grid` of `uniform`: over the circle, or over a `Zonal` axis for
    odd $k$.

    The expansion is that of Lyapunov and Schmidt. With $J$ the Jacobian of the rate of change $F$ at the bifurcation, $J n = 0$ and
    $l J = 0$, states are $u = u_0 + a n + a^2 w$ and their noise is $\sigma^2/2 = D + a^2 D_2$, with

    $$J w = -\tfrac12 F''[n, n], \qquad \langle l, J' n\rangle\, D_2 = -\langle l, F''[n, w] + \tfrac16 F'''[n, n, n]\rangle,$$

    where $J'$ is the change of $J$ with $D$. Derivatives of $F$ are automatic; what is left is the error of the grid, of second order in
    the cell.
    """
    check.field("field", field)
    axis = uniform.axes[0] if isinstance(uniform, Grid) else None
    if axis is None or not (axis.periodic or axis.bands):
        cure = "give af.Grid.uniform([af.Circle(cells)])"
        raise TypeError(check.refusal("uniform", "a Grid over the Circle or a Zonal axis", axis or uniform, cure))
    check.count("mode", mode)
    if axis.bands and mode % 2 == 0:
        raise ValueError(f"on a Zonal axis mode must be odd, got {mode}: branches of even modes cross there, and bands undo the crossing")
    problem = system(InDiffusion(field), uniform, 1.0, None)
    Y = zonal_harmonic(mode, uniform.dim, np.asarray(problem.grid.points[:, 0], float))
    w, border = problem.weights, borders(problem, np.ones_like(Y), mode)
    edges = Borders(np.vstack([border.rows, w * Y / (w @ Y**2)]), np.column_stack([border.columns, Y]), np.append(border.targets, 0.0))
    u, D, matrix = _critical(problem, mode, Y, border, edges)
    # The right and the left null vector of J, from the border that keeps the component along Y.
    unit = np.append(np.zeros(len(matrix) - 1), 1.0)
    n, left = np.linalg.solve(matrix, unit)[: len(Y)], np.linalg.solve(matrix.T, unit)[: len(Y)]
    return Bifurcation(problem.measure(u), float(np.sqrt(2 * D)), mode, n, _expansion(problem, u, D, matrix, n, left) / D)


def _critical(problem: System, mode: int, Y: np.ndarray, border: Borders, edges: Borders) -> tuple[np.ndarray, float, np.ndarray]:
    """The stationary state near the uniform measure at the `D = sigma^2/2` where J is singular, D, and the bordered J there.

    `J n + g Y = 0` with the component 1 of n along Y: the g that solves it vanishes where J is singular (Govaerts 2000). The uniform
    measure is stationary on the circle; on bands it is so up to errors of the cubature, and the state is corrected for every D.
    """
    w, ones = problem.weights, np.ones_like(Y)
    growth, decay = (w * Y @ problem.derivative(ones, 1.0, *along) / (w @ Y**2) for along in ((Y,), (Y, None)))
    D = float(1 - growth / decay)
    if D <= 0:
        raise ValueError(f"mode {mode} of the uniform measure decays without noise too: no noise is critical for it")

    def test(D: float, u: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        found = newton(problem, u, D, border, _ITERATIONS)
        matrix = bordered(found.linear.jacobian, edges.columns, edges.rows)
        return found.u, matrix, float(np.linalg.solve(matrix, np.append(np.zeros(len(matrix) - 1), 1.0))[-1])

    before, (u, _, g), now = D * 1.001, test(D * 1.001, ones), np.inf
    for _ in range(_ITERATIONS):
        u, matrix, now = test(D, u)
        if abs(now) <= 1e-12 * abs(decay * D) or now == g:
            return u, D, matrix
        before, D, g = D, D - now * (D - before) / (now - g), now
    raise ValueError(f"the bifurcation of mode {mode} was not found: the test still has {now:.2g} at sigma = {np.sqrt(2 * D):.6g}")


def _expansion(problem: System, u: np.ndarray, D: float, matrix: np.ndarray, n: np.ndarray, left: np.ndarray) -> float:
    """`D_2`."""
    count = len(u)

    def solve(right: np.ndarray) -> np.ndarray:
        return np.linalg.solve(matrix, np.append(right, np.zeros(len(matrix) - count)))[:count]

    # The state u_0 moves with D, and J with both.
    changed = problem.derivative(u, D, n, None) + problem.derivative(u, D, solve(-problem.linear(u, D).slope), n)
    w = solve(-0.5 * problem.derivative(u, D, n, n))
    rest = problem.derivative(u, D, n, w) + problem.derivative(u, D, n, n, n) / 6
    return float(-(left @ rest) / (left @ changed))
