"""A Gaussian, moved by affine velocities."""

import itertools
from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from attnflow import _check as check
from attnflow.measures.base import FlowingMeasure, Measure, Noise, values_of
from attnflow.measures.closed_forms import duration
from attnflow.measures.gaussians.tilted import TiltedGaussians
from attnflow.measures.line import Normals
from attnflow.measures.particles import Particles
from attnflow.measures.quadrature import ruled_or_sampled
from attnflow.measures.velocity import Affine, Velocity, affine_only
from attnflow.numerics.arrays import array, floats, known, on_host, one_program, rows
from attnflow.numerics.linalg import covariance, psd_sqrt
from attnflow.numerics.special import safe_root
from attnflow.spaces import Euclidean
from attnflow.sums import Logit, Mask, Quadratic, Request

# Gauss-Hermite nodes an axis, by dimension: exact to degree 2k - 1, at most about 17,000 nodes in all.
_NODES = {1: 64, 2: 40, 3: 20, 4: 11, 5: 7, 6: 5}


class Gaussian(FlowingMeasure):
    r"""$\mathcal{N}(m, S)$ on $\mathbb{R}^d$; $S$ may be singular.

    **Arguments:** `mean` `[d]` and `cov` `[d, d]`, symmetric positive semidefinite.
    """

    smooth = True

    mean: Float[Array, " d"]
    cov: Float[Array, "d d"]
    space: Euclidean

    by_atoms = False

    def __init__(self, mean: Any, cov: Any):
        mean, cov = floats("mean", mean, "d"), covariance("cov", cov)
        if len(mean) != len(cov):
            raise ValueError(f"mean and cov must agree in dimension, got {list(mean.shape)} and {list(cov.shape)}")
        dtype = jnp.result_type(mean, cov)
        self.mean, self.cov, self.space = array(mean, dtype), array(cov, dtype), Euclidean()

    @property
    def dim(self) -> int:
        return self.mean.shape[0]

    @classmethod
    def matching(cls, mu: Measure) -> "Gaussian":
        """The Gaussian with the mean and covariance of another measure."""
        mu = check.measure("mu", mu, Measure, "a measure, which has a mean and a covariance")
        return cls(mu.mean, mu.cov)

    def integrate(self, f: Callable[[Float[Array, "n d"]], Float[Array, "n ..."]]) -> Float[Array, "..."]:
        r"""$E f$, by a tensor Gauss-Hermite rule: for smooth $f$ and $d \le 6$."""
        nodes, weights = hermite(self.dim)
        points = self.mean[None] + jnp.asarray(nodes, self.dtype) @ psd_sqrt(self.cov)
        return jnp.tensordot(jnp.asarray(weights, self.dtype), values_of(f, points), axes=1)

    def sample(self, n: int, *, key: PRNGKeyArray) -> Particles:
        """$n$ independent tokens."""
        check.count("n", n)
        check.key("key", key)
        return Particles(self.mean[None] + jax.random.normal(key, (n, self.dim), self.dtype) @ psd_sqrt(self.cov))

    def log_density(self, x: Any) -> Float[Array, " m"]:
        r"""$\log \rho(x)$ at every row of `x`, for $S$ of full rank, like `density` and `score`."""
        return self._terms(x)[0]

    def density(self, x: Any) -> Float[Array, " m"]:
        r"""$\rho(x)$ at every row of `x`."""
        return jnp.exp(self.log_density(x))

    def score(self, x: Any) -> Float[Array, "m d"]:
        r"""$\nabla\log\rho(x) = -S^{-1} (x - m)$ at every row of `x`."""
        return -self._terms(x)[1]

    def score_map(self) -> Affine:
        r"""$x \mapsto -S^{-1} (x - m)$."""
        self._check_rank()
        return Affine(*_affine_score(self.mean, self.cov))

    def entropy(self) -> Float[Array, ""]:
        r"""$\frac12 \log\det(2\pi e S)$."""
        return _entropy(self.cov)

    def fisher_information(self) -> Float[Array, ""]:
        r"""$\operatorname{tr} S^{-1}$."""
        return jnp.trace(jnp.linalg.inv(self.cov))

    @property
    def components(self) -> tuple[Float[Array, " 1"], Float[Array, "1 d"], Float[Array, "1 d d"]]:
        return array(np.ones(1, self.dtype)), *on_host(lambda mean, cov: (mean[None], cov[None]), self.mean, self.cov)

    def each(self, change: Callable) -> "Gaussian":
        return Gaussian(*change(self.mean, self.cov))

    def heat(self, t: Any) -> "Gaussian":
        r"""$\mathcal{N}(m, S + t I)$: the heat flow $\partial_t \rho = \frac12 \Delta\rho$ for a time $t$."""
        return Gaussian(
            self.mean, on_host(lambda cov, t: cov + t * np.eye(self.dim, dtype=self.dtype), self.cov, array(duration(t), self.dtype))
        )

    def tokens(self, eps: Float[Array, ""], key: PRNGKeyArray | None) -> Particles:
        return ruled_or_sampled(self, eps, key)

    def projected(self, direction: Float[Array, " d"]) -> Normals:
        return Normals(jnp.ones(1, self.dtype), (self.mean @ direction)[None], safe_root(direction @ self.cov @ direction)[None])

    def _terms(self, x: Any) -> tuple[Float[Array, " m"], Float[Array, "m d"]]:
        self._check_rank()
        return log_and_pull(self.mean, self.cov, queries(x, self))

    def _check_rank(self) -> None:
        if known(self.cov) and not (least := np.linalg.eigvalsh(np.asarray(self.cov))[0]) > 0:
            raise ValueError(f"a Gaussian has a density if its covariance has full rank, got smallest eigenvalue {least:.6g}")

    @property
    def state(self) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        return self.mean, self.cov

    def with_state(self, state: tuple[Float[Array, " d"], Float[Array, "d d"]]) -> "Gaussian":
        return eqx.tree_at(lambda mu: (mu.mean, mu.cov), self, state)

    def rate(self, velocity: Velocity | Callable) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        r"""$m' = M m + b$, $S' = M S + S M^\top$."""
        affine = affine_only(velocity, "Gaussian")
        flux = affine.matrix @ self.cov
        return affine.matrix @ self.mean + affine.offset, flux + flux.T

    def push(self, map: Velocity | Callable) -> "Gaussian":
        r"""$\mathcal{N}(M m + b, M S M^\top)$."""
        affine = affine_only(map, "Gaussian")
        return self.with_state((affine.matrix @ self.mean + affine.offset, affine.matrix @ self.cov @ affine.matrix.T))

    def tilt(self, logit: Logit, inner: Affine | None = None, mask: Mask | None = None, sums: Request | None = None) -> "TiltedGaussian":
        _no_mask(mask)
        return TiltedGaussian(logit.form, jnp.ones(1, self.dtype), self.mean[None], self.cov[None], inner)

    def attend(self, normalize: Any, logit: Logit, inner: Affine | None, mask: Mask | None, sums: Request | None) -> Affine:
        _no_mask(mask)
        average = normalize.gaussian(logit.form, self)
        return average if inner is None else inner.of(average)

    def retract(self, state: tuple[Float[Array, " d"], Float[Array, "d d"]]) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        mean, cov = state
        return mean, (cov + cov.T) / 2

    def motion(self, velocity: Callable, noise: Noise | None = None) -> diffrax.AbstractTerm:
        r"""With noise the covariance gains $\sigma^2 I$ in unit time."""
        if noise is None:
            return super().motion(velocity)
        gain = noise.sigma.astype(self.dtype) ** 2 * jnp.eye(self.dim, dtype=self.dtype)

        def rate(t: Any, state: Any, args: Any) -> Any:
            mean, cov = self._rate(velocity, t, state)
            return mean, cov + gain

        return diffrax.ODETerm(rate)  # pyright: ignore[reportArgumentType]

    @staticmethod
    def error_norm(scaled_error: tuple[Float[Array, " d"], Float[Array, "d d"]]) -> Float[Array, ""]:
        mean, cov = scaled_error
        worst = jnp.sqrt(jnp.maximum(jnp.max(mean**2), jnp.max(cov**2)))
        return jnp.where(jnp.isnan(worst), jnp.inf, worst)

    @classmethod
    def from_frame(cls, about: dict[str, Any], variables: dict[str, Any]) -> "Gaussian":
        return cls(variables["mean"][0], variables["cov"][0])

    def frame(self, states: Any) -> dict[str, tuple[tuple[str, ...], Any]]:
        return {"mean": (("time", "coordinate"), states[0]), "cov": (("time", "coordinate", "coordinate_"), states[1])}


