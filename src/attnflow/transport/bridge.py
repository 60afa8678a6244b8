"""The solvers of bridges, one for each picture of the measures."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from attnflow import _check as check
from attnflow._arrays import floats, known, positive
from attnflow.measures import Gaussian, GaussianMixture, Grid, Measure, Particles, quadrature
from attnflow.spaces import Euclidean
from attnflow.sums import Atoms, Engine, Streamed, Transform, check_engine, isotropic
from attnflow.transport.coupling import Bridge, GaussianBridge, TokenBridge
from attnflow.transport.gaussian import scaled_gaussian
from attnflow.transport.pictures import tokens_of
from attnflow.transport.scaled import Scaled, scaled

# How many tokens stand for a mixture that is sampled.
_SAMPLES = 4096
_PICTURES = "Particles or a Grid in R^d, a Gaussian or a GaussianMixture"


def self_bridge(
    mu: Measure,
    eps: Any,
    tolerance: Any = None,
    max_iterations: int = 10_000,
    start: Any = None,
    sums: Engine | None = None,
    key: PRNGKeyArray | None = None,
) -> TokenBridge | GaussianBridge:
    r"""The Schrodinger bridge of `mu` to itself.

    **Arguments:**

    - `mu`: `Particles` in $\mathbb{R}^d$; a `Grid` there, as tokens at the middles of its cells; a `Gaussian`, in closed form; or a
      `GaussianMixture`, on the line by quadrature fine enough for `eps`, else by 4096 samples drawn with `key`.
    - `eps`: the temperature, in units of squared length.
    - `tolerance`: the largest violation of a marginal; by default $10^{-10}$ in float64, $10^{-5}$ in float32, and never less than the
      round-off of the sums.
    - `start`: where to begin: a bridge of as many tokens, such as that of the step before, or a potential, one number a token.
    - `sums`: how kernel sums are evaluated; `None` chooses.

    Differentiable in `mu` and `eps`, by the implicit function theorem.
    """
    eps = positive("eps", eps)
    _check(max_iterations, sums, key, tolerance)
    mu = check.measure("mu", mu, Measure, _PICTURES)
    if isinstance(mu, Gaussian):
        return _gaussian(mu, None, eps)
    mu = _tokens(mu, eps, key)
    return _solved(mu, None, eps, tolerance, max_iterations, start, sums)


def bridge(
    mu: Measure,
    nu: Measure,
    eps: Any,
    tolerance: Any = None,
    max_iterations: int = 10_000,
    start: Any = None,
    sums: Engine | None = None,
    key: PRNGKeyArray | None = None,
) -> TokenBridge | GaussianBridge:
    r"""The Schrodinger bridge from `mu` to `nu`: clouds in $\mathbb{R}^d$ of any two sizes, Gaussians in closed form, mixtures as in
    `self_bridge`.

    A Gaussian that meets a cloud becomes tokens as a mixture does. The iteration goes down from high temperature, unless it is given a
    `start`: a bridge between as many tokens, or $\psi$ at the tokens of $\nu$. Other arguments are those of `self_bridge`.
    """
    eps = positive("eps", eps)
    _check(max_iterations, sums, key, tolerance)
    mu = check.measure("mu", mu, Measure, _PICTURES)
    nu = check.measure("nu", nu, Measure, _PICTURES)
    if mu.dim != nu.dim:
        raise ValueError(f"both measures must live in one space, got R^{mu.dim} and R^{nu.dim}")
    if isinstance(mu, Gaussian) and isinstance(nu, Gaussian):
        return _gaussian(mu, nu, eps)
    # Two draws, so that the noise of one cloud is not that of the other.
    first, second = (None, None) if key is None else jax.random.split(key)
    mu, nu = _tokens(mu, eps, first), _tokens(nu, eps, second)
    if mu.dtype != nu.dtype:
        raise TypeError(f"both clouds must have one precision, got {mu.dtype} and {nu.dtype}")
    return _solved(mu, nu, eps, tolerance, max_iterations, start, sums)


def _check(max_iterations: int, sums: Engine | None, key: PRNGKeyArray | None, tolerance: Any) -> None:
    check.count("max_iterations", max_iterations)
    check_engine(sums)
    check.key("key", key, optional=True)
    if tolerance is not None:
        positive("tolerance", tolerance)


def _gaussian(mu: Gaussian, nu: Gaussian | None, eps: Array) -> GaussianBridge:
    eps = eps.astype(mu.dtype)
    return GaussianBridge(mu, nu, eps, scaled_gaussian(jnp.eye(mu.dim, dtype=mu.dtype) / eps, mu, nu))


def _tokens(mu: Any, eps: Array, key: PRNGKeyArray | None) -> Particles:
    """A measure as tokens in R^d."""
    if isinstance(mu, Grid) and isinstance(mu.space, Euclidean):
        return tokens_of(mu)
    if isinstance(mu, Particles) and isinstance(mu.space, Euclidean):
        return mu
    if not isinstance(mu, Gaussian | GaussianMixture):
        raise TypeError(f"a bridge is for Particles or a Grid in R^d, a Gaussian or a GaussianMixture, got {_name(mu)}")
    if mu.dim > 1:
        if key is None:
            raise ValueError(f"a {_name(mu)} in R^{mu.dim} is sampled for its bridge, which needs key=jax.random.key(seed), got none")
        return mu.sample(_SAMPLES, key=key)
    # The error of the rule is e^{-2 pi^2 t^2} at a spacing of sqrt(eps) / t, and so for the width of a component.
    covs = np.asarray(mu.covs if isinstance(mu, GaussianMixture) else mu.cov[None])[:, 0, 0]
    if covs.min() <= 0:
        raise ValueError("a Gaussian on the line needs a positive variance to become tokens, got 0; use Particles([[mean]])")
    means = np.asarray(mu.means if isinstance(mu, GaussianMixture) else mu.mean[None])[:, 0]
    width = np.ptp(means) + 17 * math.sqrt(covs.max())
    return quadrature(mu, math.ceil(1.5 * width / math.sqrt(min(float(eps), covs.min()))) + 1)


def _name(mu: Any) -> str:
    on = "" if isinstance(getattr(mu, "space", Euclidean()), Euclidean) else f" on the {type(mu.space).__name__}"
    return type(mu).__name__ + on


def _solved(
    mu: Particles, nu: Particles | None, eps: Array, tolerance: Any, max_iterations: int, start: Any, sums: Engine | None
) -> TokenBridge:
    eps, keys = eps.astype(mu.dtype), mu if nu is None else nu
    least = (1e-10 if mu.dtype == jnp.float64 else 1e-5) if tolerance is None else positive("tolerance", tolerance)
    first = None if start is None else _first(_potential(start, mu, keys), mu, keys, eps)

    def on(sums: Engine | None) -> Scaled:
        logit = isotropic(1 / eps, mu.dim)
        queries = None if nu is None else Atoms(mu.points, mu.log_weights)
        atoms = Atoms(keys.points, keys.log_weights)
        return scaled(logit, atoms, jnp.asarray(least, mu.dtype), jnp.asarray(max_iterations), sums, first, queries)

    kernel = on(sums)
    if isinstance(kernel.engine, Transform) and known(kernel) and not bool(jnp.isfinite(kernel.scaling.error)):
        check.warn("spectral sums cannot resolve the potentials of this bridge; it ran on streamed sums instead")
        kernel = on(Streamed())
    found = TokenBridge(mu, nu, eps, kernel)
    if known(found) and not found.converged:
        check.warn(
            f"the bridge did not converge: error {float(found.error):.1e} after {int(found.iterations)} iterations; "
            "raise max_iterations or tolerance",
        )
    return found


def _potential(start: Any, mu: Particles, keys: Particles) -> Array:
    """The potential that `start` means, one number a token of the target."""
    shapes = (mu.points.shape, keys.points.shape)
    if isinstance(start, TokenBridge):
        if (start.measure.points.shape, start._keys.points.shape) != shapes:
            raise ValueError(f"start must be a bridge of {len(mu.points)} tokens in R^{mu.dim}, like mu, got {len(start.measure.points)}")
        return start.potential
    if isinstance(start, Bridge):
        raise TypeError(f"start must be a bridge of tokens, or a potential at them, got {type(start).__name__}")
    potential = floats("start", start, "n").astype(mu.dtype)
    if len(potential) != len(keys.points):
        raise ValueError(f"start must have one number a token, {len(keys.points)}, got {len(potential)}")
    return potential


def _first(potential: Array, mu: Particles, keys: Particles, eps: Array) -> Array:
    """A potential in units of eps about the centres of the clouds: the g that the iteration works on."""
    centre, gap = jnp.mean(keys.points, axis=0), jnp.mean(mu.points, axis=0) - jnp.mean(keys.points, axis=0)
    y = keys.points - centre[None]
    return (potential + y @ gap - 0.25 * jnp.sum(gap**2)) / eps
