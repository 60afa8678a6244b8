"""Whether tokens lie in an open hemisphere, and which of them are far from all before them."""

import math

import numpy as np
from jaxtyping import Bool, Float

from attnflow import _check as check
from attnflow._types import MeasureLike, Scalar
from attnflow.measures import Particles
from attnflow.numerics.arrays import positive


def in_hemisphere(mu: MeasureLike) -> bool:
    r"""Whether some $w$ has $\langle w, x_i\rangle > 0$ for all tokens, by a linear program: maximize $m$ with
    $\langle w, x_i\rangle \ge m$, $|w_k| \le 1$.

    If so, simple attention takes them to one point (arXiv:2312.10794). A margin within the round-off of the program counts as none.
    """
    from scipy.optimize import linprog

    _, points = _points(mu)
    n, d = points.shape
    rows = np.concatenate([-points, np.ones((n, 1))], axis=1)
    found = linprog(np.append(np.zeros(d), -1.0), A_ub=rows, b_ub=np.zeros(n), bounds=[(-1, 1)] * d + [(0, 1)], method="highs")
    if found.status != 0:
        raise RuntimeError(f"the linear program of the hemisphere failed: {found.message}")
    return bool(found.x[-1] > 1e-9)


def renyi_centers(mu: MeasureLike, delta: Scalar, *, strong: bool = False) -> Bool[np.ndarray, " n"]:
    r"""Which tokens, in their order, are Renyi centers: farther than the angle $\delta$ from all centers before them;
    strong ones from all tokens before them.

    Under causal attention tokens gather around the centers, and around strong ones forever (arXiv:2411.04990).
    """
    (tokens, points), angle = _points(mu), float(positive("delta", delta))
    check.flag("strong", strong)
    order = np.argsort(np.asarray(tokens.sequence), kind="stable") if tokens.order is not None else np.arange(len(points))
    found, reach = np.zeros(len(points), bool), math.cos(min(angle, math.pi))
    before = np.zeros((0, points.shape[1]))
    for start in range(0, len(points), 256):
        rows = order[start : start + 256]
        free = (points[rows] @ before.T).max(axis=1, initial=-2.0) < reach
        near = points[rows] @ points[rows].T >= reach
        if strong:
            found[rows] = free & ~np.tril(near, -1).any(axis=1)
        else:
            for k in np.flatnonzero(free):
                found[rows[k]] = not (near[k, :k] & found[rows[:k]]).any()
        before = np.concatenate([before, points[rows] if strong else points[rows[found[rows]]]])
    return found


def _points(mu: MeasureLike) -> tuple[Particles, Float[np.ndarray, "n d"]]:
    """Tokens of the sphere, and their directions: angles are the same on a sphere of any radius."""
    mu = check.measure("mu", mu, Particles, "Particles, tokens on the sphere")
    if mu.space.radius is None:
        raise TypeError(f"mu must be tokens on the sphere, got tokens on {mu.space}; give space=af.Sphere()")
    return mu, np.asarray(mu.points, np.float64) / mu.space.radius
