"""How sharply tokens attend."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._arrays import cast
from attnflow.attention.law import Attention
from attnflow.measures import Particles
from attnflow.sums import Request, check_request, log_integral


def attention_entropy(law: Any, mu: Particles, sums: Request | None = None) -> Float[Array, " n"]:
    r"""$-\sum_j p_{ij} \log p_{ij}$ for every token: $\log n$ where attention is even, 0 where a token attends to one alone.

    For softmax and unnormalized laws without a mask, by sums on any engine: under softmax, with the sum $Z$ of a row it is
    $\log Z - \sum_j p_{ij} (\ell_{ij} + \log w_j)$, and the last sum is the derivative of the log-sum along the logits.
    Other laws and masks through the matrix, for a few thousand tokens.
    """
    check.instance("law", law, Attention, "an Attention law", "give one such as af.simple_attention(beta, dim)")
    mu = check.measure("mu", mu, Particles, "Particles")
    check_request(sums)
    if not law.normalize.exponential or law.mask is not None:
        return jnp.sum(jax.scipy.special.entr(law.weights(mu.points, mu)), axis=1)
    logit = cast(law.logit, mu.dtype)
    atoms = mu.atoms(ordered=logit.positional)

    def log_sum(scale: Array) -> Array:
        keys = atoms._replace(log_weights=scale * atoms.log_weights)
        return log_integral(logit.scaled(scale), mu.points, keys, sums, atoms.order)

    one = jnp.ones((), mu.dtype)
    total, mean = jax.jvp(log_sum, (one,), (one,))
    found = total - mean
    if (log_scale := getattr(law.normalize, "log_scale", None)) is None:
        return found
    # Rows of sum s, without normalization: p = s q has the entropy s (H(q) - log s).
    log_sums = total + log_scale.astype(mu.dtype)
    return jnp.exp(log_sums) * (found - log_sums)
