"""Sigmoid: every pair on its own."""

import jax
from jaxtyping import Array, Float

from attnflow.attention.normalizations.base import Normalization, OverPairs
from attnflow.measures import Velocity
from attnflow.numerics.arrays import one_program
from attnflow.sums import Atoms, Logit, Request, pointwise_average, visible_logits, visible_masses


class Sigmoid(Normalization):
    r"""$k(x, y) = 1 / (1 + e^{-\ell(x,y)})$, averaged against the measure: weights are not normalized over keys."""

    def average(self, logit: Logit, atoms: Atoms, sums: Request | None) -> Velocity:
        return SigmoidAverage(logit, atoms, sums)

    @one_program
    def weights(self, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, order: Float[Array, " m"] | None = None) -> Float[Array, "m n"]:
        return jax.nn.sigmoid(visible_logits(logit, x, atoms, order)) * visible_masses(x, atoms, order)


class SigmoidAverage(OverPairs):
    """The integral of sigmoid(logit) y over a cloud."""

    logit: Logit
    atoms: Atoms
    sums: Request | None

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m e"]:
        return pointwise_average(jax.nn.sigmoid, self.logit, x, self.atoms, self.sums, order)
