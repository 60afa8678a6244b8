"""Linear attention: the kernel is the logit itself."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow.attention.normalizations.pointwise import Pointwise
from attnflow.measures import Affine, Gaussian, Velocity
from attnflow.numerics.arrays import one_program
from attnflow.sums import Atoms, Logit, Quadratic, Request


class Linear(Pointwise):
    r"""$k(x, y) = \ell(x, y)$; weights may be negative. Only moments of the measure enter, so it costs $O(n d^2)$ (a mask: $O(n^2)$)."""

    @staticmethod
    def kernel(logits: Float[Array, "m n"]) -> Float[Array, "m n"]:
        """The logits themselves."""
        return logits

    def average(self, logit: Logit, atoms: Atoms, sums: Request | None) -> Velocity:
        """From moments, unless a mask asks for sums over pairs."""
        return LinearAverage(logit, *_moments(logit, atoms)) if atoms.mask is None else super().average(logit, atoms, sums)

    @one_program
    def gaussian(self, logit: Quadratic, mu: Gaussian) -> Affine:
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
def _moments(logit: Logit, atoms: Atoms) -> tuple[Array, Array, Array, Array, Array, Array, Array]:
    """The centers c of the keys and m of their values v, `E k`, `E u`, `E u k^T`, `E b` and `E b u` for the rows k about c and
    `u = v - m`."""
    masses, values = jnp.exp(atoms.log_weights), atoms.points if atoms.values is None else atoms.values
    c, m = (jax.lax.stop_gradient(masses @ rows) for rows in (atoms.points, values))
    k, b = logit.keys(atoms.points, atoms.order, c)
    heavy = (values - m[None]) * masses[:, None]
    return c, m, masses @ k, jnp.sum(heavy, axis=0), heavy.T @ k, masses @ b, heavy.T @ b


class LinearAverage(Velocity):
    """`integral l(x, y) v(y) dmu(y)` from moments about the centers of keys and values, because other moments lose the digits of a cloud
    far from the origin: with `v = m + u` and `l = <q, k> + b + a` it is `E[u k^T] q + E[b u] + a E[u] + (<q, E[k]> + E[b] + a) m`."""

    logit: Logit
    center: Float[Array, " d"]
    mean_value: Float[Array, " e"]
    key: Float[Array, " p"]
    value: Float[Array, " e"]
    second: Float[Array, "e p"]
    bias: Float[Array, ""]
    tilt: Float[Array, " e"]

    @one_program
    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m e"]:
        q, a = self.logit.queries(x, order, self.center)
        level = q @ self.key + self.bias + a
        return q @ self.second.T + self.tilt[None] + a[:, None] * self.value[None] + level[:, None] * self.mean_value[None]
