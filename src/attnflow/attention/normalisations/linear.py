"""Linear attention: the kernel is the logit itself."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._arrays import one_program
from attnflow._rows import dot, times
from attnflow.attention.normalisations.base import Average, Normalisation
from attnflow.measures import Affine, Gaussian
from attnflow.sums import Atoms, Engine, Logit, pointwise_average, visible_logits


class Linear(Normalisation):
    r"""$k(x, y) = \ell(x, y)$; weights may be negative. Only moments of the measure enter, so it costs $O(n d^2)$ (a mask: $O(n^2)$)."""

    def average(self, logit: Logit, atoms: Atoms, sums: Engine | None) -> Average:
        if atoms.mask is not None:
            return MaskedLinearAverage(logit, atoms, sums)
        return LinearAverage(logit, *_moments(logit.P, atoms.points, atoms.log_weights))

    @one_program
    def weights(self, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, order: Float[Array, " m"] | None = None) -> Float[Array, "m n"]:
        logits = visible_logits(logit, x, atoms, order)
        return jnp.where(jnp.isfinite(logits), logits, 0) * jnp.exp(atoms.log_weights)[None]

    @one_program
    def gaussian(self, logit: Logit, mu: Gaussian) -> Affine:
        r"""$(S + m m^\top) (A x + p) + (\langle r, x\rangle + c)\, m - \frac12 E[\langle y, P y\rangle\, y]$, $c$ the constant; a term
        in $R$ would be quadratic in $x$."""
        if logit.R is not None:
            raise ValueError(
                "Linear attention with a squared-distance logit is quadratic in x and does not keep a Gaussian Gaussian; use dot_product"
            )
        second = mu.cov + jnp.outer(mu.mean, mu.mean)
        matrix, offset = second @ logit.A, jnp.zeros_like(mu.mean)
        if logit.P is not None:
            pull = logit.P @ mu.mean
            offset = -0.5 * (jnp.trace(logit.P @ mu.cov) + mu.mean @ pull) * mu.mean - mu.cov @ pull
        if logit.p is not None:
            offset = offset + second @ logit.p
        if logit.r is not None:
            matrix = matrix + jnp.outer(mu.mean, logit.r)
        if logit.constant is not None:
            offset = offset + logit.constant * mu.mean
        return Affine(matrix, offset)


@one_program
def _moments(
    P: Float[Array, "d d"] | None, y: Float[Array, "n d"], log_weights: Float[Array, " n"]
) -> tuple[Float[Array, " d"], Float[Array, " d"], Float[Array, "d d"], Float[Array, ""], Float[Array, " d"]]:
    """The middle c of the keys, `E k`, `E k k^T`, `E b` and `E b k` for `k = y - c` and `b = -1/2 <k, P k>`."""
    masses = jnp.exp(log_weights)
    c = jax.lax.stop_gradient(masses @ y)
    k = y - c[None]
    heavy = k * masses[:, None]
    b = jnp.zeros_like(masses) if P is None else -0.5 * dot(times(k, P.T), k)
    return c, jnp.sum(heavy, axis=0), heavy.T @ k, masses @ b, heavy.T @ b


class LinearAverage(Average):
    """`integral l(x, y) y dmu(y)` from moments of the keys about their middle c, for a cloud far from the origin has no digits in others:
    with `y = c + k` and `l = <q, k> + b + a` it is `E[k k^T] q + E[b k] + a E[k] + (<q, E[k]> + E[b] + a) c`."""

    logit: Logit
    middle: Float[Array, " d"]
    first: Float[Array, " d"]
    second: Float[Array, "d d"]
    bias: Float[Array, ""]
    tilt: Float[Array, " d"]

    @one_program
    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        q, _, a, _ = self.logit.centred(x, self.middle[None], self.middle)
        level = q @ self.first + self.bias + a
        return q @ self.second.T + self.tilt[None] + a[:, None] * self.first[None] + level[:, None] * self.middle[None]


class MaskedLinearAverage(Average):
    """The integral of logit y over the keys that each query sees."""

    logit: Logit
    atoms: Atoms
    sums: Engine | None

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        return pointwise_average(sum_of, self.logit, x, self.atoms, self.sums, order)


def sum_of(logits: Float[Array, "m n"], row: Float[Array, "m 1"]) -> Float[Array, "m n"]:
    """The kernel of the streamed sum: logits come without their term in x alone, which is `row`."""
    return logits + row
