"""Estimates of the score `grad log rho` from tokens, each a map of rows of points.

With the kernel `e^{-|x-y|^2 / (2 eps)}`, `U = log rho` and `V = 1/4 Laplace U + 1/8 |grad U|^2`, their biases are

- bridge: `eps grad V + O(eps^3)`, from the doubly stochastic scaling of the kernel (arXiv:2406.10823);
- kernel density: `eps 1/2 grad (Laplace rho / rho) = eps grad (1/2 Laplace U + 1/2 |grad U|^2)`, from its row scaling, that is softmax;
- Richardson, `2 s_{eps/2} - s_eps` of the bridge scores s: `O(eps^3)`.

Only odd powers of eps are in the bias of the bridge: with the heat semigroup K, `u = e^{phi / eps}` solves `u K_eps(rho u) = 1`, and then
`1 / (rho u)` solves the same equation for -eps, so that `log u + 1/2 log rho` is odd in eps (formally), and the score is `-2 grad log u`.

A fluctuation of the tokens with wave number k passes with the factor `e^{-q/2}`, `1 - tanh(q/4)` and `1 - 2 tanh(q/8) + tanh(q/4)`,
`q = eps k^2`: what has less bias has more variance.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._arrays import positive, rows
from attnflow._check import measure
from attnflow.measures import Affine, Gaussian, GaussianMixture, Measure, Particles
from attnflow.spaces import Euclidean
from attnflow.sums import Atoms, Engine, average, check_engine, isotropic
from attnflow.transport.bridge import self_bridge
from attnflow.transport.coupling import GaussianBridge
from attnflow.transport.exact import heat_flow

Score = Callable[[Any], Float[Array, "m d"]]


def bridge_score(mu: Measure, eps: Any, **options: Any) -> Score:
    r"""$2 (B(x) - x) / \varepsilon$ with the barycentric map $B$ of the self-bridge. Options are those of `self_bridge`; `Affine` for a
    `Gaussian`."""
    bridge = self_bridge(mu, eps, **options)
    if isinstance(bridge, GaussianBridge):
        return pull(bridge).scaled(2 / bridge.eps)
    return bridge.score


def kernel_score(mu: Measure, eps: Any, sums: Engine | None = None) -> Score:
    r"""$\nabla\log(\rho \ast \mathcal{N}(0, \varepsilon I))(x) = (E[y|x] - x) / \varepsilon$, $E$ the softmax of
    $-|x-y|^2 / (2\varepsilon)$: the score of the kernel density.

    A token counts in its own density: at the tokens the estimate is nearer to zero than between them. Exact for a `Gaussian` (`Affine`)
    and a `GaussianMixture`. `sums`: how kernel sums are evaluated; `None` chooses.
    """
    mu = measure("mu", mu, Measure, "tokens in R^d, a Gaussian or a mixture")
    check_engine(sums)
    eps = positive("eps", eps).astype(mu.mean.dtype)
    if isinstance(mu, Gaussian):
        return affine_score(heat_flow(mu, eps))
    if isinstance(mu, GaussianMixture):
        return heat_flow(mu, eps).score
    if not isinstance(mu, Particles) or not isinstance(mu.space, Euclidean):
        on = f" on the {type(mu.space).__name__}" if isinstance(mu, Particles) else ""
        raise TypeError(f"mu: a kernel score is for tokens in R^d, a Gaussian or a mixture, got {type(mu).__name__}{on}")
    return KernelScore(mu, eps, sums)


def richardson_score(mu: Measure, eps: Any, **options: Any) -> Score:
    r"""$2 s_{\varepsilon/2}(x) - s_\varepsilon(x)$, $s$ the bridge score: their biases $\varepsilon b + O(\varepsilon^3)$ cancel to
    $O(\varepsilon^3)$. Options are those of `self_bridge`; `Affine` for a `Gaussian`."""
    eps = positive("eps", eps)
    fine, coarse = (bridge_score(mu, size, **options) for size in (eps / 2, eps))
    if isinstance(fine, Affine) and isinstance(coarse, Affine):
        return fine.scaled(2.0) + coarse.scaled(-1.0)
    return Richardson(fine, coarse)


def pull(bridge: GaussianBridge) -> Affine:
    """`x -> B(x) - x`."""
    eye = jnp.eye(bridge.measure.dim, dtype=bridge.eps.dtype)
    return Affine(bridge.map.matrix - eye, bridge.map.offset)


def affine_score(mu: Gaussian) -> Affine:
    """The score of a Gaussian, `x -> -S^-1 (x - m)`."""
    precision = jnp.linalg.inv(mu.cov)
    return Affine(-precision, precision @ mu.mean)


class KernelScore(eqx.Module):
    """The score of a kernel density."""

    measure: Particles
    eps: Float[Array, ""]
    sums: Engine | None

    def __call__(self, x: Any) -> Float[Array, "m d"]:
        mu, x = self.measure, rows("x", x, self.measure.dim).astype(self.measure.dtype)
        # About the middle: far from the origin the difference of average and x would have lost its digits.
        u, keys = x - mu.mean[None], Atoms(mu.points - mu.mean[None], mu.log_weights)
        _, mean = average(isotropic(1 / self.eps, mu.dim), u, keys, self.sums)
        return (mean - u) / self.eps


class Richardson(eqx.Module):
    """Twice the fine score less the coarse one."""

    fine: Score
    coarse: Score

    def __call__(self, x: Any) -> Float[Array, "m d"]:
        return 2 * self.fine(x) - self.coarse(x)
