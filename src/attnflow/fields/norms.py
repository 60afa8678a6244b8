"""Layer norms: maps of rows of points, for before or after a layer."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._types import ArrayLike, Scalar
from attnflow.numerics.arrays import cast, floats, known, rows


class LayerNorm(eqx.Module):
    r"""$x \mapsto g\, (x - \bar{x}) / \sqrt{v + \varepsilon} + b$, row by row: the mean $\bar{x}$ and the variance $v$ are over the $d$
    coordinates of one token, the variance divided by $d$ (Ba et al. 2016, arXiv:1607.06450).

    **Arguments:** `gain` $g$ and `bias` $b$ `[d]` (one and zero if not given), and `epsilon`, not negative.
    """

    gain: Float[Array, " d"] | None
    bias: Float[Array, " d"] | None
    epsilon: Float[Array, ""]

    def __init__(self, gain: ArrayLike | None = None, bias: ArrayLike | None = None, *, epsilon: Scalar = 1e-5):
        self.gain = None if gain is None else floats("gain", gain, "d")
        self.bias = None if bias is None else floats("bias", bias, "d")
        self.epsilon = _epsilon(epsilon)

    def __call__(self, x: Float[Array, "m d"]) -> Float[Array, "m d"]:
        x = rows("x", x)
        norm = cast(self, x.dtype)
        unit = _unit(x - jnp.mean(x, axis=1, keepdims=True), norm.epsilon)
        scaled = unit if norm.gain is None else unit * _row("gain", norm.gain, x)
        return scaled if norm.bias is None else scaled + _row("bias", norm.bias, x)


class RMSNorm(eqx.Module):
    r"""$x \mapsto g\, x / \sqrt{|x|^2 / d + \varepsilon}$, row by row (Zhang and Sennrich 2019, arXiv:1910.07467). With $g = 1$ and
    $\varepsilon = 0$ it is the projection to the sphere of radius $\sqrt{d}$.

    **Arguments:** `gain` $g$ `[d]` (one if not given), and `epsilon`, not negative.
    """

    gain: Float[Array, " d"] | None
    epsilon: Float[Array, ""]

    def __init__(self, gain: ArrayLike | None = None, *, epsilon: Scalar = 1e-5):
        self.gain = None if gain is None else floats("gain", gain, "d")
        self.epsilon = _epsilon(epsilon)

    def __call__(self, x: Float[Array, "m d"]) -> Float[Array, "m d"]:
        x = rows("x", x)
        norm = cast(self, x.dtype)
        unit = _unit(x, norm.epsilon)
        return unit if norm.gain is None else unit * _row("gain", norm.gain, x)


def _unit(x: Array, epsilon: Array) -> Array:
    """The rows of x with mean square 1, up to epsilon."""
    return x / jnp.sqrt(jnp.mean(x**2, axis=1, keepdims=True) + epsilon)


def _row(name: str, vector: Array, x: Array) -> Array:
    if len(vector) != x.shape[1]:
        raise ValueError(f"{name} must have one entry per coordinate of the rows of x, {x.shape[1]}, got {len(vector)}")
    return vector[None]


def _epsilon(value: Scalar) -> Array:
    epsilon = floats("epsilon", value, "")
    if known(epsilon) and float(epsilon) < 0:
        raise ValueError(f"epsilon must not be negative, got {float(epsilon)}")
    return epsilon
