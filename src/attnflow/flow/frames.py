"""Moving frames for laws on R^d whose tokens run away: the normalised update, and the rescaled tokens z = e^{-tV} x.

They are two dynamics. Both subtract V z, but `normalised` takes the logits of z, `rescaled` those of e^{tV} z, which sharpen in time.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
from jaxtyping import Array, Float, PyTree

from attnflow._arrays import known
from attnflow.attention.field import Field, evaluate
from attnflow.attention.heads import MultiHead
from attnflow.attention.law import Attention
from attnflow.measures import Affine, FlowingMeasure
from attnflow.spaces import Euclidean
from attnflow.sums import Engine


def normalised(law: Any) -> "Normalised":
    """The field `Gamma_mu(z) - V z` of an `Attention` law, or of `MultiHead`, where V is the mean of the heads'. For tokens in R^d and
    Gaussians.

    `layers([normalised(law)], mu, depth)` is the discrete normalised update `z_i <- z_i + [sum_j K_ij V z_j - V z_i]` (arXiv:2406.10823),
    with the matrix K of z itself. It is not the dynamics of `rescaled(law)`, where K is that of e^{tV} z.
    """
    return Normalised(law, jnp.mean(jnp.stack([head.value for head in _heads(law)]), axis=0))


def rescaled(law: Any) -> "Rescaled":
    """The frame `z = e^{-tV} x` of the raw flow `x' = Gamma_mu(x)`, as a field again (arXiv:2305.05465):
    `z' = e^{-tV} Gamma_{(e^{tV})_# mu}(e^{tV} z) - V z`, for an `Attention` law, or for `MultiHead`, where V is the mean of the heads'. For
    tokens in R^d and Gaussians.

    Solved from t = 0 it gives `e^{-tV} x(t)`. It is not the dynamics of `normalised(law)`, where attention looks at z itself.

    V commutes with e^{tV}, so this is attention on z with the logit `l(e^{tV} z, e^{tV} y)` and the value V (for heads
    `e^{-tV} V_h e^{tV}`): no token is blown up and shrunk again. e^{tV} comes from one eigendecomposition of V, made here. When V is close
    to defective (condition number of its eigenvectors above 1e6, in single precision 1e3), or has no value yet inside `jit` and `grad`, it
    is a matrix exponential at every step instead. To differentiate in V, make the field inside the function that is differentiated.
    """
    frame = normalised(law)
    return Rescaled(law, frame.value, exponential(frame.value))


class Normalised(Field):
    """`Gamma_mu(z) - V z`."""

    law: Any
    value: Float[Array, "d d"]

    def at(self, mu: FlowingMeasure, t: Any = 0.0, sums: Engine | None = None) -> "Affine | Relative":
        if not isinstance(mu.space, Euclidean):
            raise ValueError(
                f"a frame that subtracts V z is for tokens in R^d, got tokens on the {type(mu.space).__name__}; "
                "there use the law itself, which keeps them on it"
            )
        velocity, value = self.law.at(mu, t, sums), self.value.astype(mu.dtype)
        if isinstance(velocity, Affine):
            return velocity + Affine(-value, jnp.zeros_like(velocity.offset))
        return Relative(velocity, value)


class Rescaled(Field):
    """`e^{-tV} Gamma_{(e^{tV})_# mu}(e^{tV} z) - V z`."""

    law: Any
    value: Float[Array, "d d"]
    flow: "Decomposed | Series"

    def at(self, mu: FlowingMeasure, t: Any = 0.0, sums: Engine | None = None) -> "Affine | Relative":
        return Normalised(self.seen(t), self.value).at(mu, t, sums)

    def seen(self, t: Any) -> Attention | MultiHead:
        """The law at time t in the coordinates z."""
        forward = self.flow(t)
        if isinstance(self.law, Attention):
            return _moved(self.law, forward, self.law.value)
        back = self.flow(-t)
        return MultiHead([_moved(head, forward, back @ head.value @ forward) for head in self.law.heads])


class Relative(eqx.Module):
    """`z -> velocity(z) - V z`."""

    velocity: Callable
    value: Float[Array, "d d"]

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        return evaluate(self.velocity, x, order) - x @ self.value.T

    @property
    def needs_order(self) -> bool:
        return getattr(self.velocity, "needs_order", False)

    @property
    def report(self) -> dict[str, PyTree]:
        return getattr(self.velocity, "report", {})


class Decomposed(eqx.Module):
    """`t -> e^{tV}` from eigenvectors, in real numbers.

    An eigenvalue a + ib with eigenvector u + iv gives
    `e^{tV} u = e^{ta} (cos(tb) u - sin(tb) v)` and `e^{tV} v = e^{ta} (cos(tb) v + sin(tb) u)`.
    The columns of `vectors` are such u and v, those of `partners` the -v and u beside them.
    """

    growth: Float[Array, " d"]
    turn: Float[Array, " d"]
    vectors: Float[Array, "d d"]
    partners: Float[Array, "d d"]
    inverse: Float[Array, "d d"]

    def __call__(self, t: Any) -> Float[Array, "d d"]:
        size, angle = jnp.exp(t * self.growth), t * self.turn
        moved = self.vectors * (size * jnp.cos(angle))[None] + self.partners * (size * jnp.sin(angle))[None]
        return moved @ self.inverse


class Series(eqx.Module):
    """`t -> e^{tV}` by scaling and squaring, for every t again."""

    matrix: Float[Array, "d d"]

    def __call__(self, t: Any) -> Float[Array, "d d"]:
        return jax.scipy.linalg.expm(t * self.matrix)


def exponential(matrix: Float[Array, "d d"]) -> Decomposed | Series:
    """`t -> e^{tV}`, decomposed once if V is known and has well-conditioned eigenvectors."""
    if not known(matrix):
        return Series(matrix)
    host = np.asarray(matrix, dtype=np.float64)
    if np.abs(host - host.T).max() <= 8 * len(host) * float(jnp.finfo(matrix.dtype).eps) * np.abs(host).max():
        values, vectors = np.linalg.eigh((host + host.T) / 2)
    else:
        values, vectors = np.linalg.eig(host)
    # Of a conjugate pair, the one above the real axis gives u, the one below it v.
    u, v = np.real(vectors), np.imag(vectors)
    real, above = np.imag(values) == 0, np.imag(values) > 0
    basis, partners = np.where(real | above, u, -v), np.where(real, 0, np.where(above, -v, u))
    if np.linalg.cond(basis) > (1e6 if jnp.result_type(float) == jnp.float64 else 1e3):
        return Series(matrix)
    parts = (np.real(values), np.abs(np.imag(values)), basis, partners, np.linalg.inv(basis))
    return Decomposed(*(jnp.asarray(part, jnp.result_type(float)) for part in parts))


def _moved(law: Attention, forward: Array, value: Array) -> Attention:
    return eqx.tree_at(lambda law: (law.logit, law.value), law, (law.logit.pulled_back(forward), value))


def _heads(law: Any) -> tuple[Attention, ...]:
    heads = law.heads if isinstance(law, MultiHead) else (law,)
    for head in heads:
        if not isinstance(head, Attention):
            raise TypeError(f"a frame needs an Attention law, or a MultiHead of them, whose value is V; got {type(head).__name__}")
    return heads
