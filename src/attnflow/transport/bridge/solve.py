"""The bridge of a measure to itself or to another: between Gaussians in closed form, between all other measures as tokens."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import ArrayLike, Key, Scalar
from attnflow.measures import Gaussian, Measure, Particles
from attnflow.numerics.arrays import positive
from attnflow.sums import Request, check_request
from attnflow.transport.bridge.base import Bridge
from attnflow.transport.bridge.gaussian import GaussianBridge, gaussian_bridge
from attnflow.transport.bridge.tokens import TokenBridge, token_bridge

_PICTURES = "Particles or a Grid in R^d, a Gaussian or a GaussianMixture"


def self_bridge(
    mu: Measure,
    eps: Scalar,
    *,
    tolerance: Scalar | None = None,
    max_iterations: int = 10_000,
    start: Bridge | ArrayLike | None = None,
    sums: Request | None = None,
    key: Key | None = None,
) -> TokenBridge | GaussianBridge:
    r"""The Schrodinger bridge of `mu` to itself.

    **Arguments:**

    - `mu`: `Particles` in $\mathbb{R}^d$; a `Grid` there, as tokens at the centers of its cells; a `Gaussian`, in closed form; or a
      `GaussianMixture`, on the line by quadrature fine enough for `eps`, else by 4096 samples drawn with `key`.
    - `eps`: the temperature, in units of squared length.
    - `tolerance`: the largest violation of a marginal; by default $10^{-10}$ in float64, $10^{-5}$ in float32, and never less than the
      round-off of the sums.
    - `start`: where to begin: a bridge of as many tokens, such as that of the step before, or a potential, one number per token.
    - `sums`: how kernel sums are evaluated; `None` chooses.

    Differentiable in `mu` and `eps`, by the implicit function theorem.
    """
    return _solve(check.measure("mu", mu, Measure, _PICTURES), None, eps, tolerance, max_iterations, start, sums, key)


def bridge(
    mu: Measure,
    nu: Measure,
    eps: Scalar,
    *,
    tolerance: Scalar | None = None,
    max_iterations: int = 10_000,
    start: Bridge | ArrayLike | None = None,
    sums: Request | None = None,
    key: Key | None = None,
) -> TokenBridge | GaussianBridge:
    r"""The Schrodinger bridge from `mu` to `nu`: clouds in $\mathbb{R}^d$ of any two sizes, Gaussians in closed form, mixtures as in
    `self_bridge`.

    A Gaussian that meets a cloud becomes tokens as a mixture does. The iteration goes down from high temperature, unless it is given a
    `start`: a bridge between as many tokens, or $\psi$ at the tokens of $\nu$. Other arguments are those of `self_bridge`.
    """
    mu, nu = check.measure("mu", mu, Measure, _PICTURES), check.measure("nu", nu, Measure, _PICTURES)
    if mu.dim != nu.dim:
        raise ValueError(f"both measures must live in one space, got R^{mu.dim} and R^{nu.dim}")
    return _solve(mu, nu, eps, tolerance, max_iterations, start, sums, key)


def _solve(
    mu: Measure,
    nu: Measure | None,
    eps: Scalar,
    tolerance: Scalar | None,
    max_iterations: int,
    start: Bridge | ArrayLike | None,
    sums: Request | None,
    key: Key | None,
) -> TokenBridge | GaussianBridge:
    number, least = positive("eps", eps), None if tolerance is None else positive("tolerance", tolerance)
    check.count("max_iterations", max_iterations)
    check_request(sums)
    check.key("key", key, optional=True)
    if isinstance(mu, Gaussian) and (nu is None or isinstance(nu, Gaussian)):
        return gaussian_bridge(mu, nu, number)
    # Two draws, so that the noise of one cloud is not that of the other.
    first, second = (key, None) if nu is None or key is None else jax.random.split(key)
    tokens, target = _tokens(mu, number, first), None if nu is None else _tokens(nu, number, second)
    if target is not None and tokens.dtype != target.dtype:
        raise TypeError(f"both clouds must have one precision, got {tokens.dtype} and {target.dtype}")
    if least is None:
        least = jnp.asarray(1e-10 if tokens.dtype == jnp.float64 else 1e-5)
    return token_bridge(tokens, target, number, least, max_iterations, start, sums)


def _tokens(mu: Measure, eps: Float[Array, ""], key: Key | None) -> Particles:
    """A measure as tokens in R^d."""
    if not mu.space.flat:
        raise TypeError(f"a bridge is for {_PICTURES}, got {type(mu).__name__} on the {type(mu.space).__name__}")
    return mu.tokens(eps, key=key)