class TiltedGaussian(TiltedGaussians):
    """The tilts of one Gaussian, whose means are an affine map of the query (arXiv:2501.18322)."""

    @property
    def mean(self) -> Affine:
        average = _tilted_mean(self.logit, self.means[0], self.covs[0])
        return average if self.inner is None else self.inner.of(average)

    def integral(self, log_scale: Float[Array, ""]) -> Velocity:
        raise ValueError(
            "Unnormalized attention does not keep a Gaussian Gaussian; "
            "draw tokens with mu.sample(n, key=key), or use Softmax, Sinkhorn or Linear"
        )


@one_program
def _tilted_mean(logit: Quadratic, m: Float[Array, " d"], S: Float[Array, "d d"]) -> Affine:
    """$(I + S P)^{-1} (m + S (A x + p))$."""
    matrix, offset = S @ logit.A, m if logit.p is None else m + S @ logit.p
    if logit.P is None:
        return Affine(matrix, offset)
    both = jnp.linalg.solve(jnp.eye(len(m), dtype=m.dtype) + S @ logit.P, jnp.concatenate([matrix, offset[:, None]], axis=1))
    return Affine(both[:, :-1], both[:, -1])


def _no_mask(mask: Mask | None) -> None:
    if mask is not None:
        raise ValueError("a mask needs tokens in order, got a Gaussian; draw tokens with mu.sample(n, key=key)")


