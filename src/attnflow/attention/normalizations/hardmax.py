"""Hardmax: all weight on the keys of largest logit."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow.attention.normalizations.base import Normalization, OverPairs
from attnflow.measures import Velocity
from attnflow.numerics.arrays import one_program
from attnflow.sums import Atoms, Logit, Request, nearest_average, top_keys, visible_masses


class Hardmax(Normalization):
    """The limit of softmax at zero temperature; keys that tie up to round-off share by mass. Its derivative in the logit is zero."""

    def average(self, logit: Logit, atoms: Atoms, sums: Request | None) -> Velocity:
        return HardmaxAverage(logit, atoms, sums)

    @one_program
    def weights(self, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, order: Float[Array, " m"] | None = None) -> Float[Array, "m n"]:
        chosen = top_keys(logit, x, atoms, order) * visible_masses(x, atoms, order)
        return chosen / jnp.sum(chosen, axis=1, keepdims=True)


class HardmaxAverage(OverPairs):
    """The mean of the keys of largest logit."""

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m e"]:
        return nearest_average(self.logit, x, self.atoms, self.sums, order)
