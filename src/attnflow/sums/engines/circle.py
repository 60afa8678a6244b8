"""The kernel on the circle as a Fourier series, with its derivatives in every direction.

As complex numbers let queries be `q_i = L (1 + x_i) e^{i t_i}` and keys `k_j = R (1 + y_j) e^{i s_j}`. With `r = L R` and
`a = r cos(t_i - s_j)`,

    e^{<q_i, k_j> - r} = e^{a - r} e^{a (x_i + y_j + x_i y_j)}.

On the circle x and y are zero, and the first factor, whose Fourier coefficients are Bessel numbers (Jacobi and Anger), gives the values. A
derivative also moves single tokens off the circle: it sees the second factor, whose Taylor polynomial in x and y is a sum of products of a
function of the query, one of the key and one of the angle between them, so that its sums are sums of the same kind.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float

# The degree of the Taylor polynomial: derivatives up to this order are right, higher ones are refused.
DEGREE = 2
# Lengths of one size up to so many unit round-offs are equal: a retraction and a rotation leave less than half of it.
ROUND_OFFS = 16
# What is known of an error, or met on a sample, which may miss the worst row, is to be so many times below the tolerance.
SAFETY = 4


class Rings(NamedTuple):
    """Two clouds by their angles `targets [m]`, `sources [n]`, their mean lengths, and how far the length of each token is off, relative to
    these."""

    targets: Float[Array, " m"]
    sources: Float[Array, " n"]
    length: Float[Array, ""]
    radius: Float[Array, ""]
    x: Float[Array, " m"]
    y: Float[Array, " n"]

    @property
    def error(self) -> Float[Array, ""]:
        """A bound on the error of equal lengths, `|q||k| (|x| + |y|)` in the logit and `|y|` in the keys; none if that is round-off."""
        off_queries, off_keys = (jnp.max(jnp.abs(off)) for off in jax.lax.stop_gradient((self.x, self.y)))
        bound = self.length * self.radius * (off_queries + off_keys) + off_keys
        round_off = ROUND_OFFS * jnp.finfo(self.x.dtype).eps / 2
        return jnp.where(jnp.maximum(off_queries, off_keys) <= round_off, 0, bound)

    def fill(self, tolerance: float, delta: float, tail: Float[Array, ""]) -> Float[Array, ""]:
        """How much of a plan is used, `tail` its last coefficient: above 1 if that is not small or a token is off the circle, by twice as
        much as when the plan is made, so that a cloud that leaves the circle is planned anew before it gives NaN."""
        fill = jnp.maximum(jnp.where(tail <= delta, 0.5, 2.0), 0.5 * SAFETY * self.error / tolerance)
        return jnp.where(jnp.isnan(fill), 2.0, fill).astype(self.x.dtype)


def rings(q: Float[Array, "m 2"], k: Float[Array, "n 2"], degree: int = 0) -> Rings:
    """The angles and lengths of queries and keys; the lengths may be differentiated `degree` times."""
    (targets, length, x), (sources, radius, y) = (_polar(rows, degree) for rows in (q, k))
    return Rings(targets, sources, length, radius, x, y)


def _polar(rows: Float[Array, "n 2"], degree: int) -> tuple[Array, Array, Array]:
    lengths = jnp.linalg.norm(rows, axis=1)
    length = jax.lax.stop_gradient(jnp.mean(lengths))
    return jnp.arctan2(rows[:, 1], rows[:, 0]), length, _differentiable(degree, lengths / length) - 1


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _differentiable(times: int, x: Float[Array, " n"]) -> Float[Array, " n"]:
    """Numbers x that may be differentiated so many times: where a polynomial ends, the next derivative would be zero and wrong."""
    return x


@_differentiable.defjvp
def _differentiable_jvp(times, primals, tangents):
    if times == 0:
        raise ValueError(
            f"spectral sums on the circle have derivatives in the tokens up to order {DEGREE}, got one of order {DEGREE + 1}; "
            "use sums=af.Streamed()"
        )
    (x,), (dx,) = primals, tangents
    # The quotient is 1; it keeps count.
    return _differentiable(times, x), dx * (_differentiable(times - 1, x) / x)


def powers(x: Float[Array, " n"], degree: int) -> list[Float[Array, " n"]]:
    """`1, x, ..., x^degree`."""
    found = [jnp.ones_like(x)]
    for _ in range(degree):
        found.append(found[-1] * x)
    return found


def coefficients(
    r: Float[Array, ""], count: int, degree: int, part: np.ndarray | None = None
) -> dict[tuple[int, int], Complex[Array, " count"]]:
    """The Fourier coefficients, of orders `-count/2, ..., count/2 - 1`, of what `x^i y^j` is multiplied by in the kernel, i + j <= degree.

    With a `part` it is the kernel times `(1 + y) part(angle)`, for a mean of the keys; `angles(count)` are those it is given at. The sums
    over equal angles are exact up to the coefficients beyond `3/2 count`.
    """
    cosine, versine = (jnp.asarray(values, r.dtype) for values in (np.cos(angles(count)), 2 * np.sin(angles(count) / 2) ** 2))
    # Not cos - 1, whose round-off a large r multiplies.
    kernel = jnp.exp(-r * versine)
    orders = np.arange(count) - count // 2
    kind = jnp.result_type(r.dtype, jnp.complex64)
    found = {}
    for i in range(degree + 1):
        for j in range(degree + 1 - i):
            factor = _taylor(r * cosine, i, j)
            if part is not None:
                factor = (factor + _taylor(r * cosine, i, j - 1)) * jnp.asarray(part, kind if np.iscomplexobj(part) else r.dtype)
            found[i, j] = jnp.fft.fft((factor * kernel).astype(kind))[orders % (2 * count)] / (2 * count)
    return found


def angles(count: int) -> np.ndarray:
    """The equal angles from which `count` coefficients are computed."""
    return np.pi * np.arange(2 * count) / count


def _taylor(a: Float[Array, " n"], i: int, j: int) -> Float[Array, " n"]:
    """The coefficient of `x^i y^j` in `e^{a (x + y + x y)}`; zero for a negative j."""
    total = jnp.zeros_like(a)
    for both in range(min(i, j) + 1):
        total = total + a ** (i + j - both) / (math.factorial(i - both) * math.factorial(j - both) * math.factorial(both))
    return total
