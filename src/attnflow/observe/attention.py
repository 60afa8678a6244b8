"""How sharply tokens attend."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attnflow import _check as check
from attnflow._types import FieldLike, MeasureLike, Scalar
from attnflow.attention.law import Attention
from attnflow.measures import Particles
from attnflow.numerics.arrays import cast, positive
from attnflow.sums import Request, check_request, log_integral


def attention_entropy(law: FieldLike, mu: MeasureLike, *, sums: Request | None = None) -> Float[Array, " n"]:
    r"""$-\sum_j p_{ij} \log p_{ij}$ for every token $i$, $p_{ij}$ the attention matrix: $\log n$ where attention is uniform, 0 where
    a token attends to one key alone.

    For softmax and unnormalized laws without a mask, by sums on any engine: under softmax it is
    $\log Z_i - \sum_j p_{ij} (\ell_{ij} + \log w_j)$ with the sum $Z_i$ of the row, and the last sum is the derivative of the log-sum along
    the logits. Other normalizations and masks go through the matrix, for a few thousand tokens.
    """
    law = check.instance("law", law, Attention, "an Attention law", "give one such as af.simple_attention(beta, dim)")
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


# The whole matrix is made: 128 MB in double precision.
_MOST = 4096


@dataclasses.dataclass(frozen=True, eq=False)
class Leaders:
    """Which tokens the rows of an attention matrix pick; with a leading axis for the heads of `MultiHead`.

    - `picked`: the token that each row weighs most.
    - `tokens`: the leaders, those that some row picks, increasing; over all heads.
    - `distance`: `1 - max_j P_ij`, half the L1 distance of row i to the nearest Boolean row; 0 for a row that picks one token.
    """

    picked: Int[np.ndarray, "... n"]
    tokens: Int[np.ndarray, " k"]
    distance: Float[np.ndarray, "... n"]

    def undecided(self, tolerance: Scalar = 1e-3) -> int:
        """How many rows are farther than the tolerance from Boolean."""
        return int((self.distance > float(positive("tolerance", tolerance))).sum())

    def __str__(self) -> str:
        return f"{len(self.tokens)} leaders of {self.picked.shape[-1]} tokens, rows that are not Boolean to 1e-3: {self.undecided()}"


class AttentionRank(NamedTuple):
    """`numerical`: singular values above the tolerance times the largest. `stable`: `|P|_F^2 / |P|_2^2`, at most the rank."""

    numerical: Int[np.ndarray, "..."]
    stable: Float[np.ndarray, "..."]


def leaders(law: FieldLike, mu: MeasureLike) -> Leaders:
    """Which token each token of `mu`, which are `Particles`, attends to most.

    In $d = 1$ with $V > 0$ and $A > 0$ all rows but at most one pick the largest or the smallest token in the limit (arXiv:2305.05465).
    That is about the tokens themselves: of a path of `af.rescaled(law)` give $e^{tV} z$.
    """
    matrix = _matrix(law, mu)
    picked = matrix.argmax(axis=-1)
    return Leaders(picked, np.unique(picked), np.maximum(1 - matrix.max(axis=-1) / matrix.sum(axis=-1), 0))


def attention_rank(law: FieldLike, mu: MeasureLike, *, tolerance: Scalar = 1e-6) -> AttentionRank:
    """The numerical and the stable rank of the attention matrix of `Particles`, for every head of `MultiHead`."""
    least = float(positive("tolerance", tolerance))
    s = np.linalg.svd(_matrix(law, mu), compute_uv=False)
    return AttentionRank((s > least * s[..., :1]).sum(axis=-1), (s**2).sum(axis=-1) / s[..., 0] ** 2)


def _matrix(law: FieldLike, mu: MeasureLike) -> Float[np.ndarray, "... n n"]:
    """The attention matrix on the host; a masked law sees the tokens in their order."""
    weights = getattr(law, "weights", None)
    if isinstance(law, type) or not callable(weights):
        raise TypeError(check.refusal("law", "a law with an attention matrix, Attention or MultiHead", law))
    mu = check.measure("mu", mu, Particles, "Particles")
    n = len(mu.points)
    if n > _MOST:
        raise ValueError(f"the whole attention matrix is made, for at most {_MOST} tokens, got {n}; give a part of them")
    return np.asarray(weights(mu.points, mu), dtype=float)
