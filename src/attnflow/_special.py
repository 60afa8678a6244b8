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
