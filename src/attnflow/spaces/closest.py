r"""The point of an ellipsoid closest to a given one, with its derivatives.

It is $y_i = \frac{a_i^2}{a_i^2 + t} x_i$ for the multiplier $t > -\min a^2$ with $\sum_i (y_i / a_i)^2 = 1$. In units of the shortest axis,
with $e_i = a_i / \min a \ge 1$, $z = x / \min a$ and $\sigma = 1 + t / \min a^2 > 0$, the equation is

$$ |q(\sigma)| = 1, \qquad q_i = \frac{e_i z_i}{e_i^2 - 1 + \sigma} . $$

$1 / |q|$ is concave and increasing in $\sigma$ and nearly linear, so that Newton's method converges to the root from the left in a few
steps (Moré and Sorensen 1983): from the right of the root one step leads to the left of it, where it is kept above the lower bound that the
coordinates of the shortest axes alone give.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow.numerics.rows import as_row, dot, norm

_MOST = 100


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def closest(axes: tuple[float, ...], x: Float[Array, "*n d"]) -> tuple[Float[Array, "*n d"], Float[Array, "*n 1"]]:
    """The closest point `y`, and `sigma`."""
    least = min(axes)
    eps = jnp.finfo(x.dtype).eps
    ratios = np.asarray(axes) / least
    e, room, z = as_row(ratios, x), as_row(ratios**2 - 1, x), x / least
    short, first = (as_row(mask, x) > 0 for mask in (ratios == 1, np.arange(len(axes)) == ratios.argmin()))
    # A point in the plane orthogonal to all shortest axes may have nearest points on both sides: a shift far below round-off selects one.
    missing = jnp.all(jnp.where(short, z == 0, True), axis=-1, keepdims=True)
    z = jnp.where(missing & first, eps**2, z)
    low = norm(jnp.where(short, z, 0))

    def step(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        sigma, _, count = carry
        q = e * z / (room + sigma)
        size = norm(q)
        new = jnp.maximum(sigma + (size - 1) * size**2 / dot(q, q / (room + sigma))[..., None], low)
        # Left of the root sigma grows, until round-off stops it.
        return new, jnp.any((new > sigma * (1 + 2 * eps)) | (count == 0)), count + 1

    def goes_on(carry: tuple[Array, Array, Array]) -> Array:
        return carry[1] & (carry[2] < _MOST)

    sigma, _, _ = jax.lax.while_loop(goes_on, step, (jnp.maximum(jnp.ones_like(low), low), jnp.asarray(True), jnp.asarray(0)))
    q = e * z / (room + sigma)
    return q / norm(q) * as_row(axes, x), sigma


@closest.defjvp
def _closest_jvp(axes, primals, tangents):
    r"""From $y + t D y = x$ and $\langle Dy, dy\rangle = 0$: $dy = M dx - M n \frac{\langle n, M dx\rangle}{\langle n, M n\rangle}$."""
    (x,), (dx,) = primals, tangents
    y, sigma = closest(axes, x)
    squares = as_row((np.asarray(axes) / min(axes)) ** 2, x)
    m, n = squares / (squares - 1 + sigma), y / squares
    dt = (dot(n, m * dx) / dot(n, m * n))[..., None]
    return (y, sigma), (m * (dx - dt * n), dt)
