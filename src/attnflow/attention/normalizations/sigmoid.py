"""Sigmoid: every pair on its own."""

import jax
from jaxtyping import Array, Float

from attnflow.attention.normalizations.pointwise import Pointwise


class Sigmoid(Pointwise):
    r"""$k(x, y) = 1 / (1 + e^{-\ell(x,y)})$, averaged against the measure: weights are not normalized over keys."""

    @staticmethod
    def kernel(logits: Float[Array, "m n"]) -> Float[Array, "m n"]:
        """The sigmoid."""
        return jax.nn.sigmoid(logits)
