"""Newton's method for measures that do not move, on the cells of a grid.

The unknown u is the density relative to that of the uniform measure, and with the weights w of the cells (their fractions of the
volume) its mass is `<w, u> = 1`. Its rate of change is

    F(u) = - div(u Gamma_u) + sigma^2/2 Laplace u,

in finite volumes whose fluxes are smooth in u and keep it positive. Mass is conserved, `w J = 0` for the Jacobian J of F, and
where the equation commutes with the rotations of the circle, every rotated solution is one too: J is singular, and is bordered with one row
and one column for each of the two.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import FieldLike, MeasureLike, Scalar
from attnflow.measures import Grid
from attnflow.measures.grid.volumes import scharfetter_gummel
from attnflow.numerics.arrays import positive
from attnflow.sums import Dense

# The most cells: the Jacobian is dense.
_CELLS = 4096
# Up to this many cells all pairs are summed: compilation is what takes time then.
_DENSE = 512
# Directions of a Jacobian at a time: each needs room for all pairs of cells.
_BATCH = 16
# How often a step is halved, and the least fraction of its density that a cell keeps in one.
_HALVINGS, _SHRINK = 12, 0.05

# A family of fields and noises, `p -> (field, sigma)`.
Family: TypeAlias = Callable[[Any], tuple[Any, Any]]


class InNoise(eqx.Module):
    """A field with the noise as the parameter."""

    field: FieldLike

    def __call__(self, p: Scalar) -> tuple[FieldLike, Scalar]:
        return self.field, p


class Linear(NamedTuple):
    """F, its Jacobian in u and its derivative in p."""

    value: np.ndarray
    jacobian: np.ndarray
    slope: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class System:
    """`F(u, p)` on a grid, for a family `p -> (field, sigma)`, with `turns` if it commutes with the rotations of the circle."""

    family: Family
    grid: Grid
    turns: bool
    tolerance: float

    @property
    def weights(self) -> np.ndarray:
        volumes = np.asarray(self.grid.mesh.volumes, float)
        return volumes / volumes.sum()

    def relative(self, mu: Grid) -> np.ndarray:
        """The density of a measure relative to that of the uniform one."""
        return np.asarray(mu.weights, float) / self.weights

    def measure(self, u: np.ndarray) -> Grid:
        """The measure of this relative density."""
        mass = jnp.asarray(u * self.weights, self.grid.dtype)
        return self.grid.with_state((mass / jnp.sum(mass)).reshape(self.grid.mesh.shape))

    def rate(self, u: np.ndarray, p: float) -> np.ndarray:
        state, parameter = self._arrays(u, p)
        return np.asarray(_rate(self.family, self.grid, state, parameter), float)

    def linear(self, u: np.ndarray, p: float) -> Linear:
        found = _linear(self.family, self.grid, *self._arrays(u, p))
        return Linear(*(np.asarray(array, float) for array in found))

    def derivative(self, u: np.ndarray, p: float, *along: np.ndarray | None) -> np.ndarray:
        """The derivative of F along all of these directions: `F''[a, b]` along a and b; `None` is the direction of p."""
        directions = tuple(self._arrays(np.zeros_like(u), 1.0) if a is None else self._arrays(a, 0.0) for a in along)
        return np.asarray(_derivative(self.family, self.grid, self._arrays(u, p), directions), float)

    def _arrays(self, *values: np.ndarray | float) -> tuple[Array, ...]:
        return tuple(jnp.asarray(value, self.grid.dtype) for value in values)


def system(family: Family, grid: MeasureLike, p: float, tolerance: Scalar | None) -> System:
    """The system of a family on a grid, refused if Newton's method is not for it."""
    if not isinstance(grid, Grid):
        cure = "deposit tokens with af.Grid.deposit(mu, axes)"
        raise TypeError(check.refusal("guess", "a Grid, on which stationary measures are found", grid, cure))
    # In two dimensions there are more symmetries than the borders hold.
    if grid.axes[0].edges is None or not grid.axes[0].moves:
        raise ValueError(
            f"stationary measures are found over intervals, the circle or a Zonal axis, got {type(grid.axes[0]).__name__}; "
            "af.Zonal(3, cells) has those on S^2 with an axis"
        )
    if grid.mass.size > _CELLS:
        raise ValueError(f"stationary measures are found on at most {_CELLS} cells, got {grid.mass.size}")
    made = family(p)
    if not isinstance(made, tuple) or len(made) != 2:
        raise TypeError(check.refusal("field", "a function p -> (field, sigma)", made))
    check.field("field", made[0])
    tolerance = (1e-9 if grid.dtype == jnp.float64 else 1e-3) if tolerance is None else float(positive("tolerance", tolerance))
    found = System(family, grid, False, tolerance)
    if not grid.axes[0].periodic:
        return found
    uneven = 1 + 0.5 * np.random.default_rng(0).uniform(-1, 1, grid.axes[0].cells)
    rate, turned = found.rate(uneven, p), found.rate(np.roll(uneven, 1), p)
    slack = np.sqrt(np.finfo(grid.dtype).eps) * np.abs(rate).max()
    return dataclasses.replace(found, turns=bool(np.abs(turned - np.roll(rate, 1)).max() <= slack))


class Borders(NamedTuple):
    """Rows `R` with `R u` = `targets`, and columns."""

    rows: np.ndarray
    columns: np.ndarray
    targets: np.ndarray


