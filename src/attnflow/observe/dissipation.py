"""How fast simple attention climbs its energy."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._arrays import known
from attnflow.attention.law import Attention
from attnflow.measures import Particles
from attnflow.measures.velocity import velocity_of
from attnflow.sums import Atoms, Quadratic, Request, check_request, log_integral


def dissipation(law: Any, mu: Particles, sums: Request | None = None) -> Float[Array, ""]:
    r"""$\frac{dE}{dt}$ along simple attention, $E = \frac{1}{2\beta} \iint e^{\beta\langle x, y\rangle} \,d\mu\,d\mu$, as a square: the
    dissipation identity.

    The gradient of $E$ is $P_x \int e^{\beta\langle x, y\rangle}\, y \,d\mu(y) = Z(x)\, v(x)$, $v$ the velocity of softmax attention and
    $Z$ its normaliser: $\frac{dE}{dt} = \int Z |v|^2 \,d\mu$ under SA and $\int |v|^2 \,d\mu$, now with the velocity of USA,
    under USA (arXiv:2312.10794). Compare `energy(mu, beta)` along a path. For $V = I$; `log_scale` of `Unnormalized` is counted.
    """
    if not isinstance(law, Attention) or law.mask is not None or not law.normalize.exponential:
        raise TypeError(check.refusal("law", "af.simple_attention(beta, d), with softmax or Unnormalized and no mask", law))
    mu = check.measure("mu", mu, Particles, "Particles")
    check_request(sums)
    if known(law.value, law.logit.form.A) and not _simple(np.asarray(law.value), np.asarray(law.logit.form.A)):
        raise ValueError("the dissipation is of simple attention, V = I and K^T Q = beta I, got other matrices")
    square = jnp.sum(mu.rate(velocity_of(law, mu, sums=sums)) ** 2, axis=1)
    if (log_scale := getattr(law.normalize, "log_scale", None)) is not None:
        return _in_range(mu.integrate(lambda _: square) * jnp.exp(-log_scale.astype(mu.dtype)))
    norm = jnp.exp(log_integral(Quadratic(law.logit.form.A.astype(mu.dtype)), mu.points, Atoms(mu.points, mu.log_weights), sums))
    return _in_range(mu.integrate(lambda _: norm * square))


def _in_range(found: Float[Array, ""]) -> Float[Array, ""]:
    if known(found) and not np.isfinite(float(found)):
        check.warn(
            f"the dissipation is beyond the range of {found.dtype}, got {float(found)}, as e^beta is; take the difference quotient of "
            "energy(..., log_scale=-beta) along a path"
        )
    return found


def _simple(value: np.ndarray, A: np.ndarray) -> bool:
    """Whether V = I and A is a multiple of the identity; on the host, so that a compiled observable may ask."""
    eye = np.eye(len(value))
    return np.allclose(value, eye) and np.allclose(A, A[0, 0] * eye)
