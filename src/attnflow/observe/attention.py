"""How sharply tokens attend."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow.attention.law import Attention
from attnflow.attention.normalisations.softmax import Softmax
from attnflow.measures import Particles
from attnflow.sums import Atoms, Engine, Logit, check_engine, log_integral


def attention_entropy(law: Any, mu: Particles, sums: Engine | None = None) -> Float[Array, " n"]:
    r"""$-\sum_j p_{ij} \log p_{ij}$ for every token: $\log n$ where attention is even, 0 where a token attends to one alone.

    For softmax laws without a mask, by sums on any engine: with the sum $Z$ of a row it is
    $\log Z - \sum_j p_{ij} (\ell_{ij} + \log w_j)$, and the last sum is the derivative of the log-sum along the logits.
    Other laws and masks through the matrix, for a few thousand tokens.
    """
    check.instance("law", law, Attention, "an Attention law", "give one such as af.simple_attention(beta, dim)")
    mu = check.measure("mu", mu, Particles, "Particles")
    check_engine(sums)
    if not isinstance(law.normalize, Softmax) or law.mask is not None:
        return jnp.sum(jax.scipy.special.entr(law.weights(mu.points, mu)), axis=1)
    logit = jax.tree.map(lambda leaf: leaf.astype(mu.dtype), law.logit)

    def log_sum(scale: Array) -> Array:
        scaled: Logit = jax.tree.map(lambda leaf: scale * leaf, logit)
        return log_integral(scaled, mu.points, Atoms(mu.points, scale * mu.log_weights), sums)

    one = jnp.ones((), mu.dtype)
    total, mean = jax.jvp(log_sum, (one,), (one,))
    return total - mean
