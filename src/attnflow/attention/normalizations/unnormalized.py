"""No normalization: the kernel is e^logit itself."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._types import Scalar
from attnflow.attention.normalizations.base import Normalization
from attnflow.measures import Affine, FlowingMeasure, Velocity
from attnflow.measures.tilt import TiltedAtoms
from attnflow.numerics.arrays import floats, one_program
from attnflow.sums import Atoms, Logit, Mask, Request, visible_logits, visible_masses


class Unnormalized(Normalization):
    r"""$k(x, y) = e^{\ell(x,y) + c}$, $c$ the `log_scale`; on the sphere with $A = \beta I$ this is USA (arXiv:2312.10794).

    $c = -\beta$ slows time by $e^\beta$ and keeps large $\beta$ in range.
    """

    log_scale: Float[Array, ""]

    exponential = True

    def __init__(self, log_scale: Scalar = 0.0) -> None:
        self.log_scale = floats("log_scale", log_scale, "")

    def over(self, mu: FlowingMeasure, logit: Logit, inner: Affine | None, mask: Mask | None, sums: Request | None) -> Velocity:
        return mu.tilt(logit, inner, mask, sums).integral(self.log_scale)

    def average(self, logit: Logit, atoms: Atoms, sums: Request | None) -> Velocity:
        return TiltedAtoms(logit, atoms, sums).integral(self.log_scale)

    @one_program
    def weights(self, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, order: Float[Array, " m"] | None = None) -> Float[Array, "m n"]:
        return jnp.exp(visible_logits(logit, x, atoms, order) + self.log_scale) * visible_masses(x, atoms, order)