def queries(x: Any, mu: Any) -> Float[Array, "m d"]:
    """Rows where a density is asked for, in the precision of the measure."""
    return array(rows("x", x, mu.dim), mu.dtype)


@one_program
def log_and_pull(mean: Float[Array, " d"], cov: Float[Array, "d d"], x: Float[Array, "m d"]) -> tuple[Array, Array]:
    """`log N(x; m, S)` and `S^-1 (x - m)`."""
    factor = jnp.linalg.cholesky(cov)
    pull = jax.scipy.linalg.cho_solve((factor, True), (x - mean[None]).T).T
    log_norm = jnp.log(jnp.diagonal(factor)).sum() + 0.5 * len(mean) * np.log(2 * np.pi)
    return -0.5 * jnp.sum((x - mean[None]) * pull, axis=1) - log_norm, pull


@one_program
def _affine_score(mean: Float[Array, " d"], cov: Float[Array, "d d"]) -> tuple[Array, Array]:
    precision = jnp.linalg.inv(cov)
    return -precision, precision @ mean


@one_program
def _entropy(cov: Float[Array, "d d"]) -> Float[Array, ""]:
    return 0.5 * (len(cov) * np.log(2 * np.pi * np.e) + jnp.linalg.slogdet(cov)[1])


def hermite(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the tensor Gauss-Hermite rule for a standard normal law."""
    if dim not in _NODES:
        raise ValueError(
            f"integrate on a Gaussian uses quadrature up to dimension {max(_NODES)}, got {dim}; "
            "draw tokens with .sample(n, key=key) and integrate on those"
        )
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES[dim])
    grid = np.array(list(itertools.product(nodes, repeat=dim)))
    mass = np.prod(np.array(list(itertools.product(weights / weights.sum(), repeat=dim))), axis=1)
    return grid, mass
