"""The self-bridge of a measure against its stationary Langevin diffusion (arXiv:2406.10823).

`dX = 1/2 grad log rho(X) dt + dB` leaves rho in place. Let l be the distribution of (X_0, X_eps) and pi the Schrodinger bridge of rho to
itself at temperature eps. Both couple rho with itself, and the theorem says `H(l|pi) + H(pi|l) = o(eps^2)`, with the Fisher information of
rho and of the entropic interpolation in the bound.

With `V = 1/4 Laplace log rho + 1/8 |grad log rho|^2` the generator is, up to conjugation with rho^1/2, `-(-1/2 Laplace + V)`, so that
`l(x, y) = rho(x)^1/2 e^{-eps (-1/2 Laplace + V)}(x, y) rho(y)^1/2`. On a short way log l is that of a bridge less `eps` times the mean of V
between x and y. What no function of x plus one of y can match is `eps/12 <y-x, D^2 V (y-x)>`, about its mean; its square has the mean

    H(l|pi) + H(pi|l) = eps^4 / 72 integral |D^2 V|^2 drho (1 + O(eps)),

`sum over i of eps^4 / (1152 s_i^8)` for a Gaussian with the variances s_i^2. (Derived formally here; the sources have no constant.)
"""

from functools import singledispatch
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import ArrayLike
from attnflow.measures import Gaussian, GaussianMixture, Measure, Particles, quadrature
from attnflow.measures.quadrature import integral
from attnflow.numerics.arrays import array, floats, known, rows
from attnflow.transport.bridge.solve import self_bridge

# Entries of a coupling below this share of the largest are round-off.
_FLOOR = 1e-13
_DUE = "a Gaussian, or a GaussianMixture on the line"


def langevin_divergence(mu: Measure, eps: ArrayLike, *, nodes: int = 600) -> Float[Array, " k"]:
    r"""$H(\ell|\pi) + H(\pi|\ell)$ at every temperature `eps` `[k]`.

    **Arguments:** `mu`: a `Gaussian`, in closed form, or a `GaussianMixture` on the line, on a grid of `nodes` points: the diffusion by
    the eigenfunctions of its generator in a basis of sinc functions, the bridge by quadrature, both of spectral accuracy.
    """
    eps = floats("eps", eps, "k")
    if known(eps) and not (np.asarray(eps) > 0).all():
        raise ValueError(f"eps must be positive, got {float(eps.min())}")
    return _divergence(mu, eps, nodes)


@singledispatch
def _divergence(mu: Measure, eps: Float[Array, " k"], nodes: int) -> Float[Array, " k"]:
    mu = check.measure("mu", mu, Measure, _DUE)
    raise TypeError(f"mu must be {_DUE}, got {type(mu).__name__} in R^{mu.dim}")


@_divergence.register(GaussianMixture)
def _(mu: GaussianMixture, eps: Float[Array, " k"], nodes: int) -> Float[Array, " k"]:
    if mu.dim != 1:
        raise TypeError(f"mu must be {_DUE}, got GaussianMixture in R^{mu.dim}")
    check.count("nodes", nodes, 2)
    if mu.dtype != jnp.float64:
        raise TypeError(f"a number of order eps^4 needs float64, got {mu.dtype}; jax.config.update('jax_enable_x64', True)")
    tokens = quadrature(mu, nodes)
    _check_spacing(mu, tokens, float(eps.min()))
    values, vectors = _generator(mu, tokens)
    return jnp.stack([_on_grid(tokens, values, vectors, size) for size in eps])


def langevin_constant(mu: Measure) -> Float[Array, ""]:
    r"""$\frac{1}{72} \int |D^2 V|^2 \,d\rho$, the limit of $(H(\ell|\pi) + H(\pi|\ell)) / \varepsilon^4$, for a Gaussian or a mixture in
    up to 3 dimensions."""
    smooth = _smooth(mu)
    return integral(smooth, lambda x: eqx.filter_jit(_squared_hessian)(smooth, x)) / 72


def langevin_potential(mu: Measure, x: ArrayLike) -> Float[Array, " m"]:
    r"""$V = \frac14 \Delta\log\rho + \frac18 |\nabla\log\rho|^2 = \frac12 (\Delta\sqrt{\rho}) / \sqrt{\rho}$ at $x$; the bridge score
    has the bias $\varepsilon \nabla V$."""
    mu = _smooth(mu)
    x = rows("x", x, mu.dim)

    def one(x: Float[Array, " d"]) -> Float[Array, ""]:
        score = lambda x: mu.score(x[None])[0]  # noqa: E731
        return jnp.trace(jax.jacfwd(score)(x)) / 4 + jnp.sum(score(x) ** 2) / 8

    return jax.vmap(one)(x)


