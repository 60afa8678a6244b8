"""The solvers of bridges: between Gaussians in closed form, between all other measures as tokens."""

from functools import singledispatch
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from attnflow import _check as check
from attnflow.measures import Gaussian, Measure, Particles
from attnflow.numerics.arrays import array, floats, known, positive
from attnflow.sums import Atoms, Request, Streamed, check_request, isotropic
from attnflow.transport.coupling import Bridge, GaussianBridge, TokenBridge
from attnflow.transport.pairs import ByPair
from attnflow.transport.sinkhorn.gaussian import scaled_gaussian
from attnflow.transport.sinkhorn.scaled import Scaled, scaled

_PICTURES = "Particles or a Grid in R^d, a Gaussian or a GaussianMixture"


def self_bridge(
    mu: Measure,
    eps: Any,
    tolerance: Any = None,
    max_iterations: int = 10_000,
    start: Any = None,
    sums: Request | None = None,
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
    return _bridge(mu, None, eps, key, (tolerance, max_iterations, start, sums))


def bridge(
    mu: Measure,
    nu: Measure,
    eps: Any,
    tolerance: Any = None,
    max_iterations: int = 10_000,
    start: Any = None,
    sums: Request | None = None,
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
    return _bridge(mu, nu, eps, key, (tolerance, max_iterations, start, sums))


def _check(max_iterations: int, sums: Request | None, key: PRNGKeyArray | None, tolerance: Any) -> None:
    check.count("max_iterations", max_iterations)
    check_request(sums)
    check.key("key", key, optional=True)
    if tolerance is not None:
        positive("tolerance", tolerance)


@ByPair
def _bridge(mu: Any, nu: Any, eps: Array, key: PRNGKeyArray | None, how: tuple[Any, ...]) -> TokenBridge | GaussianBridge:
    """The bridge of tokens, those of `mu` to themselves if there is no `nu`."""
    if nu is None:
        return _solved(_tokens(mu, eps, key), None, eps, *how)
    # Two draws, so that the noise of one cloud is not that of the other.
    first, second = (None, None) if key is None else jax.random.split(key)
    mu, nu = _tokens(mu, eps, first), _tokens(nu, eps, second)
    if mu.dtype != nu.dtype:
        raise TypeError(f"both clouds must have one precision, got {mu.dtype} and {nu.dtype}")
    return _solved(mu, nu, eps, *how)


@_bridge.register(Gaussian, Gaussian)
@_bridge.register(Gaussian, type(None))
def _gaussian(mu: Gaussian, nu: Gaussian | None, eps: Array, key: Any, how: Any) -> GaussianBridge:
    eps = array(eps, mu.dtype)
    return GaussianBridge(mu, nu, eps, scaled_gaussian(jnp.eye(mu.dim, dtype=mu.dtype) / eps, mu, nu))


def _tokens(mu: Any, eps: Array, key: PRNGKeyArray | None) -> Particles:
    """A measure as tokens in R^d."""
    if not mu.space.flat:
        raise TypeError(f"a bridge is for {_PICTURES}, got {type(mu).__name__} on the {type(mu.space).__name__}")
    return mu.tokens(eps, key=key)


def _solved(
    mu: Particles, nu: Particles | None, eps: Array, tolerance: Any, max_iterations: int, start: Any, sums: Request | None
) -> TokenBridge:
    eps, keys = eps.astype(mu.dtype), mu if nu is None else nu
    least = (1e-10 if mu.dtype == jnp.float64 else 1e-5) if tolerance is None else positive("tolerance", tolerance)
    first = None if start is None else _first(_potential(start, mu, keys), mu, keys, eps)

    def on(sums: Request | None) -> Scaled:
        logit = isotropic(1 / eps, mu.dim)
        queries = None if nu is None else Atoms(mu.points, mu.log_weights)
        atoms = Atoms(keys.points, keys.log_weights)
        return scaled(logit, atoms, jnp.asarray(least, mu.dtype), jnp.asarray(max_iterations), sums, first, queries)

    kernel = on(sums)
    if _lost(kernel) and not _lost(streamed := on(Streamed())):
        check.warn("spectral sums cannot resolve the potentials of this bridge; it ran on streamed sums instead")
        kernel = streamed
    found = TokenBridge(mu, nu, eps, kernel)
    if known(found) and not found.converged:
        check.warn(
            f"the bridge did not converge: error {float(found.error):.1e} after {int(found.iterations)} iterations; "
            "raise max_iterations or tolerance",
        )
    return found


def _lost(kernel: Scaled) -> bool:
    return known(kernel) and not bool(jnp.isfinite(kernel.scaling.error))


@singledispatch
def _potential(start: Any, mu: Particles, keys: Particles) -> Array:
    """The potential that `start` means, one number a token of the target."""
    potential = array(floats("start", start, "n"), mu.dtype)
    if len(potential) != len(keys.points):
        raise ValueError(f"start must have one number a token, {len(keys.points)}, got {len(potential)}")
    return potential


@_potential.register(TokenBridge)
def _(start: TokenBridge, mu: Particles, keys: Particles) -> Array:
    if (start.measure.points.shape, start._keys.points.shape) != (mu.points.shape, keys.points.shape):
        raise ValueError(f"start must be a bridge of {len(mu.points)} tokens in R^{mu.dim}, like mu, got {len(start.measure.points)}")
    return start.potential


@_potential.register(Bridge)
def _(start: Bridge, mu: Particles, keys: Particles) -> Array:
    raise TypeError(f"start must be a bridge of tokens, or a potential at them, got {type(start).__name__}")


def _first(potential: Array, mu: Particles, keys: Particles, eps: Array) -> Array:
    """A potential in units of eps about the centers of the clouds: the g that the iteration works on."""
    center, gap = jnp.mean(keys.points, axis=0), jnp.mean(mu.points, axis=0) - jnp.mean(keys.points, axis=0)
    y = keys.points - center[None]
    return (potential + y @ gap - 0.25 * jnp.sum(gap**2)) / eps
