"""How much attention can amplify a change of its tokens (arXiv:2312.14820)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._check import count
from attnflow._types import ArrayLike, Scalar
from attnflow.numerics.arrays import floats, known, positive, square


def lipschitz_bound(query_key: ArrayLike, value: ArrayLike, radius: Scalar, n: int) -> Float[Array, ""]:
    r"""$\sqrt{3}\, |V|\, (|A|^2 R^4 (4n+1) + n)^{1/2}$: a bound of the Lipschitz constant of softmax attention on $n$ tokens in the ball
    of radius $R$, in the Euclidean norm of all tokens together (arXiv:2312.14820). `query_key` is $A$, the matrix of the logit
    $\langle A x, y\rangle$."""
    A, V, R = square("query_key", query_key), square("value", value), positive("radius", radius)
    count("n", n)
    _one_dimension(A, V)
    return jnp.sqrt(3.0) * jnp.linalg.norm(V, 2) * jnp.sqrt(jnp.linalg.norm(A, 2) ** 2 * R**4 * (4 * n + 1) + n)


def stability_constant(query_key: ArrayLike, value: ArrayLike, radius: Scalar, t: Scalar) -> Float[Array, ""]:
    r"""$C$ with $W_2(\mu_t, \nu_t) \le C\, W_2(\mu_0, \nu_0)$ for softmax attention on $\mathbb{R}^d$ from measures in the ball of
    radius $R$ (derived here).

    Until $t$ both supports lie in the ball of radius $S = e^{|V| t} R$; put $a = |A| S^2$. Along a coupling of the two measures, the
    average changes with the query by at most $a$ times the change of the query, because the derivative is a covariance times $A$. With the
    measure it changes through the keys and through their weights, by $1 + a$ times the change of the keys in $L^2$ under the weights of a
    row; these are at most $e^{2a}$ times the measure, which costs a factor $e^a$ in $L^2$. Gronwall's inequality gives
    $C = \exp(t |V| (a + e^a (1 + a)))$: crude, but explicit.
    """
    A, V, R, t = square("query_key", query_key), square("value", value), positive("radius", radius), floats("t", t, "")
    _one_dimension(A, V)
    if known(t) and float(t) < 0:
        raise ValueError(f"t must not be negative, got {float(t)}")
    size = jnp.linalg.norm(V, 2)
    a = jnp.linalg.norm(A, 2) * (jnp.exp(size * t) * R) ** 2
    return jnp.exp(t * size * (a + jnp.exp(a) * (1 + a)))


def _one_dimension(A: Array, V: Array) -> None:
    if A.shape != V.shape:
        raise ValueError(f"query_key and value must have one dimension, got {len(A)} and {len(V)}")
