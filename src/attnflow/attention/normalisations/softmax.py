"""Softmax: rows sum to one."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from attnflow._arrays import one_program
from attnflow.attention.normalisations.base import Average, Normalisation
from attnflow.measures import Affine, Gaussian
from attnflow.sums import Atoms, Engine, Logit, accuracy, average, visible_logits


class Softmax(Normalisation):
    r"""$k(x, y) = e^{\ell(x,y)} / \int e^{\ell(x,z)} \,d\mu(z)$ (Vaswani et al. 2017; L2: Kim et al. 2021, arXiv:2006.04710)."""

    def average(self, logit: Logit, atoms: Atoms, sums: Engine | None) -> Average:
        return SoftmaxAverage(logit, atoms, sums)

    @one_program
    def weights(self, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, order: Float[Array, " m"] | None = None) -> Float[Array, "m n"]:
        logits = visible_logits(logit, x, atoms, order) + atoms.log_weights[None]
        return jax.nn.softmax(logits, axis=1, where=jnp.isfinite(logits))

    @one_program
    def gaussian(self, logit: Logit, mu: Gaussian) -> Affine:
        """$(I + S P)^{-1} (m + S (A x + p))$: the Gaussian tilted by the logit; $S$ and $A$ may be singular (arXiv:2501.18322)."""
        matrix, offset = mu.cov @ logit.A, mu.mean if logit.p is None else mu.mean + mu.cov @ logit.p
        if logit.P is None:
            return Affine(matrix, offset)
        both = jnp.linalg.solve(jnp.eye(mu.dim, dtype=mu.dtype) + mu.cov @ logit.P, jnp.concatenate([matrix, offset[:, None]], axis=1))
        return Affine(both[:, :-1], both[:, -1])


class SoftmaxAverage(Average):
    """The softmax average over a cloud."""

    logit: Logit
    atoms: Atoms
    sums: Engine | None

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        return average(self.logit, x, self.atoms, self.sums, order)[1]

    @property
    def report(self) -> dict[str, PyTree]:
        return accuracy(self.logit, self.atoms.points, self.atoms, self.sums)
