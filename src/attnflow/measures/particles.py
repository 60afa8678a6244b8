"""Tokens: a weighted sum of point masses."""

import json
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._check import instance
from attnflow._types import ArrayLike, Key, PyTree, RowFunction, Scalar
from attnflow.measures.base import values_of
from attnflow.measures.flowing import Drift, FlowingMeasure, Frame, Noise
from attnflow.measures.line import Tokens
from attnflow.measures.velocity import Velocity, moved
from attnflow.numerics.arrays import array, floats, known, on_host, one_program, shares
from attnflow.spaces import Euclidean, Space, space_from
from attnflow.sums import Atoms, Mask

# How many steps a noisy run of tokens takes, if the user does not say.
_STEPS = 1000


class Particles(FlowingMeasure):
    r"""$\mu = \sum_i w_i\, \delta_{x_i}$.

    **Arguments:**

    - `points`: the tokens, one per row, `[n, d]`.
    - `weights`: `[n]`, non-negative; they are divided by their sum. `None` gives every token $1/n$.
    - `order`: `[n]`, the place of each token in its sequence, any finite numbers. It never moves; only masks read it. `None` is the
      position, $0, 1, \dots, n - 1$ row by row; `"fraction"` the same from 0 to 1, as a density over order has it.
    - `space`: where the tokens live.
    """

    discrete = True

    points: Float[Array, "n d"]
    weights: Float[Array, " n"] | None
    order: Float[Array, " n"] | None
    space: Space

    def __init__(self, points: ArrayLike, weights: ArrayLike | None = None, *, order: ArrayLike | None = None, space: Space | None = None):
        self.space = Euclidean() if space is None else instance("space", space, Space, "a space such as af.Sphere()")
        found = floats("points", points, "n d")
        self.space.check(found)
        self.points = self.space.nearest(found)
        self.weights = None if weights is None else _weights(weights, found)
        self.order = None if order is None else _order(order, found)

    @property
    def log_weights(self) -> Float[Array, " n"]:
        r"""$\log w$, minus infinity for a token without mass."""
        if self.weights is None:
            n = len(self.points)
            # Not a constant of a compiled program, which would hold n numbers.
            return array(np.full(n, -np.log(n), self.points.dtype)) if known(self.points) else jnp.full(n, -np.log(n), self.points.dtype)
        massive = self.weights > 0
        return jnp.where(massive, jnp.log(jnp.where(massive, self.weights, 1)), -jnp.inf)

    @property
    def dim(self) -> int:
        return self.points.shape[1]

    @property
    def sequence(self) -> Float[Array, " n"]:
        """The order of the tokens: the given one, or their positions 0, 1, ..., n - 1."""
        if self.order is not None:
            return self.order
        n, dtype = len(self.points), self.points.dtype
        if n > 2 ** (jnp.finfo(dtype).nmant + 1):
            raise ValueError(f"{n} positions are not exact in {dtype}; give float64 points")
        return _positions(self.points)

    @property
    @one_program
    def mean(self) -> Float[Array, " d"]:
        return self.integrate(lambda y: y)

    @property
    @one_program
    def cov(self) -> Float[Array, "d d"]:
        centered = self.points - self.mean[None]
        scaled = centered / len(centered) if self.weights is None else centered * self.weights[:, None]
        return centered.T @ scaled

    def integrate(self, f: RowFunction) -> Float[Array, "..."]:
        values = values_of(f, self.points)
        return jnp.mean(values, axis=0) if self.weights is None else jnp.tensordot(self.weights, values, axes=1)

    def particles(self) -> "Particles":
        return self

    def tokens(self, eps: Float[Array, ""], *, key: Key | None) -> "Particles":
        return self

    def projected(self, direction: Float[Array, " d"]) -> Tokens:
        return Tokens(self.points @ direction, self.weights)

    @one_program
    def angles(self) -> Tokens:
        return Tokens(jnp.mod(jnp.arctan2(*self.points.T[::-1]), 2 * jnp.pi), self.weights)

    @property
    def state(self) -> Float[Array, "n d"]:
        return self.points

    def with_state(self, state: Float[Array, "n d"]) -> "Particles":
        return eqx.tree_at(lambda mu: mu.points, self, state)

    def rate(self, velocity: Velocity | RowFunction) -> Float[Array, "n d"]:
        return self.space.project(self.points, self._apply(velocity))

    def push(self, map: Velocity | RowFunction) -> "Particles":
        return self.with_state(self.space.nearest(self._apply(map)))

    def _apply(self, map: Velocity | RowFunction) -> Float[Array, "n d"]:
        """A map at the tokens, told their order."""
        return moved(map, self.points, _positions(self.points) if self.order is None else self.order)

    def atoms(self, mask: Mask | None = None, ordered: bool = False) -> Atoms:
        if mask is None and not ordered:
            return Atoms(self.points, self.log_weights)
        if mask is not None:
            mask.check_count(len(self.points))
            if self.order is None:
                mask.check_unit(None)
        return Atoms(self.points, self.log_weights, self.sequence, mask)

    @property
    def pairs(self) -> int:
        return len(self.points) ** 2

    def noise(self, sigma: Scalar, *, key: Key | None) -> Noise:
        if key is None:
            raise ValueError("noise on tokens is drawn from a key, got none; pass key=jax.random.key(seed)")
        return Noise(super().noise(sigma, key=key).sigma, key)

    def default_step(self, noise: Noise | None, length: float) -> float | None:
        return None if noise is None else length / _STEPS

    def retract(self, state: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return self.space.nearest(state)

    def motion(self, velocity: Drift, noise: Noise | None = None) -> diffrax.AbstractTerm[Any, Any]:
        r"""With noise $dx = v\,dt + \sigma P_x \circ dB$, in the sense of Stratonovich: on the sphere this is Brownian motion there."""
        drift = super().motion(velocity)
        return drift if noise is None else diffrax.MultiTerm(drift, BrownianTerm(self, noise))

    def default_solver(self, noise: Noise | None = None) -> diffrax.AbstractSolver[Any]:
        return diffrax.Tsit5() if noise is None else diffrax.Heun()

    @staticmethod
    def error_norm(scaled_error: Float[Array, "n d"]) -> Float[Array, ""]:
        # The worst token: a mean over a million tokens would hide the one that goes wrong.
        worst = jnp.sqrt(jnp.max(jnp.mean(scaled_error**2, axis=1)))
        return jnp.where(jnp.isnan(worst), jnp.inf, worst)

    @classmethod
    def from_frame(cls, about: dict[str, Any], variables: dict[str, Any]) -> "Particles":
        extra = {name: variables[name] for name in ("weights", "order") if name in variables}
        return cls(variables["points"][0], space=space_from(json.loads(about["space"])), **extra)

    def frame(self, states: PyTree) -> Frame:
        variables: Frame = {"points": (("time", "token", "coordinate"), states)}
        if self.weights is not None:
            variables["weights"] = (("token",), self.weights)
        if self.order is not None:
            variables["order"] = (("token",), self.order)
        return variables


class BrownianTerm(diffrax.AbstractTerm[Array, Array]):
    """`sigma P_x o dB` over one step, whose increment is drawn from the key of the noise: the solver gives every step a key of its own."""

    measure: Particles
    noise: Noise

    def vf(self, t: Scalar, y: Array, args: PyTree) -> Array:
        return self.measure.retract(y)

    def contr(self, t0: Scalar, t1: Scalar, **kwargs: PyTree) -> Array:
        points, key = self.measure.points, self.noise.key
        assert key is not None
        return jnp.sqrt(t1 - t0) * jax.random.normal(key, points.shape, points.dtype)

    def prod(self, vf: Array, control: Array) -> Array:
        return self.noise.sigma.astype(control.dtype) * self.measure.space.project(vf, control)


def _weights(weights: ArrayLike, points: Array) -> Array:
    found = shares("weights", weights, points.dtype)
    if len(found) != len(points):
        raise ValueError(f"weights must have one entry per token, {len(points)}, got {len(found)}")
    return found


def _order(order: ArrayLike, points: Array) -> Array:
    if isinstance(order, str):
        if order != "fraction":
            raise ValueError(f"order must be numbers [n] or 'fraction', got {order!r}; leave it out for the positions 0, 1, ..., n - 1")
        last = max(len(points) - 1, 1)
        return on_host(lambda position: position / last, _positions(points))
    kept = array(floats("order", order, "n"), points.dtype)
    if len(kept) != len(points):
        raise ValueError(f"order must have one entry per token, {len(points)}, got {len(kept)}")
    if known(order) and not _same_order(np.asarray(order), np.asarray(kept)):
        raise ValueError(
            f"order must keep its digits in {kept.dtype}, got numbers that become others; give float64 points, or count from 0"
        )
    return kept


def _positions(points: Array) -> Array:
    """0, 1, ..., n - 1: exact where the precision represents these whole numbers."""
    n, dtype = len(points), points.dtype
    # On the host if the points are known; in a program not as a constant, which would hold n numbers.
    return array(np.arange(n, dtype=dtype)) if known(points) else jnp.arange(n, dtype=dtype)


def _same_order(given: np.ndarray, kept: np.ndarray) -> bool:
    """Whether whole numbers are the same, and others as different from each other as they were."""
    if given.dtype.kind in "iu":
        return bool((kept.astype(np.longdouble) == given.astype(np.longdouble)).all())
    return given.dtype.itemsize <= kept.dtype.itemsize or len(np.unique(kept)) == len(np.unique(given))
