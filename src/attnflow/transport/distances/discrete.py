"""Exact transport between two clouds on any space, by the network simplex of POT."""

import warnings
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow.measures import Particles
from attnflow.numerics.arrays import known
from attnflow.spaces import Space

# Both the costs and the plan are dense arrays of this many doubles (200 MB).
_MOST_PAIRS = 5000**2
_PIVOTS = 10**8
_CURE = "use sliced_wasserstein2, or sinkhorn_divergence"


class _Plan(NamedTuple):
    """The pairs that mass moves between, the mass, and the potentials: `u_i + v_j <= c_ij`, equal on the pairs."""

    i: np.ndarray
    j: np.ndarray
    mass: np.ndarray
    u: np.ndarray
    v: np.ndarray


def squared_by_simplex(mu: Particles, nu: Particles) -> Float[Array, ""]:
    """`min over couplings of E dist(x, y)^2`, with the distance of the space of both clouds. Derivatives are those of the optimal plan."""
    if len(mu.points) * len(nu.points) > _MOST_PAIRS:
        raise ValueError(
            f"exact transport is for at most {_MOST_PAIRS} pairs of tokens, got {len(mu.points)} x {len(nu.points)}; {_CURE}, "
            "or fewer tokens"
        )
    return _cost(mu.space, mu.points, jnp.exp(mu.log_weights), nu.points, jnp.exp(nu.log_weights))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _cost(space: Space, x: Float[Array, "n d"], a: Float[Array, " n"], y: Float[Array, "m d"], b: Float[Array, " m"]) -> Float[Array, ""]:
    plan = _solve(space, x, a, y, b)
    return _along(space, plan, x, y)


@_cost.defjvp
def _cost_jvp(space, primals, tangents):
    """The plan is stationary in its own variables: the cost changes by that of its pairs, and by the potentials times the masses."""
    x, a, y, b = primals
    dx, da, dy, db = tangents
    plan = _solve(space, x, a, y, b)
    value, d_value = jax.jvp(lambda x, y: _along(space, plan, x, y), (x, y), (dx, dy))
    return value, d_value + jnp.vdot(jnp.asarray(plan.u, a.dtype), da) + jnp.vdot(jnp.asarray(plan.v, b.dtype), db)


def _along(space: Space, plan: _Plan, x: Float[Array, "n d"], y: Float[Array, "m d"]) -> Float[Array, ""]:
    return jnp.vdot(jnp.asarray(plan.mass, x.dtype), space.distance(x[plan.i], y[plan.j]) ** 2)


def _solve(space: Space, x: Array, a: Array, y: Array, b: Array) -> _Plan:
    """The optimal plan, with a certificate: the potentials are made feasible, so that the duality gap bounds the error."""
    if not known(x, a, y, b):
        raise TypeError(f"exact transport in this space runs on the host, not inside jit, vmap or a second derivative; {_CURE}")
    import ot

    costs = np.array(_costs(space, x, y), dtype=np.float64)
    # The simplex takes small costs for zero, whatever the scale of the others: without this, tokens 1e-10 apart get a wrong plan.
    scale = costs.max() or 1.0
    costs /= scale
    left, right = (np.asarray(w, dtype=np.float64) for w in (a, b))
    left, right = left / left.sum(), right / right.sum()
    rows, columns = np.flatnonzero(left), np.flatnonzero(right)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        _, log = ot.emd2(left[rows], right[columns], costs[np.ix_(rows, columns)], numItermax=_PIVOTS, log=True, return_matrix=True)
    if log["warning"] is not None:
        raise RuntimeError(f"the simplex of POT stopped short of the optimum: {log['warning']}")
    i, j = np.nonzero(log["G"])
    i, j, mass = rows[i], columns[j], log["G"][i, j]
    u = np.min(costs[:, columns] - log["v"][None], axis=1)
    v = np.min(costs - u[:, None], axis=0)
    cost = mass @ costs[i, j]
    gap = abs(cost - left @ u - right @ v)
    if not (gap <= 1e-8 * cost + 1e-13 and abs(mass.sum() - 1) <= 1e-9):
        raise RuntimeError(f"the plan of POT is not optimal: its cost {cost * scale:.6g} is off by up to {gap * scale:.2g}; {_CURE}")
    return _Plan(i, j, mass, scale * u, scale * v)


@partial(jax.jit, static_argnums=0)
def _costs(space: Space, x: Float[Array, "n d"], y: Float[Array, "m d"]) -> Float[Array, "n m"]:
    return jax.lax.map(lambda point: space.distance(jnp.broadcast_to(point, y.shape), y) ** 2, x)
