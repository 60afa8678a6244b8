"""What Gaussians and their mixtures have in common: both are lists of components, and what follows from those is written once."""

import abc
import itertools
import math
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._types import ArrayLike, Key, RowFunction, Scalar
from attnflow.measures.base import nonnegative, values_of
from attnflow.measures.flowing import Drift, FlowingMeasure, Noise, Self
from attnflow.measures.gaussians.tilted import TiltedGaussians
from attnflow.measures.line import NormalMixture
from attnflow.measures.particles import Particles
from attnflow.measures.quadrature import quadrature
from attnflow.measures.velocity import Affine
from attnflow.numerics.arrays import array, known, on_host, one_program, rows
from attnflow.numerics.linalg import one_by_one, psd_sqrt
from attnflow.numerics.special import safe_root
from attnflow.spaces import Euclidean
from attnflow.sums import Logit, Mask, Request

# Gauss-Hermite nodes per axis, by dimension: exact to degree 2k - 1, at most about 17,000 nodes in all.
_NODES = {1: 64, 2: 40, 3: 20, 4: 11, 5: 7, 6: 5}
# How many tokens a sample for a bridge has.
_SAMPLES = 4096

# Means and covariances: `[d]` and `[d, d]` of a Gaussian, `[k, d]` and `[k, d, d]` of a mixture.
State = tuple[Float[Array, "*k d"], Float[Array, "*k d d"]]


class Gaussians(FlowingMeasure):
    """A measure on $R^d$ made of Gaussians, its `components`; its state are their means and covariances."""

    smooth = True
    by_atoms = False

    @property
    def space(self) -> Euclidean:  # pyright: ignore[reportIncompatibleVariableOverride]
        return Euclidean()

    @property
    def dim(self) -> int:
        return self.state[0].shape[-1]

    def integrate(self, f: RowFunction) -> Float[Array, "..."]:
        r"""$\int f \,d\mu$, by a tensor Gauss-Hermite rule on each component: for smooth $f$ and $d \le 6$."""
        weights, means, covs = self.components
        nodes, shares = hermite(self.dim)
        values = values_of(f, placed(means, covs, jnp.asarray(nodes, self.dtype)).reshape(-1, self.dim))
        return jnp.tensordot((weights[:, None] * jnp.asarray(shares, self.dtype)[None]).reshape(-1), values, axes=1)

    def density(self, x: ArrayLike) -> Float[Array, " m"]:
        r"""$\rho(x)$ at every row of `x`, for covariances of full rank, like `log_density` and `score`."""
        return jnp.exp(self.log_density(x))

    def log_density(self, x: ArrayLike) -> Float[Array, " m"]:
        return jax.nn.logsumexp(self._terms(x)[0], axis=0)

    def score(self, x: ArrayLike) -> Float[Array, "m d"]:
        r"""$\nabla\log\rho(x) = -\sum_k p(k|x)\, S_k^{-1} (x - m_k)$ at every row of `x`."""
        logs, pulls = self._terms(x)
        return -jnp.einsum("km,kmd->md", jax.nn.softmax(logs, axis=0), pulls)

    def heat(self, t: Scalar) -> Self:
        r"""The heat flow $\partial_t \rho = \frac12 \Delta\rho$ for a time $t$: every covariance gains $t I$."""
        means, covs = self.state
        eye, time = np.broadcast_to(np.eye(self.dim, dtype=self.dtype), covs.shape), array(nonnegative("t", t), self.dtype)
        return self.with_state((means, on_host(lambda covs, t: covs + t * eye, covs, time)))

    @abc.abstractmethod
    def sample(self, n: int, *, key: Key) -> Particles:
        """$n$ independent tokens."""

    def tokens(self, eps: Float[Array, ""], *, key: Key | None) -> Particles:
        """On the line by quadrature that is fine enough for a kernel of variance `eps`, else a sample."""
        name = type(self).__name__
        if self.dim > 1:
            if key is None:
                raise ValueError(f"a {name} in R^{self.dim} is sampled for its bridge, which needs key=jax.random.key(seed), got none")
            return self.sample(_SAMPLES, key=key)
        means, variances = (np.asarray(part) for part in self.components[1:])
        if variances.min() <= 0:
            raise ValueError(f"a {name} on the line needs a positive variance to become tokens, got 0; use Particles([[mean]])")
        # The error of the rule is e^{-2 pi^2 t^2} at a spacing of sqrt(eps) / t, and so for the width of a component.
        width = np.ptp(means) + 17 * math.sqrt(variances.max())
        return quadrature(self, math.ceil(1.5 * width / math.sqrt(min(float(eps), variances.min()))) + 1)

    def projected(self, direction: Float[Array, " d"]) -> NormalMixture:
        weights, means, covs = self.components
        return NormalMixture(weights, means @ direction, safe_root(jnp.einsum("kij,i,j->k", covs, direction, direction)))

    def tilt(self, logit: Logit, inner: Affine | None = None, mask: Mask | None = None, sums: Request | None = None) -> TiltedGaussians:
        self._no_mask(mask)
        return TiltedGaussians(logit.form, *self.components, inner)

    def retract(self, state: State) -> State:
        means, covs = state
        return means, (covs + jnp.swapaxes(covs, -1, -2)) / 2

    def motion(self, velocity: Drift, noise: Noise | None = None) -> diffrax.AbstractTerm[Any, Any]:
        r"""With noise every covariance gains $\sigma^2 I$ in unit time."""
        if noise is None:
            return super().motion(velocity)
        eye = jnp.broadcast_to(jnp.eye(self.dim, dtype=self.dtype), self.state[1].shape)
        gain = noise.sigma.astype(self.dtype) ** 2 * eye

        def rate(t: Scalar, state: State, args: None) -> State:
            means, covs = self._rate(velocity, t, state)
            return means, covs + gain

        return diffrax.ODETerm(rate)  # pyright: ignore[reportArgumentType]

    @staticmethod
    def error_norm(scaled_error: State) -> Float[Array, ""]:
        means, covs = scaled_error
        worst = jnp.sqrt(jnp.maximum(jnp.max(means**2), jnp.max(covs**2)))
        return jnp.where(jnp.isnan(worst), jnp.inf, worst)

    def _terms(self, x: ArrayLike) -> tuple[Float[Array, "k m"], Float[Array, "k m d"]]:
        points = array(rows("x", x, self.dim), self.dtype)
        self._check_rank()
        return _terms(*self.components, points)

    def _check_rank(self) -> None:
        covs = self.components[2]
        if not known(covs) or (lowest := np.linalg.eigvalsh(np.asarray(covs))[:, 0]).min() > 0:
            return
        due, where = ("covariance has", "") if len(covs) == 1 else ("covariances have", f" in [{lowest.argmin()}]")
        raise ValueError(
            f"a {type(self).__name__} has a density if its {due} full rank, got smallest eigenvalue {lowest.min():.6g}{where}; "
            "smooth it with mu.heat(t)"
        )

    def _no_mask(self, mask: Mask | None) -> None:
        if mask is not None:
            raise ValueError(f"a mask needs tokens in order, got a {type(self).__name__}; draw tokens with mu.sample(n, key=key)")


