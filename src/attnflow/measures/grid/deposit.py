"""From points and densities to the masses of cells."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._check import function, refusal, shown
from attnflow._types import ArrayLike, Key
from attnflow.measures.grid.axes import Axis
from attnflow.measures.grid.mesh import Mesh
from attnflow.numerics.arrays import array, floats, known, on_host, one_program

# A density given by a formula misses mass 1 by the error of the midpoint rule and by what lies outside the box; more is a mistake.
_OFF = 1e-3


def deposited(
    mesh: Mesh, points: Float[Array, "m d"], weights: Float[Array, " m"], order: Float[Array, " m"] | None
) -> Float[Array, "..."]:
    """The masses of cells that take the weights of points, shared along each axis as that axis says."""
    return _shared(mesh.axes, tuple(array(axis.locate(x)) for axis, x in _along(mesh, points, order)), weights)


def _along(mesh: Mesh, points: Float[Array, "m d"], order: Float[Array, " m"] | None) -> Iterator[tuple[Axis, Any]]:
    """Every axis with what belongs to it of points and their order, on the host if they are known."""
    columns = mesh.columns(*(np.asarray(x) if x is not None and known(x) else x for x in (points, order)))
    return zip(mesh.axes, columns, strict=True)


@one_program
def _shared(axes: tuple[Axis, ...], numbers: tuple[Array, ...], weights: Float[Array, " m"]) -> Float[Array, "..."]:
    mass = jnp.zeros(tuple(axis.cells for axis in axes), weights.dtype)
    for corner in itertools.product(*(axis.shares(number) for axis, number in zip(axes, numbers, strict=True))):
        cells, parts = zip(*corner, strict=True)
        mass = mass.at[cells].add(weights * math.prod(parts))
    return mass


def values_at(fn: Callable[..., Array], mesh: Mesh, normalize: bool) -> Float[Array, " n"]:
    """A density at the middles of the cells, divided by its mass if it is to be normalized."""
    values = _tried(fn, mesh)
    if not normalize:
        return values
    mass = on_host(lambda rho, volumes: (rho * volumes).sum(), values, mesh.volumes)
    if known(mass) and not 0 < float(mass) < math.inf:
        raise ValueError(f"fn must have a positive finite mass to be normalized, got {float(mass):.6g}")
    return on_host(lambda rho, mass: rho / mass, values, mass)


def _tried(fn: Callable[..., Array], mesh: Mesh) -> Float[Array, " n"]:
    """The values of a function of points, or of the coordinate along each axis, whichever gives one number per cell."""
    function("fn", fn, "a function of points, or of the coordinate", "Grid takes the numbers themselves")
    n, order = len(mesh.points), () if mesh.order is None else (mesh.order,)
    ways: dict[str, tuple[Array, ...]] = {f"points {list(mesh.points.shape)}": (mesh.points,)}
    moving = [(axis, x) for axis, x in _along(mesh, mesh.points, mesh.order) if axis.moves]
    if all(axis.coordinate is not None for axis, _ in moving):
        word = f"the {moving[0][0].coordinate}{'s' if len(moving) > 1 else ''} [{n}]"
        ways[word] = tuple(array(axis.locate(x)) for axis, x in moving)
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
    raise ValueError(f"fn must give one number per cell, [{n}], as a function of {' or of '.join(ways)}, got: {'; '.join(found)}")


def _numbers(density: ArrayLike) -> np.ndarray:
    """Numbers of any shape."""
    try:
        found = np.asarray(density)
    except (TypeError, ValueError):
        found = np.asarray(None)
    if found.dtype.kind in "OSU":
        raise ValueError(refusal("density", "an array of numbers, one per cell", density, "Grid.from_density takes a function"))
    return found


def masses(density: ArrayLike, where: Mesh) -> Float[Array, "..."]:
    """The masses of the cells of a density, one number per cell, of total mass 1."""
    values = density if isinstance(density, jax.Array) else _numbers(density)
    if values.shape != where.shape:
        raise ValueError(f"density must have one number per cell, {list(where.shape)}, got {list(values.shape)}")
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
    for axis, x in _along(mesh, points, order):
        axis.check(x)


@one_program
def quantiles(axis: Axis, weights: Float[Array, " c"], n: int) -> Float[Array, "n d"]:
    r"""The points at the quantiles $(i + \frac12)/n$ of the masses along an axis."""
    levels = jnp.concatenate([jnp.zeros(1, weights.dtype), jnp.cumsum(weights)])
    where = (jnp.arange(n, dtype=weights.dtype) + 0.5) / n
    return axis.chart(jnp.interp(where, levels / levels[-1], jnp.asarray(axis.edges, weights.dtype)))


@one_program
def sampled(axes: tuple[Axis, ...], weights: Float[Array, " c"], n: int, *, key: Key) -> tuple[Array, Array | None]:
    """`n` points, each in a cell that is chosen by its mass, and their order if there is an axis for it."""
    pick, place, turn = jax.random.split(key, 3)
    cells = jnp.unravel_index(jax.random.choice(pick, len(weights), (n,), p=weights), tuple(axis.cells for axis in axes))
    parts = jax.random.uniform(place, (len(axes), n), weights.dtype)
    found = list(zip(axes, cells, parts, [turn] if len(axes) == 1 else jax.random.split(turn, len(axes)), strict=True))
    points = jnp.concatenate([axis.sample(cell, part, key=key) for axis, cell, part, key in found if axis.moves], axis=1)
    order = [axis.within(cell, part) for axis, cell, part, _ in found if not axis.moves]
    return points, order[0] if order else None
