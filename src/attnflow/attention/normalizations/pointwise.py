"""Kernels that are a function of one logit."""

import abc
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow.attention.normalizations.base import Normalization, OverPairs
from attnflow.measures import Velocity
from attnflow.numerics.arrays import one_program
from attnflow.sums import Atoms, Logit, Request, pointwise_average, visible_logits, visible_masses


class Pointwise(Normalization):
    r"""A normalization whose kernel is a function of one logit, $k(x, y) = f(\ell(x, y))$, given as `kernel`."""

    @staticmethod
    @abc.abstractmethod
    def kernel(logits: Float[Array, "m n"]) -> Float[Array, "m n"]:
        """$f$ at a matrix of logits. A static method, so that it is compiled once."""

    def average(self, logit: Logit, atoms: Atoms, sums: Request | None) -> Velocity:
        """The integral of $f(\\ell)\\, v$ over the keys that are seen."""
        return PointwiseAverage(logit, atoms, sums, self.kernel)

    @one_program
    def weights(self, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, order: Float[Array, " m"] | None = None) -> Float[Array, "m n"]:
        """The matrix $f(\\ell(x_i, y_j))\\, w_j$, zero where nothing is seen."""
        logits = visible_logits(logit, x, atoms, order)
        seen = jnp.isfinite(logits)
        return jnp.where(seen, self.kernel(jnp.where(seen, logits, 0)), 0) * visible_masses(x, atoms, order)


class PointwiseAverage(OverPairs):
    """`x -> integral f(l(x, y)) v(y) dmu(y)`."""

    kernel: Callable[[Array], Array] = eqx.field(static=True)

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m e"]:
        return pointwise_average(self.kernel, self.logit, x, self.atoms, self.sums, order)
