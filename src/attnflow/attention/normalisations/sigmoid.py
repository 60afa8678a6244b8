"""Sigmoid: every pair on its own."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from attnflow._arrays import one_program
from attnflow.attention.normalisations.base import Average, Normalisation
from attnflow.sums import Atoms, Engine, Logit, pointwise_average, round_off, visible_logits


class Sigmoid(Normalisation):
    r"""$k(x, y) = 1 / (1 + e^{-\ell(x,y)})$, averaged against the measure: weights are not normalised over keys."""

    def average(self, logit: Logit, atoms: Atoms, sums: Engine | None) -> Average:
        return SigmoidAverage(logit, atoms, sums)

    @one_program
    def weights(self, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, order: Float[Array, " m"] | None = None) -> Float[Array, "m n"]:
        return jax.nn.sigmoid(visible_logits(logit, x, atoms, order)) * jnp.exp(atoms.log_weights)[None]


class SigmoidAverage(Average):
    """The integral of sigmoid(logit) y over a cloud."""

    logit: Logit
    atoms: Atoms
    sums: Engine | None

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        return pointwise_average(sigmoid_of_sum, self.logit, x, self.atoms, self.sums, order)

    @property
    def report(self) -> dict[str, PyTree]:
        return round_off(self.logit, self.atoms.points, self.atoms, self.sums)


def sigmoid_of_sum(logits: Float[Array, "m n"], row: Float[Array, "m 1"]) -> Float[Array, "m n"]:
    """The kernel of the streamed sum: logits come without their term in x alone, which is `row`."""
    return jax.nn.sigmoid(logits + row)
