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
from typing import TYPE_CHECKING, Any, TypeAlias

from jaxtyping import Array

from attnflow._check import measure
from attnflow._types import Scalar
from attnflow.measures import Measure
from attnflow.measures.velocity import Velocity
from attnflow.numerics.arrays import array, positive
from attnflow.sums import Request, check_request
from attnflow.transport.bridge.solve import self_bridge
from attnflow.transport.kernel_density import smoothed

if TYPE_CHECKING:
    # What makes a score from a measure and a temperature: `(mu, eps) -> score`.
    Estimator: TypeAlias = Callable[..., Callable[..., Array]]
else:
    Estimator = Any


def bridge_score(mu: Measure, eps: Scalar, **options: Any) -> Velocity:
    r"""$2 (B(x) - x) / \varepsilon$ with the barycentric map $B$ of the self-bridge. Options are those of `self_bridge`; `Affine` for a
    `Gaussian`."""
    return self_bridge(mu, eps, **options).score_map()


def kernel_score(mu: Measure, eps: Scalar, *, sums: Request | None = None) -> Velocity:
    r"""$\nabla\log(\rho \ast \mathcal{N}(0, \varepsilon I))(x) = (E[y|x] - x) / \varepsilon$, $E$ the softmax of
    $-|x-y|^2 / (2\varepsilon)$: the score of the kernel density.

    A token counts in its own density: at the tokens the estimate is nearer to zero than between them. Exact for a `Gaussian` (`Affine`)
    and a `GaussianMixture`. `sums`: how kernel sums are evaluated; `None` chooses.
    """
    mu = measure("mu", mu, Measure, "tokens in R^d, a Gaussian or a mixture")
    check_request(sums)
    bandwidth = array(positive("eps", eps), mu.dtype)
    if not mu.space.flat:
        raise TypeError(f"mu: a kernel score is for tokens in R^d, got {type(mu).__name__} on the {type(mu.space).__name__}")
    return smoothed(mu, bandwidth, sums).score_map()


def richardson_score(mu: Measure, eps: Scalar, **options: Any) -> Velocity:
    r"""$2 s_{\varepsilon/2}(x) - s_\varepsilon(x)$, $s$ the bridge score: their biases $\varepsilon b + O(\varepsilon^3)$ cancel to
    $O(\varepsilon^3)$. Options are those of `self_bridge`; `Affine` for a `Gaussian`."""
    size = positive("eps", eps)
    fine, coarse = (bridge_score(mu, each, **options) for each in (size / 2, size))
    return fine.scaled(2.0) + coarse.scaled(-1.0)
