"""The Schrodinger bridge of a measure to itself: entropic optimal transport with cost `1/2 |x-y|^2` and temperature eps.

The plan is `pi(x, y) = e^{(phi(x) + phi(y) - |x-y|^2 / 2) / eps} mu(x) mu(y)` with both marginals mu. Its barycentric map
`B(x) = integral y pi(y|x)` is doubly stochastic attention with `A = I / eps`, and a score estimator:
`(B(x) - x) / eps = 1/2 grad log rho(x) + O(eps)` (arXiv:2406.10823). Moving by `x <- 2x - B(x)` is a step of the heat flow
`d_t rho = 1/2 Laplace rho` of length eps.
"""

import abc
import warnings
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._arrays import floats, known, positive
from attnflow.measures import Affine, FlowingMeasure, Gaussian, Particles
from attnflow.spaces import Euclidean
from attnflow.sums import Atoms, Engine, Logit
from attnflow.transport.gaussian import scaled_gaussian
from attnflow.transport.scaled import Scaled, scaled


class Bridge(eqx.Module):
    """The bridge of a measure to itself at temperature `eps`."""

    measure: eqx.AbstractVar[Any]
    eps: eqx.AbstractVar[Float[Array, ""]]

    @abc.abstractmethod
    def barycentric(self, x: Any) -> Float[Array, "m d"]:
        """`B(x) = E[y|x]` at every row of x, on the support or off it."""

    def score(self, x: Any) -> Float[Array, "m d"]:
        """`2 (B(x) - x) / eps`, which is `grad log rho(x) + O(eps)`."""
        x = floats("x", x, "m d").astype(self.measure.dtype)
        return 2 * (self.barycentric(x) - x) / self.eps


class TokenBridge(Bridge):
    """The bridge of a cloud. `error` is the largest violation of a marginal, relative to its mass; `converged` and `iterations` say how
    the iteration ended."""

    measure: Particles
    eps: Float[Array, ""]
    kernel: Scaled

    def barycentric(self, x: Any) -> Float[Array, "m d"]:
        return self.kernel(floats("x", x, "m d").astype(self.measure.dtype))

    def plan(self) -> Float[Array, "n n"]:
        """The coupling `pi_ij`, dense; rows and columns sum to the weights."""
        log_kernel = self.kernel.log_kernel(self.measure.points)
        return jnp.exp(log_kernel + self.measure.log_weights[None, :] + self.measure.log_weights[:, None])

    @property
    def potential(self) -> Float[Array, " n"]:
        """`phi` at every token."""
        points = self.kernel.atoms.points
        return self.eps * self.kernel.scaling.g + 0.5 * jnp.sum(points**2, axis=1)

    @property
    def cost(self) -> Float[Array, ""]:
        """`min over pi of integral 1/2 |x-y|^2 dpi + eps KL(pi | mu x mu)`, which is `2 integral phi dmu`."""
        weights = jnp.exp(self.measure.log_weights)
        return 2 * jnp.vdot(weights, jnp.where(weights > 0, self.potential, 0))

    @property
    def converged(self) -> Any:
        return self.kernel.scaling.converged

    @property
    def iterations(self) -> Any:
        return self.kernel.scaling.iterations

    @property
    def error(self) -> Any:
        return self.kernel.scaling.error

    @property
    def stats(self) -> dict[str, Any]:
        """The convergence of the iteration, which engine the sums ran on, and their error if they are not exact."""
        return self.kernel.report | {"engine": repr(self.kernel.engine)}


class GaussianBridge(Bridge):
    """The bridge of a Gaussian, in closed form: `B(x) = m + M (x - m)`, for N(0, s^2) `M = (sqrt(s^4 + eps^2 / 4) - eps / 2) / s^2`."""

    measure: Gaussian
    eps: Float[Array, ""]
    map: Affine

    def barycentric(self, x: Any) -> Float[Array, "m d"]:
        return self.map(floats("x", x, "m d").astype(self.measure.dtype))


def self_bridge(
    mu: FlowingMeasure,
    eps: Any,
    tolerance: Any = None,
    max_iterations: int = 10_000,
    start: Bridge | None = None,
    sums: Engine | None = None,
) -> TokenBridge | GaussianBridge:
    """The Schrodinger bridge of `mu` to itself.

    **Arguments:**

    - `mu`: `Particles` in R^d, or a `Gaussian`.
    - `eps`: the temperature, in units of squared length.
    - `tolerance`: the largest violation of a marginal; by default 1e-10 in float64, 1e-5 in float32.
    - `start`: a bridge of as many tokens, such as that of the step before, to begin from.
    - `sums`: how kernel sums are evaluated; `None` chooses.

    Differentiable in `mu` and `eps`, by the implicit function theorem.
    """
    eps = positive("eps", eps)
    if isinstance(mu, Gaussian):
        eps = eps.astype(mu.dtype)
        return GaussianBridge(mu, eps, scaled_gaussian(jnp.eye(mu.dim, dtype=mu.dtype) / eps, mu))
    if not isinstance(mu, Particles) or not isinstance(mu.space, Euclidean):
        raise TypeError(f"a bridge is for Particles in R^d or a Gaussian, got {type(mu).__name__}; draw tokens with .sample(n, key=key)")
    if max_iterations < 1:
        raise ValueError(f"max_iterations must be at least 1, got {max_iterations}")
    if start is not None and not (isinstance(start, TokenBridge) and start.measure.points.shape == mu.points.shape):
        raise ValueError(f"start must be a bridge of {len(mu.points)} tokens in R^{mu.dim}, like mu")
    eps = eps.astype(mu.dtype)
    least = (1e-10 if mu.dtype == jnp.float64 else 1e-5) if tolerance is None else positive("tolerance", tolerance)
    logit = Logit(jnp.eye(mu.dim, dtype=mu.dtype) / eps, psd=True)
    first = None if start is None else _moved(start, mu, eps)
    kernel = scaled(logit, Atoms(mu.points, mu.log_weights), jnp.asarray(least, mu.dtype), jnp.asarray(max_iterations), sums, first)
    bridge = TokenBridge(mu, eps, kernel)
    if known(bridge) and not bridge.converged:
        warnings.warn(
            f"the bridge did not converge: error {float(bridge.error):.1e} after {int(bridge.iterations)} iterations; "
            "raise max_iterations or tolerance",
            stacklevel=2,
        )
    return bridge


def _moved(start: TokenBridge, mu: Particles, eps: Array) -> Array:
    """The potential of another bridge as a first guess: phi in units of eps, about the new centre."""
    centred = mu.points - jnp.mean(mu.points, axis=0)[None]
    return (start.potential - 0.5 * jnp.sum(centred**2, axis=1)) / eps