def _squared_hessian(mu: Measure, x: Float[Array, "m d"]) -> Float[Array, " m"]:
    hessian = jax.jacfwd(jax.jacfwd(lambda x: langevin_potential(mu, x[None])[0]))
    return jnp.sum(jax.vmap(hessian)(x) ** 2, axis=(1, 2))


def _smooth(mu: Measure) -> Measure:
    """`mu`, refused unless it has a score in closed form."""
    mu = check.measure("mu", mu, Measure, "a Gaussian or a GaussianMixture")
    if not mu.smooth:
        raise TypeError(check.refusal("mu", "a Gaussian or a GaussianMixture", mu))
    return mu


@_divergence.register(Gaussian)
def _between_gaussians(mu: Gaussian, eps: Float[Array, " k"], nodes: int) -> Float[Array, " k"]:
    """`sum of (p - q)^2 (1 + pq) / ((1 - p^2)(1 - q^2))` over the eigenvalues s^2 of the covariance: the pairs have the correlations
    `p = (1 + r^2/4)^1/2 - r/2` and `q = e^{-r/2}`, `r = eps / s^2`."""
    r = array(eps, mu.dtype)[:, None] / jnp.linalg.eigvalsh(mu.cov)[None]
    # 1 - p and 1 - q, without cancellation.
    a, b = r / 2 - r**2 / 4 / (1 + jnp.sqrt(1 + r**2 / 4)), -jnp.expm1(-r / 2)
    p, q = 1 - a, 1 - b
    return jnp.sum((a - b) ** 2 * (1 + p * q) / (a * (1 + p) * b * (1 + q)), axis=1)


@eqx.filter_jit
def _generator(mu: GaussianMixture, tokens: Particles) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """Eigenvalues and eigenvectors of `-1/2 d^2/dx^2 + V` between sinc functions (Colbert and Miller 1992)."""
    points, n = tokens.points[:, 0], len(tokens.points)
    h = (points[-1] - points[0]) / (n - 1)
    apart = jnp.arange(n)[:, None] - jnp.arange(n)[None, :]
    kinetic = jnp.where(apart == 0, jnp.pi**2 / 3, 2 * (-1.0) ** apart / jnp.where(apart == 0, 1, apart) ** 2) / (2 * h**2)
    return jnp.linalg.eigh(kinetic + jnp.diag(langevin_potential(mu, tokens.points)))


def _on_grid(tokens: Particles, values: Array, vectors: Array, eps: Array) -> Array:
    """`sum (l - pi) log(l / pi)` over the pairs of grid points."""
    root = jnp.exp(tokens.log_weights / 2)
    pair = root[:, None] * ((vectors * jnp.exp(-eps * values)[None]) @ vectors.T) * root[None, :]
    plan: Any = self_bridge(tokens, eps, tolerance=1e-11).plan()
    seen = (pair > _FLOOR * jnp.max(pair)) & (plan > _FLOOR * jnp.max(plan))
    return jnp.sum(jnp.where(seen, (pair - plan) * jnp.log(jnp.where(seen, pair, 1) / jnp.where(seen, plan, 1)), 0))


def _check_spacing(mu: GaussianMixture, tokens: Particles, eps: float) -> None:
    """A grid resolves wave numbers up to pi/h: the kernel `e^{-eps k^2/2}`, and rho^1/2, whose branch points are where components cancel,
    about `pi s^2 / (m_i - m_j)` off the line, must have died out there."""
    stds = np.sqrt(np.asarray(mu.covs)[:, 0, 0])
    apart = max(float(np.ptp(np.asarray(mu.means)[:, 0])), float(stds.min()))
    digits = 36  # -log of double precision
    widest = min(np.pi * np.sqrt(eps / (2 * digits)), np.pi**2 * stds.min() ** 2 / (digits * apart), np.pi * stds.min() / np.sqrt(digits))
    x = np.asarray(tokens.points)[:, 0]
    if x[1] - x[0] > widest:
        raise ValueError(f"nodes must be at least {int(np.ceil(np.ptp(x) / widest)) + 1} for eps = {eps:g} and this measure, got {len(x)}")
