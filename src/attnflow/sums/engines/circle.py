"""The kernel on the circle as a Fourier series, with its derivatives in every direction.

As complex numbers let queries be `q_i = L (1 + x_i) e^{i t_i}` and keys `k_j = R (1 + y_j) e^{i s_j}`. With `r = L R` and
`a = r cos(t_i - s_j)`,

    e^{<q_i, k_j> - r} = e^{a - r} e^{a (x_i + y_j + x_i y_j)}.

On the circle x and y are zero, and the first factor, whose Fourier coefficients are values of Bessel functions (Jacobi and Anger), gives
the sums. A derivative also moves single tokens off the circle, and so involves the second factor. Its Taylor polynomial in x and y is a sum
of products of a function of the query, one of the key and one of the angle between them, so that its sums are sums of the same kind.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float

# The degree of the Taylor polynomial: derivatives up to this order are exact, higher ones are refused.
DEGREE = 2
# Lengths that differ by no more than this many unit round-offs are equal: a retraction and a rotation cause less than half of it.
ROUND_OFFS = 16
# An error that is estimated, or found on a sample, which may miss the worst row, must be this many times below the tolerance.
SAFETY = 4


class Rings(NamedTuple):
    """Two clouds by their angles `targets [m]` and `sources [n]`, their mean lengths `length` and `radius`, and the relative deviations `x`
    and `y` of the length of each token from these."""

    targets: Float[Array, " m"]
    sources: Float[Array, " n"]
    length: Float[Array, ""]
    radius: Float[Array, ""]
    x: Float[Array, " m"]
    y: Float[Array, " n"]

    @property
    def error(self) -> Float[Array, ""]:
        """A bound on the error of taking lengths as equal: `|q||k| (|x| + |y|)` in the logit and `|y|` in the keys; 0 for round-off."""
        off_queries, off_keys = (jnp.max(jnp.abs(off)) for off in jax.lax.stop_gradient((self.x, self.y)))
        bound = self.length * self.radius * (off_queries + off_keys) + off_keys
        round_off = ROUND_OFFS * jnp.finfo(self.x.dtype).eps / 2
        return jnp.where(jnp.maximum(off_queries, off_keys) <= round_off, 0, bound)

    def fill(self, tolerance: float, delta: float, tail: Float[Array, ""]) -> Float[Array, ""]:
        """How much of a plan is used; `tail` is its last coefficient. It is above 1 if that is not small, or if a token is twice as far off
        the circle as a new plan allows: a cloud that leaves the circle gets a new plan before its sums are NaN."""
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
    """Numbers x that may be differentiated this many times: beyond the degree of a Taylor polynomial derivatives would be wrong."""
    return x


@_differentiable.defjvp
def _differentiable_jvp(times, primals, tangents):
    if times == 0:
        raise ValueError(
            f"spectral sums on the circle have derivatives in the tokens up to order {DEGREE}, got one of order {DEGREE + 1}; "
            "use sums=af.Streamed()"
        )
    (x,), (dx,) = primals, tangents
    # The quotient is 1; it counts derivatives.
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
    """The Fourier coefficients, of orders `-count/2, ..., count/2 - 1`, of the factor of `x^i y^j` in the kernel, for i + j <= degree.

    With a `part`, given at `angles(count)`, the kernel is multiplied by `(1 + y) part(angle)`, for a mean of the keys. The error of the
    sums over equally spaced angles is the size of the coefficients beyond `3/2 count`.
    """
    cosine, versine = (jnp.asarray(values, r.dtype) for values in (np.cos(angles(count)), 2 * np.sin(angles(count) / 2) ** 2))
    # 2 sin^2(a/2) in place of 1 - cos(a), whose round-off a large r multiplies.
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
    """The equally spaced angles from which `count` coefficients are computed."""
    return np.pi * np.arange(2 * count) / count


def _taylor(a: Float[Array, " n"], i: int, j: int) -> Float[Array, " n"]:
    """The coefficient of `x^i y^j` in `e^{a (x + y + x y)}`; zero for a negative j."""
    total = jnp.zeros_like(a)
    for both in range(min(i, j) + 1):
        total = total + a ** (i + j - both) / (math.factorial(i - both) * math.factorial(j - both) * math.factorial(both))
    return total
