"""Branches of stationary measures, followed around their folds as the noise or another parameter changes.

By pseudo-arclength continuation (Keller 1977): from a solution with the unit tangent (u', p') the next one is sought in the plane
`<u', u - u_0> + p' (p - p_0) = step`, so that the parameter may turn back. Here `<a, b>` is the mean of a b over the grid, and u the
density relative to the uniform one.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float

from attnflow import _check as check
from attnflow._types import ArrayLike, FieldLike, Scalar
from attnflow.equilibria.bifurcation import Bifurcation
from attnflow.equilibria.newton import Along, Borders, Family, Found, InNoise, System, bordered, borders, newton, system, with_parameter
from attnflow.equilibria.stationary import Stationary, state
from attnflow.numerics.arrays import floats, positive

# A step is too long if Newton's method needs more iterations, or if the tangent turns by more than the angle of this cosine.
_ITERATIONS, _TURN = 8, 0.9

# What a branch begins at; at run time anything may come, and is refused in one line.
if TYPE_CHECKING:
    Start: TypeAlias = Bifurcation | Stationary
else:
    Start = Any


@dataclasses.dataclass(frozen=True, eq=False)
class Branch:
    """Stationary measures in a row: `branch[i]` is a `Stationary`.

    `parameter`, `order` (the length of the mean), `growth` and `error` have one entry per state. `status` says why the branch ends: it
    `left` the range of the parameter, has as many `points` as asked for, or `stalled`, because no next state was found.
    """

    states: tuple[Stationary, ...]
    parameter: Float[np.ndarray, " k"]
    status: Literal["left", "points", "stalled"]

    @property
    def order(self) -> Float[np.ndarray, " k"]:
        return np.array([state.order for state in self.states])

    @property
    def growth(self) -> Float[np.ndarray, " k"]:
        return np.array([state.growth for state in self.states])

    @property
    def error(self) -> Float[np.ndarray, " k"]:
        return np.array([state.error for state in self.states])

    @property
    def folds(self) -> Float[np.ndarray, "f 2"]:
        """Where the parameter turns back: parameter and order, by parabolas through three states."""
        p, order, found = self.parameter, self.order, []
        for i in range(1, len(p) - 1):
            if (p[i] - p[i - 1]) * (p[i + 1] - p[i]) < 0:
                fit = np.polyfit(order[i - 1 : i + 2], p[i - 1 : i + 2], 2)
                top = -fit[1] / (2 * fit[0])
                found.append((np.polyval(fit, top), top))
        return np.array(found).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, i: int) -> Stationary:
        return self.states[i]


def branch(
    field: FieldLike | Family,
    start: Start,
    between: ArrayLike,
    *,
    at: Scalar | None = None,
    direction: Literal[1, -1] = 1,
    points: int = 200,
    step: Scalar = 0.05,
    tolerance: Scalar | None = None,
) -> Branch:
    r"""The stationary measures that begin at a bifurcation, or that continue a stationary measure.

    **Arguments:**

    - `field`: a law or a field, and the parameter is the noise $\sigma$. If `at` is given: a function `p -> (field, sigma)` of any
      parameter `p` that JAX can differentiate in `p`, such as the inverse temperature.
    - `start`: from `bifurcation` or `stationary`; `at` is the parameter there.
    - `between`: the range of the parameter; the branch ends where it leaves it.
    - `direction`: from a bifurcation, along its mode or against it; from a stationary measure, with the parameter rising (1) or
      falling (-1).
    - `points`: the most states.
    - `step`: the longest step, in units of the norm of the relative density.
    """
    cure = "af.bifurcation and af.stationary find one"
    check.instance("start", start, (Bifurcation, Stationary), "a Bifurcation or a Stationary measure", cure)
    ends = floats("between", between, "k")
    if len(ends) != 2:
        raise ValueError(f"between must be the two ends of a range, got {len(ends)} numbers")
    low, high = map(float, ends)
    family: Any = field
    if at is None:
        family, p = InNoise(check.field("field", family)), start.noise
    else:
        check.function("field", field, "a function p -> (field, sigma) where at is given")
        p = float(floats("at", at, ""))
    if not low <= p <= high:
        raise ValueError(f"between must be a range with the parameter of the start, {p:.6g}, in it, got {between}")
    if at is not None and isinstance(start, Bifurcation):
        raise ValueError("at is for a Stationary measure to start from, got a Bifurcation; without at the parameter is the noise")
    if not isinstance(direction, int) or direction not in (1, -1):
        raise ValueError(check.refusal("direction", "1 or -1", direction))
    check.count("points", points, 2)
    longest = float(positive("step", step))
    problem = system(family, start.measure, p, tolerance)
    u = problem.relative(start.measure)
    linear = problem.linear(u, p)
    here = Found(u, p, float(np.abs(linear.value).max()), 0, linear)
    if isinstance(start, Bifurcation):
        border = borders(problem, u, start.mode)
        tangent = np.append(start.direction, 0.0)
    else:
        border = borders(problem, u)
        tangent = _tangent(problem, here, border, np.append(np.zeros_like(u), 1.0))
    tangent = direction * tangent / _norm(problem, tangent)
    return _follow(problem, here, tangent, border, (low, high), points, longest)


def _follow(
    problem: System, here: Found, tangent: np.ndarray, border: Borders, between: tuple[float, float], points: int, step: float
) -> Branch:
    found, length, status = [here], step / 4, "points"
    metric = _metric(problem)
    while len(found) < points:
        here = found[-1]
        # A concentrated measure changes much in density while it hardly moves: steps are relative to its size.
        size = length * np.sqrt(problem.weights @ here.u**2)
        ahead = np.append(here.u, here.p) + size * tangent
        row = metric * tangent
        there = newton(problem, np.maximum(ahead[:-1], 0.1 * here.u), float(ahead[-1]), border, _ITERATIONS, Along(row, float(row @ ahead)))
        turned = _tangent(problem, there, border, tangent)
        if not there.error <= problem.tolerance or metric * turned @ tangent < _TURN:
            length /= 2
            if length < step / 1000:
                status = "stalled"
                break
            continue
        if not between[0] <= there.p <= between[1]:
            status = "left"
            edge = newton(problem, there.u, min(max(there.p, between[0]), between[1]), border, _ITERATIONS)
            found += [edge] if edge.error <= problem.tolerance else []
            break
        found.append(there)
        tangent = turned
        length = min(length * (1.5 if there.iterations <= 3 else 1.0), step)
    return Branch(tuple(state(problem, point, border) for point in found), np.array([point.p for point in found]), status)


def _tangent(problem: System, here: Found, border: Borders, before: np.ndarray) -> np.ndarray:
    """The unit tangent of the branch, on the side of `before`: `J u' + F_p p' = 0` with the borders kept."""
    matrix = with_parameter(bordered(here.linear.jacobian, border.columns, border.rows), here.linear.slope, _metric(problem) * before)
    found = np.linalg.solve(matrix, np.append(np.zeros(len(matrix) - 1), 1.0))
    found = np.append(found[: len(here.u)], found[-1])
    return found / _norm(problem, found)


def _metric(problem: System) -> np.ndarray:
    return np.append(problem.weights, 1.0)


def _norm(problem: System, z: np.ndarray) -> float:
    return float(np.sqrt(_metric(problem) @ z**2))
