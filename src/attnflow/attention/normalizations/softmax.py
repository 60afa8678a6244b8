"""Softmax: rows sum to one."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow.attention.normalizations.base import Normalization
from attnflow.measures import Affine, FlowingMeasure, Velocity
from attnflow.measures.tilt import TiltedAtoms
from attnflow.numerics.arrays import one_program
from attnflow.sums import Atoms, Logit, Mask, Request, visible_logits, visible_masses


class Softmax(Normalization):
    r"""$k(x, y) = e^{\ell(x,y)} / \int e^{\ell(x,z)} \,d\mu(z)$ (Vaswani et al. 2017; L2: Kim et al. 2021, arXiv:2006.04710)."""

    exponential = True

    def over(self, mu: FlowingMeasure, logit: Logit, inner: Affine | None, mask: Mask | None, sums: Request | None) -> Velocity:
        return mu.tilt(logit, inner, mask, sums).mean

    def average(self, logit: Logit, atoms: Atoms, sums: Request | None) -> Velocity:
        return TiltedAtoms(logit, atoms, sums).mean

    @one_program
    def weights(self, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, order: Float[Array, " m"] | None = None) -> Float[Array, "m n"]:
        logits = visible_logits(logit, x, atoms, order) + atoms.log_weights[None]
        # The part of each key that is seen, which for whole keys is one.
        part = visible_masses(x, atoms._replace(log_weights=jnp.zeros_like(atoms.log_weights)), order)
        return jax.nn.softmax(logits + jnp.log(jnp.where(part > 0, part, 1)), axis=1, where=jnp.isfinite(logits))
