"""From points to cells, and around the bands of a zonal grid."""

import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._arrays import array, floats, known, on_host, one_program
from attnflow._check import function, refusal, shown
from attnflow.measures.axes import Circle, Icosphere, Interval, Order
from attnflow.measures.mesh import Mesh

# A density given by a formula misses mass 1 by the error of the midpoint rule and by what lies outside the box; more is a mistake.
_OFF = 1e-3


def deposited(
    mesh: Mesh, points: Float[Array, "m d"], weights: Float[Array, " m"], order: Float[Array, " m"] | None
) -> Float[Array, "..."]:
    """The masses of cells that take the weights of points: shared between the two nearest cells along each axis, in proportion (cloud in
    cell), which keeps the mean. An order goes to its own cell; on an icosphere a point goes to the nearest one."""
    if isinstance(mesh.axes[0], Icosphere):
        return jnp.zeros(mesh.shape, weights.dtype).at[_nearest(mesh, points)].add(weights)
    return _shared(mesh, points, weights, order)


@one_program
def _shared(mesh: Mesh, points: Float[Array, "m d"], weights: Float[Array, " m"], order: Float[Array, " m"] | None) -> Float[Array, "..."]:
    shares = []
    columns = iter(points.T)
    for axis in mesh.axes:
        if isinstance(axis, Order):
            assert order is not None
            inner = jnp.asarray(axis.edges[1:-1], order.dtype)
            cell = jnp.searchsorted(inner, order, side="right")
            shares.append([(cell, jnp.ones_like(order))])
            continue
        shares.append(_pair(axis, next(columns)) if isinstance(axis, Interval) else _pair(axis, *columns))
    mass = jnp.zeros(mesh.shape, weights.dtype)
    for corner in itertools.product(*shares):
        mass = mass.at[tuple(cell for cell, _ in corner)].add(weights * math.prod(part for _, part in corner))  # pyright: ignore
    return mass


def _pair(axis: Any, *x: Float[Array, " m"]) -> list[tuple[Array, Array]]:
    """The two cells next to each coordinate, and their parts."""
    if isinstance(axis, Interval):
        # What would leave through a wall stays in front of it.
        at = jnp.clip((x[0] - axis.low) / axis.width - 0.5, 0, axis.cells - 1)
    elif isinstance(axis, Circle):
        at = jnp.arctan2(x[1], x[0]) / axis.width - 0.5
    else:
        at = jnp.arctan2(jnp.sqrt(sum(c**2 for c in x[1:])), x[0]) / axis.width - 0.5
    below = jnp.floor(at)
    part, cell = at - below, below.astype(int)
    if isinstance(axis, Circle):
        return [(cell % axis.cells, 1 - part), ((cell + 1) % axis.cells, part)]
    return [(jnp.clip(cell, 0, axis.cells - 1), 1 - part), (jnp.clip(cell + 1, 0, axis.cells - 1), part)]


def values_at(fn: Any, mesh: Mesh, normalize: bool) -> Float[Array, " n"]:
    """A density at the middles of the cells, divided by its mass if it is to be normalized."""
    values = _tried(fn, mesh)
    if not normalize:
        return values
    mass = on_host(lambda rho, volumes: (rho * volumes).sum(), values, mesh.volumes)
    if known(mass) and not 0 < float(mass) < math.inf:
        raise ValueError(f"fn must have a positive finite mass to be normalized, got {float(mass):.6g}")
    return on_host(lambda rho, mass: rho / mass, values, mass)


