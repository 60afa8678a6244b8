"""Tokens whose pairwise cosines are all equal keep them equal; the common cosine solves a scalar equation."""

from typing import Literal, get_args

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import ArrayLike, Scalar
from attnflow.numerics.arrays import floats, known

# The budget of steps of the scalar equation.
_STEPS = 100_000

Kind = Literal["softmax", "unnormalized"]


def equiangular_rate(g: ArrayLike, n: int, beta: Scalar, *, kind: Kind = "softmax") -> Float[Array, "..."]:
    r"""The rate of change of the common cosine $g$ of $n$ tokens under simple attention (arXiv:2312.10794).

    Softmax: $g' = 2 e^{\beta g} (1-g) ((n-1)g+1) / (e^\beta + (n-1) e^{\beta g})$; unnormalized:
    $g' = \frac2n e^{\beta g} (1-g) ((n-1)g+1)$.
    """
    check.choice("kind", kind, get_args(Kind))
    check.count("n", n, 2)
    g, beta = floats("g", g, " ".join("abcdef"[: np.ndim(g)])), floats("beta", beta, "")
    shape = 2 * (1 - g) * ((n - 1) * g + 1)
    if kind == "softmax":
        return shape / (jnp.exp(beta * (1 - g)) + (n - 1))
    return shape * jnp.exp(beta * g) / n


def equiangular(n: int, beta: Scalar, t: ArrayLike, *, kind: Kind = "softmax", start: Scalar = 0.0) -> Float[Array, " t"]:
    r"""The common cosine at the increasing times `t` ($\ge 0$), from `start` at 0, by default that of orthonormal tokens
    (arXiv:2312.10794)."""
    check.count("n", n, 2)
    check.choice("kind", kind, get_args(Kind))
    times = floats("t", t, "t")
    floats("start", start, "")
    cosines = _cosine(n, floats("beta", beta, "").astype(times.dtype), times, kind, jnp.asarray(start, times.dtype))
    if known(cosines) and not np.isfinite(np.asarray(cosines)).all():
        raise ValueError(
            f"the equation does not reach t = {float(times[-1]):.6g} in {_STEPS} steps; give increasing times, or shorter ones"
        )
    return cosines


@eqx.filter_jit
def _cosine(n: int, beta: Array, times: Array, kind: Kind, start: Array) -> Array:
    term = diffrax.ODETerm(lambda t, g, args: equiangular_rate(g, n, beta, kind=kind))
    tolerance = 1e-12 if times.dtype == jnp.float64 else 1e-6
    control = diffrax.PIDController(rtol=tolerance, atol=tolerance)
    end = jnp.maximum(times[-1], jnp.finfo(times.dtype).tiny)
    zero = jnp.zeros((), times.dtype)
    # Interpolated afterwards, and without `throw`: times to save at and errors are checked by calls to the host, and a program with one is
    # not kept between processes.
    path = diffrax.diffeqsolve(
        term,
        diffrax.Tsit5(),
        zero,
        end,
        None,
        start,
        saveat=diffrax.SaveAt(dense=True),
        stepsize_controller=control,
        max_steps=_STEPS,
        throw=False,
    )
    return jnp.where(path.result == diffrax.RESULTS.successful, jax.vmap(path.evaluate)(times), jnp.nan)