def borders(system: System, u: np.ndarray, mode: int | None = None) -> Borders:
    """The mass is 1; and if the system turns, the largest Fourier mode of u (or the given one, even) keeps its phase."""
    w, ones = system.weights, np.ones_like(u)
    if not system.turns:
        return Borders(w[None], ones[:, None], np.ones(1))
    modes, phase = np.fft.rfft(u), 0.0
    k = 1 + int(np.abs(modes[1:]).argmax()) if mode is None else mode
    if mode is None and np.abs(modes[k]) > 1e-12 * len(u):
        phase = np.angle(modes[k])
    # Even about angle 0, for a given mode; the phase of an FFT is about the middle of the first cell.
    angle = 2 * np.pi * (np.arange(len(u)) + (0 if mode is None else 0.5)) / len(u)
    q = np.sin(k * angle + phase)
    return Borders(np.stack([w, w * q]), np.stack([ones, q], axis=1), np.array([1.0, 0.0]))


def bordered(J: np.ndarray, columns: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.block([[J, columns], [rows, np.zeros((len(rows), columns.shape[1]))]])


def with_parameter(matrix: np.ndarray, slope: np.ndarray, row: np.ndarray) -> np.ndarray:
    """A bordered matrix with the parameter as the last unknown and a row for u and the parameter as the last equation."""
    extra = len(matrix) - len(slope)
    right, below = np.append(slope, np.zeros(extra)), np.concatenate([row[:-1], np.zeros(extra), row[-1:]])
    return np.vstack([np.column_stack([matrix, right]), below])


class Along(NamedTuple):
    """A step of a continuation: p is an unknown too, and `<row, (u, p)> = target`."""

    row: np.ndarray
    target: float


class Found(NamedTuple):
    """A state, with what was known of the system there when the iteration ended."""

    u: np.ndarray
    p: float
    error: float
    iterations: int
    linear: Linear


def newton(system: System, u: np.ndarray, p: float, border: Borders, most: int, along: Along | None = None) -> Found:
    """The solution near (u, p), at p itself or along a row. Densities stay positive, and a step to a much larger residual is halved."""

    def residual(f: np.ndarray, u: np.ndarray, p: float) -> np.ndarray:
        parts = [f, border.rows @ u - border.targets]
        return np.concatenate(parts if along is None else [*parts, [along.row @ np.append(u, p) - along.target]])

    for iteration in range(most + 1):
        linear = system.linear(u, p)
        now = residual(linear.value, u, p)
        # The multipliers of the borders vanish at a solution; the error is of F itself.
        here = Found(u, p, float(np.abs(now).max()), iteration, linear)
        if not np.isfinite(here.error) or here.error <= system.tolerance:
            return here
        matrix = bordered(linear.jacobian, border.columns, border.rows)
        if along is not None:
            matrix = with_parameter(matrix, linear.slope, along.row)
        try:
            change = np.linalg.solve(matrix, -now)
        except np.linalg.LinAlgError:
            return here
        du, dp = change[: len(u)], 0.0 if along is None else float(change[-1])
        for size in 0.5 ** np.arange(_HALVINGS):
            u, p = np.maximum(here.u + size * du, _SHRINK * here.u), here.p + float(size) * dp
            if np.linalg.norm(residual(system.rate(u, p), u, p)) <= 2 * np.linalg.norm(now):
                break
        else:
            return here
    return here


def growth(system: System, found: Found, border: Borders) -> float:
    """The largest real part of the spectrum of J, without the two directions that do not count: more mass, and a rotation.

    `J - s a b` with `<b, a> = 1` has the eigenvalue of the eigenvector a (on the right) or b (on the left) moved by -s, and no other.
    """
    u, J = found.u, found.linear.jacobian
    away = np.abs(np.diag(J)).max()
    J = J - away * np.outer(np.ones_like(u), system.weights)
    if system.turns:
        modes = np.fft.rfft(u)
        turned = np.fft.irfft(1j * np.arange(len(modes)) * modes, len(u))
        along = border.rows[1] @ turned
        if abs(along) > 1e-6:
            J = J - away * np.outer(turned, border.rows[1]) / along
    return float(np.linalg.eigvals(J).real.max())


@eqx.filter_jit
def _rate(family: Family, grid: Grid, u: Float[Array, " n"], p: Float[Array, ""]) -> Float[Array, " n"]:
    field, sigma = family(p)
    sums = Dense() if grid.mass.size <= _DENSE else None
    shares = grid.mesh.volumes / jnp.sum(grid.mesh.volumes)
    mass = u * shares
    mu = grid.with_state(mass.reshape(grid.mesh.shape))
    return scharfetter_gummel(grid.mesh, mass, mu.face_velocity(field.at(mu, 0.0, sums)), jnp.asarray(sigma, u.dtype) ** 2 / 2) / shares


@eqx.filter_jit
def _linear(family: Family, grid: Grid, u: Array, p: Array) -> tuple[Array, Array, Array]:
    value, push = jax.linearize(lambda u, p: _rate(family, grid, u, p), u, p)
    columns = jax.lax.map(lambda du: push(du, jnp.zeros_like(p)), jnp.eye(len(u), dtype=u.dtype), batch_size=_BATCH)
    return value, columns.T, push(jnp.zeros_like(u), jnp.ones_like(p))


@eqx.filter_jit
def _derivative(family: Family, grid: Grid, at: tuple[Array, ...], directions: tuple[tuple[Array, ...], ...]) -> Array:
    def along(f: Callable[..., Array], direction: tuple[Array, ...]) -> Callable[..., Array]:
        return lambda *at: jax.jvp(f, at, direction)[1]

    return functools.reduce(along, directions, functools.partial(_rate, family, grid))(*at)
