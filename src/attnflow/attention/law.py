"""An attention law: logit x normalisation x value."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from attnflow._arrays import cast, floats, square
from attnflow._linalg import is_psd
from attnflow.attention.field import Field
from attnflow.attention.normalisations import Normalisation, Softmax
from attnflow.attention.normalisations.base import Average
from attnflow.measures import Affine, FlowingMeasure, Gaussian, Particles
from attnflow.sums import Atoms, Engine, Logit


class Law(Field):
    """A field made of attention, which has a matrix to look at."""

    @abc.abstractmethod
    def weights(self, x: Float[Array, "m d"], mu: Particles) -> Float[Array, "... m n"]:
        """The attention matrix: row i says how the query `x_i` weighs the tokens of `mu`."""


class Attention(Law):
    """`Gamma_mu(x) = V integral k(x, y) y dmu(y)`, where the normalisation makes the kernel k from the logit.

    **Arguments:**

    - `logit`: from `dot_product` or `squared_distance`.
    - `value`: V, `[d, d]`.
    - `normalize`: `Softmax()`, `Unnormalized()`, `Sinkhorn()`, `Hardmax()`, `Sigmoid()` or `Linear()`.
    """

    logit: Logit
    value: Float[Array, "d d"]
    normalize: Normalisation

    def __init__(self, logit: Logit, value: Any, normalize: Normalisation | None = None):
        self.logit = logit
        self.value = square("value", value)
        self.normalize = Softmax() if normalize is None else normalize
        if len(self.value) != logit.dim:
            raise ValueError(f"value must be [{logit.dim}, {logit.dim}] like the tokens of the logit, got {list(self.value.shape)}")

    def at(self, mu: FlowingMeasure, t: Any = 0.0, sums: Engine | None = None) -> "AttentionVelocity | Affine":
        law = self._fitted(mu)
        if isinstance(mu, Gaussian):
            return law.normalize.gaussian(law.logit, mu).after(law.value)
        return AttentionVelocity(law.normalize.average(law.logit, _atoms(mu), sums), law.value)

    def weights(self, x: Float[Array, "m d"], mu: Particles) -> Float[Array, "m n"]:
        law = self._fitted(mu)
        return law.normalize.weights(law.logit, floats("x", x, "m d").astype(mu.dtype), _atoms(mu))

    def _fitted(self, mu: FlowingMeasure) -> "Attention":
        """This law in the precision of the measure, refused if the dimensions differ."""
        if mu.dim != self.logit.dim:
            raise ValueError(f"the law acts on R^{self.logit.dim}, got a measure on R^{mu.dim}")
        return cast(self, mu.dtype)


class AttentionVelocity(eqx.Module):
    """`x -> V integral k(x, y) y dmu(y)` for one measure; `report` has the convergence of what was iterated."""

    average: Average
    value: Float[Array, "d d"]

    def __call__(self, x: Float[Array, "m d"]) -> Float[Array, "m d"]:
        return self.average(x) @ self.value.T

    @property
    def report(self) -> dict[str, PyTree]:
        return self.average.report


def simple_attention(beta: Any, dim: int, normalize: Normalisation | None = None) -> Attention:
    """`V = I`, `A = beta I`: SA of arXiv:2312.10794 with softmax, USA with `Unnormalized()`."""
    number = floats("beta", beta, "")
    eye = jnp.eye(dim, dtype=number.dtype)
    return Attention(Logit(number * eye, psd=is_psd(number * eye)), eye, normalize)


def _atoms(mu: FlowingMeasure) -> Atoms:
    if not isinstance(mu, Particles):
        raise TypeError(f"attention acts on Particles and Gaussian, got {type(mu).__name__}")
    return Atoms(mu.points, mu.log_weights)
