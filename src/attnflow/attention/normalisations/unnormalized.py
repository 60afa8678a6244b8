"""No normalisation: the kernel is e^logit itself."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from attnflow._arrays import floats, one_program
from attnflow.attention.normalisations.base import Average, Normalisation
from attnflow.sums import Atoms, Engine, Logit, accuracy, average, visible_logits


class Unnormalized(Normalisation):
    r"""$k(x, y) = e^{\ell(x,y) + c}$, $c$ the `log_scale`; on the sphere with $A = \beta I$ this is USA (arXiv:2312.10794).

    $c = -\beta$ slows time by $e^\beta$ and keeps large $\beta$ in range.
    """

    log_scale: Float[Array, ""]

    def __init__(self, log_scale: Any = 0.0):
        self.log_scale = floats("log_scale", log_scale, "")

    def average(self, logit: Logit, atoms: Atoms, sums: Engine | None) -> Average:
        return UnnormalizedAverage(logit, atoms, self.log_scale, sums)

    @one_program
    def weights(self, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, order: Float[Array, " m"] | None = None) -> Float[Array, "m n"]:
        return jnp.exp(visible_logits(logit, x, atoms, order) + atoms.log_weights[None] + self.log_scale)


class UnnormalizedAverage(Average):
    """The integral of e^logit y over a cloud."""

    logit: Logit
    atoms: Atoms
    log_scale: Float[Array, ""]
    sums: Engine | None

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        log_norm, mean = average(self.logit, x, self.atoms, self.sums, order)
        return jnp.exp(log_norm + self.log_scale)[:, None] * mean

    @property
    def report(self) -> dict[str, PyTree]:
        return accuracy(self.logit, self.atoms.points, self.atoms, self.sums)
