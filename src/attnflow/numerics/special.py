"""Special functions."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._types import Scalar


def safe_root(square: Float[Array, "..."]) -> Float[Array, "..."]:
    """The square root; 0 below 0, which is round-off, and its derivative there is 0 (a subgradient of a norm), not infinite or NaN."""
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), 0)


def normal_density(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The standard normal density."""
    # That of jax.scipy.stats costs the import of all its distributions.
    return jnp.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)


def scaled_bessel(r: Scalar, count: int) -> Float[Array, " count"]:
    """`e^{-r} I_m(r)` for m = 0, ..., count - 1: the Fourier coefficients of `e^{r (cos a - 1)}`, by a sum over equally spaced
    angles. Its error is the size of the coefficients beyond their number."""
    # 2 sin^2(a/2) in place of 1 - cos(a), whose round-off a large r multiplies.
    versine = jnp.asarray(2 * np.sin(np.pi * np.arange(4 * count) / (4 * count)) ** 2, jnp.asarray(r).dtype)
    return jnp.real(jnp.fft.rfft(jnp.exp(-r * versine)))[:count] / (4 * count)


def zonal_harmonic(k: int, dim: int, s: np.ndarray) -> np.ndarray:
    """`P_k(s)`, the spherical harmonic of degree k on S^{dim-1} that depends on `s = x_1` alone and is 1 at the pole: Legendre's polynomial
    for dim = 3, `cos(k a)` at `s = cos a` for dim = 2."""
    before, now = np.ones_like(s), s
    for n in range(1, k):
        before, now = now, ((2 * n + dim - 2) * s * now - n * before) / (n + dim - 2)
    return before if k == 0 else now


def zonal_slope(k: int, dim: int, s: np.ndarray) -> np.ndarray:
    """`P_k'(s)`: `k(k+d-2)/(d-1)` times the harmonic of degree k - 1 two dimensions up."""
    return k * (k + dim - 2) / (dim - 1) * zonal_harmonic(k - 1, dim + 2, s)


def cos_sin(x: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """`cos x` and `sin x` of moderate x, to round-off times 1 + |x|: the quarter turns are subtracted, the rest is a short series.

    On CPU, XLA calls the scalar functions of the C library; this is vectorized, about ten times as fast.
    """
    turns = jnp.floor(x * (2 / np.pi) + 0.5)
    # pi/2 in two parts, the first with zeros at its end, so that its multiples are exact.
    high = float(np.float32(np.pi / 2)) if x.dtype == jnp.float64 else 1.5703125
    rest = (x - turns * high) - turns * (np.pi / 2 - high)
    square, terms = rest**2, 9 if x.dtype == jnp.float64 else 5
    cosine = sine = jnp.zeros_like(x)
    for k in range(terms, 0, -1):
        cosine = (1 + cosine) * square * (-1 / ((2 * k) * (2 * k - 1)))
        sine = (1 + sine) * square * (-1 / ((2 * k + 1) * (2 * k)))
    cosine, sine = 1 + cosine, rest * (1 + sine)
    quarter = turns - 4 * jnp.floor(turns / 4)
    odd = (quarter == 1) | (quarter == 3)
    c, s = jnp.where(odd, sine, cosine), jnp.where(odd, cosine, sine)
    return jnp.where((quarter == 1) | (quarter == 2), -c, c), jnp.where(quarter >= 2, -s, s)
