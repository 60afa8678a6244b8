r"""Gaussians and their mixtures tilted by a quadratic logit, in closed form.

About a center $c$ let $\ell(x, c + k) = \langle q, k\rangle - \frac12 \langle k, P k\rangle + a$. For a component of weight $w$, mean
$c + m$ and covariance $S$, with $B = (I + S P)^{-1}$,

$$\log Z = a + \log w - \tfrac12 \log\det(I + S P) + \tfrac12 \langle q, B S q\rangle + \langle q, B m\rangle
- \tfrac12 \langle m, P B m\rangle,$$

and the mean of its tilt is $c + B (m + S q)$. No inverse of $S$, $A$ or $P$ is needed. The means of a mixture are averaged by the
responsibilities $Z_k / Z$.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow.measures.tilt import Tilt
from attnflow.measures.velocity import Affine
from attnflow.numerics.arrays import one_program
from attnflow.numerics.linalg import one_by_one, psd_sqrt
from attnflow.sums import Quadratic


class TiltedGaussians(Tilt):
    """The tilts of a mixture of Gaussians: `weights [k]`, `means [k, d]`, `covs [k, d, d]`."""

    logit: Quadratic
    weights: Float[Array, " k"]
    means: Float[Array, "k d"]
    covs: Float[Array, "k d d"]
    inner: Affine | None

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> tuple[Float[Array, " m"], Float[Array, "m e"]]:
        log_norm, mean = _tilted(self.logit, x, self.weights, self.means, self.covs)
        return log_norm, mean if self.inner is None else self.inner(mean)


@one_program
def _tilted(
    logit: Quadratic, x: Float[Array, "m d"], weights: Float[Array, " k"], means: Float[Array, "k d"], covs: Float[Array, "k d d"]
) -> tuple[Float[Array, " m"], Float[Array, "m d"]]:
    center = jax.lax.stop_gradient(weights @ means)
    q, a = logit.queries(x, None, center)
    P, eye = logit.P, jnp.eye(means.shape[1], dtype=means.dtype)

    def component(m: Array, S: Array) -> tuple[Array, Array]:
        shift, narrowed, level = m, S, jnp.zeros((), m.dtype)
        if P is not None:
            both = jnp.linalg.solve(eye + S @ P, jnp.concatenate([m[:, None], S], axis=1))
            shift, narrowed, root = both[:, 0], both[:, 1:], psd_sqrt(S)
            # With a root R of S the determinant is that of I + R P R. If this is not positive definite, the integral does not exist, and
            # its factor is NaN.
            factor = jnp.linalg.cholesky(eye + root @ P @ root)
            level = -jnp.sum(jnp.log(jnp.diagonal(factor))) - 0.5 * m @ P @ shift
        moved = q @ narrowed.T
        return 0.5 * jnp.sum(q * moved, axis=1) + q @ shift + level, shift[None] + moved

    logs, centers = one_by_one(component)(means - center[None], covs)
    some = weights > 0
    logs = jnp.where(some[:, None], logs + jnp.log(jnp.where(some, weights, 1))[:, None], -jnp.inf)
    return a + jax.nn.logsumexp(logs, axis=0), center[None] + jnp.einsum("km,kmd->md", jax.nn.softmax(logs, axis=0), centers)