def _tried(fn: Any, mesh: Mesh) -> Float[Array, " n"]:
    """The values of a function of points, or of the coordinate along each axis, whichever gives one number a cell."""
    function("fn", fn, "a function of points, or of the coordinate", "Grid takes the numbers themselves")
    n, order = len(mesh.points), () if mesh.order is None else (mesh.order,)
    ways = {f"points {list(mesh.points.shape)}": (mesh.points,)}
    if isinstance(mesh.axes[0], Circle):
        ways[f"the angle [{n}]"] = (array(np.arctan2(*np.asarray(mesh.points).T[::-1]) % (2 * np.pi)),)
    elif isinstance(mesh.axes[-1], Interval):
        ways[f"the coordinate{'' if mesh.points.shape[1] == 1 else 's'} [{n}]"] = tuple(mesh.points.T)
    found = []
    for way, arguments in ways.items():
        try:
            values = fn(*arguments, *order)
            if jnp.shape(values) in ((), (n,)):
                return jnp.broadcast_to(jnp.asarray(values), (n,))
            found.append(f"of {way} it gave {shown(values)}")
        except Exception as error:
            line = (str(error).strip() or "nothing said").splitlines()[0]
            found.append(f"of {way} it raised {type(error).__name__}: {line[:80]}")
    raise ValueError(f"fn must give one number a cell, [{n}], as a function of {' or of '.join(ways)}, got: {'; '.join(found)}")


def _numbers(density: Any) -> np.ndarray:
    """Numbers of any shape."""
    try:
        found = np.asarray(density)
    except (TypeError, ValueError):
        found = np.asarray(None)
    if found.dtype.kind in "OSU":
        raise ValueError(refusal("density", "an array of numbers, one a cell", density, "Grid.from_density takes a function"))
    return found


def masses(density: Any, where: Mesh) -> Float[Array, "..."]:
    """The masses of the cells of a density, one number a cell, of total mass 1."""
    values = density if isinstance(density, jax.Array) else _numbers(density)
    if values.shape != where.shape:
        raise ValueError(f"density must have one number a cell, {list(where.shape)}, got {list(values.shape)}")
    values = array(floats("density", values.reshape(-1), "n"), where.points.dtype)
    mass = on_host(lambda rho, volumes: rho * volumes, values, where.volumes)
    if known(values):
        host = np.asarray(values)
        if host.min() < 0:
            raise ValueError(f"density must not be negative, got {host.min():.6g} in cell {int(host.argmin())}")
        total = float(np.asarray(mass).sum())
        if not abs(total - 1) <= _OFF:
            raise ValueError(
                f"density must have mass 1 on these axes, got {total:.6g}; divide by it (from_density: normalize=True), or give it room"
            )
    return on_host(lambda mass: (mass / mass.sum()).reshape(where.shape), mass)


def check_inside(mesh: Mesh, points: Float[Array, "m d"], order: Float[Array, " m"] | None) -> None:
    """Raise if a point lies beyond the walls of a box, or a token outside the order."""
    for axis in mesh.axes:
        if isinstance(axis, Order) and order is not None:
            axis.check(order)
    intervals = [axis for axis in mesh.axes if isinstance(axis, Interval)]
    if not known(points):
        return
    for axis, x in zip(intervals, np.asarray(points).T):
        low, high = float(x.min()), float(x.max())
        if low < axis.low or high > axis.high:
            raise ValueError(f"points must lie in [{axis.low}, {axis.high}], got {low:.6g} to {high:.6g}; widen the Interval")


def _nearest(mesh: Mesh, points: Float[Array, "m 3"]) -> Array:
    """The cell that each point lies in, on the host."""
    from scipy.spatial import KDTree

    if not known(points):
        raise ValueError("points find their cells on an Icosphere outside jit and grad only")
    return jnp.asarray(KDTree(np.asarray(mesh.points)).query(np.asarray(points))[1])


@functools.lru_cache
def rule_around(dim: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and weights of a Gauss rule for averages over S^{dim-2} of functions of one coordinate: the weight is
    `(1 - s^2)^{(dim-4)/2}`, Chebyshev's for dim = 3, Gegenbauer's beyond."""
    if dim == 3:
        angle = (np.arange(nodes) + 0.5) * np.pi / nodes
        return np.cos(angle), np.full(nodes, 1 / nodes)
    # Golub and Welsch: the rule is the spectrum of the matrix of the recurrence of Gegenbauer polynomials with parameter a.
    a, k = (dim - 3) / 2, np.arange(1, nodes)
    beside = np.sqrt(k * (k + 2 * a - 1) / (4 * (k + a) * (k + a - 1)))
    values, vectors = np.linalg.eigh(np.diag(beside, 1) + np.diag(beside, -1))
    return values, vectors[0] ** 2
