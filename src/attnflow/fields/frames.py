"""Moving frames for laws on R^d whose tokens run away: the normalized update, and the rescaled tokens z = e^{-tV} x.

They are two dynamics. Both subtract V z, but `normalized_update` takes the logits of z, and `rescaled` those of e^{tV} z, which sharpen in
time.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import DType, FieldLike, Scalar
from attnflow.attention.heads import MultiHead
from attnflow.attention.law import Attention
from attnflow.measures import Affine, Field, FlowingMeasure, Velocity, velocity_of
from attnflow.measures.field import check_at
from attnflow.numerics.arrays import known
from attnflow.numerics.tolerances import default
from attnflow.sums import Request

# The most squarings of an exponential: times up to this power of 2 over |V|.
_HALVINGS = 24


def _most(dtype: DType) -> float:
    """The logarithm of the largest factor of tokens for which logits, its square, are far from overflow, and far beyond all digits."""
    return 0.25 * float(np.log(jnp.finfo(dtype).max))


def normalized_update(law: FieldLike) -> "NormalizedUpdate":
    r"""The field $\Gamma_\mu(z) - V z$ of an `Attention` law, or of `MultiHead`, where $V$ is the mean of the heads'. For tokens in
    $\mathbb{R}^d$ and Gaussians.

    `layers([normalized_update(law)], mu, depth)` is the discrete normalized update $z_i \leftarrow z_i + \sum_j K_{ij} V z_j - V z_i$
    (arXiv:2406.10823), with the matrix $K$ of $z$ itself. It is not the dynamics of `rescaled(law)`, where $K$ is that of $e^{tV} z$.
    """
    return NormalizedUpdate(law, jnp.mean(jnp.stack([head.value for head in _heads(law)]), axis=0))


def rescaled(law: FieldLike) -> "Rescaled":
    r"""The frame $z = e^{-tV} x$ of the raw flow $x' = \Gamma_\mu(x)$, as a field again (arXiv:2305.05465):
    $z' = e^{-tV} \Gamma_{\mu_t}(e^{tV} z) - V z$, $\mu_t$ the measure of the $e^{tV} z$, for an `Attention` law, or for `MultiHead`, where
    $V$ is the mean of the heads'. For tokens in $\mathbb{R}^d$ and Gaussians.

    Solved from $t = 0$ it gives $e^{-tV} x(t)$. It is not the dynamics of `normalized_update(law)`, where attention looks at $z$ itself.

    $V$ commutes with $e^{tV}$, so this is attention on $z$ with the logit $\ell(e^{tV} z, e^{tV} y)$ and the value $V$ (for heads
    $e^{-tV} V_h e^{tV}$): no token is blown up and shrunk again. It is evaluated in the eigenvectors of $V$, found once, here: growing and
    shrinking directions mixed would cost digits like $e^{t |V|}$. When $V$ is close to defective (condition number of its eigenvectors
    above $10^6$, in single precision $10^3$), or has no value yet inside `jit` and `grad`, $e^{tV}$ is a matrix exponential at every step
    instead. To differentiate in $V$, make the field inside the function that is differentiated.

    Where $e^{tV}$ exceeds the fourth root of the largest number (t = 177 for $V = I$ in double precision), the attention of tokens is long
    that of infinite logits, and their size is held: only the ratios of the factors of $e^{tV}$ change any more.
    """
    value = normalized_update(law).value
    basis, inverse, flow = exponential(value)
    heads = [_moved(head, basis, inverse @ head.value @ basis) for head in _heads(law)]
    if isinstance(flow, Decomposed):
        value = flow.generator
    if isinstance(law, Attention):
        return Rescaled(eqx.tree_at(lambda law: law.out, heads[0], value), value, flow, basis, inverse)
    return Rescaled(MultiHead(heads), value, flow, basis, inverse)


class NormalizedUpdate(Field):
    """`Gamma_mu(z) - V z`."""

    law: FieldLike
    value: Float[Array, "d d"]

    def at(self, mu: FlowingMeasure, t: Scalar = 0.0, sums: Request | None = None) -> Velocity:
        check_at(mu, t, sums)
        check_flat(mu)
        return velocity_of(self.law, mu, t, sums).minus(self.value.astype(mu.dtype))


class Rescaled(Field):
    """`e^{-tV} Gamma_{(e^{tV})_# mu}(e^{tV} z) - V z`. The law, V and its flow are in the coordinates of `basis`; tokens are not."""

    law: Attention | MultiHead
    value: Float[Array, "d d"]
    flow: "Decomposed | Series"
    basis: Float[Array, "d d"]
    inverse: Float[Array, "d d"]

    def at(self, mu: FlowingMeasure, t: Scalar = 0.0, sums: Request | None = None) -> Velocity:
        check_at(mu, t, sums)
        check_flat(mu)
        if mu.dim != len(self.value):
            raise ValueError(f"mu must live in R^{len(self.value)} like the law, got a measure on R^{mu.dim}")
        basis, inverse = self.basis.astype(mu.dtype), self.inverse.astype(mu.dtype)
        inside = mu.push(Affine(inverse, jnp.zeros(mu.dim, mu.dtype)))
        # Moments see the size of a logit; averages over tokens do not, once it is beyond all digits.
        velocity = NormalizedUpdate(self.seen(t, saturated=mu.by_atoms), self.value).at(inside, t, sums)
        return velocity.of(inverse).then(basis)

    def seen(self, t: Scalar, saturated: bool = True) -> Attention | MultiHead:
        """The law at time t in the coordinates of z; `saturated` if logits stop growing where no softmax can tell."""
        forward = self.flow(t, saturated)
        if isinstance(self.law, Attention):
            return _moved(self.law, forward, self.law.value)
        return MultiHead([_moved(head, forward, self.flow.conjugate(t, head.value)) for head in self.law.heads])


class Decomposed(eqx.Module):
    """`t -> e^{tV}` in the coordinates of its eigenvectors, in real numbers; its diagonal alone if all eigenvalues are real.

    An eigenvalue a + ib with eigenvector u + iv gives
    `e^{tV} u = e^{ta} (cos(tb) u - sin(tb) v)` and `e^{tV} v = e^{ta} (cos(tb) v + sin(tb) u)`.
    `across` has the signs of these, in the row of the other vector and the column of each; `None` if nothing turns.
    """

    growth: Float[Array, " d"]
    turn: Float[Array, " d"]
    across: Float[Array, "d d"] | None

    def __call__(self, t: Scalar, saturated: bool = False) -> Float[Array, " d"] | Float[Array, "d d"]:
        logs = t * self.growth
        if saturated:
            # The same shape, the largest factor held.
            logs = logs - jnp.maximum(jnp.max(logs) - _most(logs.dtype), 0)
        size = jnp.exp(logs)
        return size if self.across is None else self._turned(t, size)

    def conjugate(self, t: Scalar, matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
        """`e^{-tV} M e^{tV}`, by the differences of the exponents: no factor is larger than the result."""
        logs = t * self.growth
        inner = jnp.where(matrix == 0, 0, matrix * jnp.exp(jnp.where(matrix == 0, 0, logs[None] - logs[:, None])))
        if self.across is None:
            return inner
        one = jnp.ones_like(logs)
        return self._turned(-t, one) @ inner @ self._turned(t, one)

    def _turned(self, t: Scalar, size: Float[Array, " d"]) -> Float[Array, "d d"]:
        assert self.across is not None
        angle = t * self.turn
        return jnp.diag(size * jnp.cos(angle)) + self.across * (size * jnp.sin(angle))[None]

    @property
    def generator(self) -> Float[Array, "d d"]:
        """V itself in these coordinates."""
        return jnp.diag(self.growth) + (0 if self.across is None else self.across * self.turn[None])


class Series(eqx.Module):
    """`t -> e^{tV}` by scaling and squaring, for every t again."""

    matrix: Float[Array, "d d"]

    def __call__(self, t: Scalar, saturated: bool = False) -> Float[Array, "d d"]:
        if not saturated:
            return jax.scipy.linalg.expm(t * self.matrix)
        log_size, shape = self._scaled(t)
        return jnp.exp(jnp.minimum(log_size, _most(shape.dtype))) * shape

    def conjugate(self, t: Scalar, matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
        """`e^{-tV} M e^{tV}`."""
        (ahead, forward), (behind, back) = self._scaled(t), self._scaled(-t)
        return jnp.exp(ahead + behind) * (back @ matrix @ forward)

    def _scaled(self, t: Scalar) -> tuple[Float[Array, ""], Float[Array, "d d"]]:
        """`e^{tV} = e^c E`, the largest entry of E about 1: squared from a small matrix, and divided by its size each time."""
        matrix = t * self.matrix
        norm = jax.lax.stop_gradient(jnp.max(jnp.sum(jnp.abs(matrix), axis=1)))
        halvings = jnp.clip(jnp.ceil(jnp.log2(jnp.maximum(norm, 1))), 0, _HALVINGS)

        def square(carry: tuple[Array, Array], i: Array) -> tuple[tuple[Array, Array], None]:
            log_size, shape = carry
            squared = shape @ shape
            size = jax.lax.stop_gradient(jnp.max(jnp.abs(squared)))
            new = (2 * log_size + jnp.log(size), squared / size)
            return jax.tree.map(lambda a, b: jnp.where(i < halvings, a, b), new, carry), None

        first = (jnp.zeros((), matrix.dtype), jax.scipy.linalg.expm(matrix / 2**halvings))
        return jax.lax.scan(square, first, jnp.arange(_HALVINGS))[0]


def exponential(matrix: Float[Array, "d d"]) -> tuple[Array, Array, Decomposed | Series]:
    """A basis, its inverse, and `t -> e^{tV}` in its coordinates: decomposed if V is known and has well-conditioned eigenvectors."""
    eye = jnp.eye(len(matrix), dtype=matrix.dtype)
    if not known(matrix):
        return eye, eye, Series(matrix)
    host = np.asarray(matrix, dtype=np.float64)
    if np.abs(host - host.T).max() <= 8 * len(host) * float(jnp.finfo(matrix.dtype).eps) * np.abs(host).max():
        values, vectors = np.linalg.eigh((host + host.T) / 2)
    else:
        values, vectors = np.linalg.eig(host)
    # Of a conjugate pair, side by side, the one above the real axis comes first and gives u, the one below it v.
    above, below = np.imag(values) > 0, np.imag(values) < 0
    basis = np.where(below, -np.imag(vectors), np.real(vectors))
    if np.linalg.cond(basis) > 1 / default("basis", jnp.result_type(float)):
        return eye, eye, Series(matrix)
    across = np.diag(-1.0 * above[:-1], -1) + np.diag(1.0 * below[1:], 1) if above.any() else None
    parts = (basis, np.linalg.inv(basis), np.real(values), np.abs(np.imag(values)))
    basis, inverse, growth, turn = (jnp.asarray(part, jnp.result_type(float)) for part in parts)
    return basis, inverse, Decomposed(growth, turn, None if across is None else jnp.asarray(across, growth.dtype))


def check_flat(mu: FlowingMeasure) -> None:
    """Refuse tokens that do not live in R^d."""
    if not mu.space.flat:
        raise ValueError(
            f"a frame that subtracts V z is for tokens in R^d, got tokens on the {type(mu.space).__name__}; "
            "there use the law itself, which keeps them on it"
        )


def _moved(law: Attention, forward: Array, value: Array) -> Attention:
    parts = (law.logit.pulled_back(forward), value, None)
    return eqx.tree_at(lambda law: (law.logit, law.out, law.inner), law, parts, is_leaf=lambda part: part is None)


def _heads(law: Any) -> tuple[Attention, ...]:
    heads = getattr(law, "heads", (law,))
    for head in heads:
        if not isinstance(head, Attention):
            got = check.shown(head)
            raise TypeError(f"law: a frame needs an Attention law, or a MultiHead of them, whose value is V, got {got}")
    return heads
