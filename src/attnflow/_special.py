"""Special functions that several rooms of the house use."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def scaled_bessel(r: Any, count: int) -> Float[Array, " count"]:
    """`e^{-r} I_m(r)` for m = 0, ..., count - 1: the Fourier coefficients of `e^{r (cos a - 1)}`, by a sum over equal angles, which is
    exact up to the coefficients beyond its number."""
    angles = jnp.asarray(2 * np.pi * np.arange(4 * count) / (4 * count), jnp.asarray(r).dtype)
    return jnp.real(jnp.fft.rfft(jnp.exp(r * (jnp.cos(angles) - 1))))[:count] / (4 * count)


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