@one_program
def _terms(
    weights: Float[Array, " k"], means: Float[Array, "k d"], covs: Float[Array, "k d d"], x: Float[Array, "m d"]
) -> tuple[Float[Array, "k m"], Float[Array, "k m d"]]:
    """`log w_k N(x; m_k, S_k)` and `S_k^-1 (x - m_k)`."""

    def component(mean: Float[Array, " d"], cov: Float[Array, "d d"]) -> tuple[Array, Array]:
        factor = jnp.linalg.cholesky(cov)
        pull = jax.scipy.linalg.cho_solve((factor, True), (x - mean[None]).T).T
        log_norm = jnp.log(jnp.diagonal(factor)).sum() + 0.5 * len(mean) * np.log(2 * np.pi)
        return -0.5 * jnp.sum((x - mean[None]) * pull, axis=1) - log_norm, pull

    logs, pulls = one_by_one(component)(means, covs)
    return logs + jnp.log(weights)[:, None], pulls


@one_program
def placed(means: Float[Array, "k d"], covs: Float[Array, "k d d"], z: Float[Array, "m d"]) -> Float[Array, "k m d"]:
    """Points for the standard normal distribution as points for every component."""
    return means[:, None] + jnp.einsum("mi,kij->kmj", z, one_by_one(psd_sqrt)(covs))


def hermite(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the tensor Gauss-Hermite rule for the standard normal distribution."""
    if dim not in _NODES:
        raise ValueError(
            f"integrate on a Gaussian uses quadrature up to dimension {max(_NODES)}, got {dim}; "
            "draw tokens with .sample(n, key=key) and integrate on those"
        )
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES[dim])
    grid = np.array(list(itertools.product(nodes, repeat=dim)))
    mass = np.prod(np.array(list(itertools.product(weights / weights.sum(), repeat=dim))), axis=1)
    return grid, mass
