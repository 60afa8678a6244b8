"""How far a measure of compact support can spread (arXiv:2501.18322)."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._types import ArrayLike, Scalar
from attnflow.numerics.arrays import floats, known, square


def support_radius(radius: Scalar, value: ArrayLike, t: ArrayLike) -> Float[Array, "..."]:
    r"""$e^{t |V|} R(0)$, a bound of the radius $R(t)$ of the support around the origin, with the spectral norm $|V|$ (arXiv:2501.18322).

    It holds for attention with weights that are positive and sum to one (softmax, L2, Sinkhorn, hardmax), also under a mask: the average of
    keys lies in the ball that the keys lie in, so that $|x'| \le |V| R$. Unnormalized and linear attention break it. `t` is a time or an
    array of times.
    """
    start, V = floats("radius", radius, ""), square("value", value)
    times = floats("t", t, "k" if np.ndim(t) else "")
    if known(start, times) and (float(start) < 0 or float(times.min()) < 0):
        raise ValueError(f"radius and t must not be negative, got {float(start)} and {float(times.min())}")
    return start * jnp.exp(jnp.linalg.norm(V, 2) * times)
