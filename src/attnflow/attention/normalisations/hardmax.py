"""Hardmax: all weight on the keys of largest logit."""

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from attnflow._arrays import one_program
from attnflow.attention.normalisations.base import Average, Normalisation
from attnflow.sums import Atoms, Engine, Logit, nearest_average, round_off, top_keys


class Hardmax(Normalisation):
    """The limit of softmax at zero temperature; keys that tie up to round-off share by mass. Its derivative in the logit is zero."""

    def average(self, logit: Logit, atoms: Atoms, sums: Engine | None) -> Average:
        return HardmaxAverage(logit, atoms, sums)

    @one_program
    def weights(self, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, order: Float[Array, " m"] | None = None) -> Float[Array, "m n"]:
        chosen = top_keys(logit, x, atoms, order) * jnp.exp(atoms.log_weights)[None]
        return chosen / jnp.sum(chosen, axis=1, keepdims=True)


class HardmaxAverage(Average):
    """The mean of the keys of largest logit."""

    logit: Logit
    atoms: Atoms
    sums: Engine | None

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        return nearest_average(self.logit, x, self.atoms, self.sums, order)

    @property
    def report(self) -> dict[str, PyTree]:
        return round_off(self.logit, self.atoms.points, self.atoms, self.sums)
