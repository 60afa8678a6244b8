"""A Gaussian, moved by affine velocities."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import ArrayLike, Key, PyTree, RowFunction
from attnflow.measures.base import Measure
from attnflow.measures.flowing import Frame, NormalizationLike
from attnflow.measures.gaussians.base import Gaussians
from attnflow.measures.gaussians.tilted import TiltedGaussians
from attnflow.measures.particles import Particles
from attnflow.measures.velocity import Affine, Velocity, affine_only
from attnflow.numerics.arrays import array, floats, on_host, one_program
from attnflow.numerics.linalg import covariance, psd_sqrt
from attnflow.sums import Logit, Mask, Quadratic, Request


class Gaussian(Gaussians):
    r"""$\mathcal{N}(m, S)$ on $\mathbb{R}^d$; $S$ may be singular.

    **Arguments:** `mean` `[d]` and `cov` `[d, d]`, symmetric positive semidefinite.
    """

    mean: Float[Array, " d"]
    cov: Float[Array, "d d"]

    def __init__(self, mean: ArrayLike, cov: ArrayLike):
        mean, cov = floats("mean", mean, "d"), covariance("cov", cov)
        if len(mean) != len(cov):
            raise ValueError(f"mean and cov must agree in dimension, got {list(mean.shape)} and {list(cov.shape)}")
        dtype = jnp.result_type(mean, cov)
        self.mean, self.cov = array(mean, dtype), array(cov, dtype)

    @classmethod
    def matching(cls, mu: Measure) -> "Gaussian":
        """The Gaussian with the mean and covariance of another measure."""
        mu = check.measure("mu", mu, Measure, "a measure, which has a mean and a covariance")
        return cls(mu.mean, mu.cov)

    @property
    def components(self) -> tuple[Float[Array, " 1"], Float[Array, "1 d"], Float[Array, "1 d d"]]:
        return array(np.ones(1, self.dtype)), *on_host(lambda mean, cov: (mean[None], cov[None]), self.mean, self.cov)

    def sample(self, n: int, *, key: Key) -> Particles:
        """$n$ independent tokens."""
        check.count("n", n)
        check.key("key", key)
        return Particles(self.mean[None] + jax.random.normal(key, (n, self.dim), self.dtype) @ psd_sqrt(self.cov))

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

    def each(self, change: Callable[[Array, Array], tuple[Array, Array]]) -> "Gaussian":
        return Gaussian(*change(self.mean, self.cov))

    @property
    def state(self) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        return self.mean, self.cov

    def with_state(self, state: tuple[Float[Array, " d"], Float[Array, "d d"]]) -> "Gaussian":
        return eqx.tree_at(lambda mu: (mu.mean, mu.cov), self, state)

    def rate(self, velocity: Velocity | RowFunction) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        r"""$m' = M m + b$, $S' = M S + S M^\top$."""
        affine = affine_only(velocity, "Gaussian")
        flux = affine.matrix @ self.cov
        return affine.matrix @ self.mean + affine.offset, flux + flux.T

    def push(self, map: Velocity | RowFunction) -> "Gaussian":
        r"""$\mathcal{N}(M m + b, M S M^\top)$."""
        affine = affine_only(map, "Gaussian")
        return self.with_state((affine.matrix @ self.mean + affine.offset, affine.matrix @ self.cov @ affine.matrix.T))

    def tilt(self, logit: Logit, inner: Affine | None = None, mask: Mask | None = None, sums: Request | None = None) -> "TiltedGaussian":
        self._no_mask(mask)
        return TiltedGaussian(logit.form, *self.components, inner)

    def attend(self, normalize: NormalizationLike, logit: Logit, inner: Affine | None, mask: Mask | None, sums: Request | None) -> Affine:
        self._no_mask(mask)
        average = normalize.gaussian(logit.form, self)
        return average if inner is None else inner.compose(average)

    @classmethod
    def from_frame(cls, about: dict[str, Any], variables: dict[str, Any]) -> "Gaussian":
        return cls(variables["mean"][0], variables["cov"][0])

    def frame(self, states: PyTree) -> Frame:
        return {"mean": (("time", "coordinate"), states[0]), "cov": (("time", "coordinate", "coordinate_"), states[1])}


class TiltedGaussian(TiltedGaussians):
    """The tilts of one Gaussian, whose means are an affine map of the query (arXiv:2501.18322)."""

    @property
    def mean(self) -> Affine:
        average = _tilted_mean(self.logit, self.means[0], self.covs[0])
        return average if self.inner is None else self.inner.compose(average)

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


@one_program
def _affine_score(mean: Float[Array, " d"], cov: Float[Array, "d d"]) -> tuple[Array, Array]:
    precision = jnp.linalg.inv(cov)
    return -precision, precision @ mean


@one_program
def _entropy(cov: Float[Array, "d d"]) -> Float[Array, ""]:
    return 0.5 * (len(cov) * np.log(2 * np.pi * np.e) + jnp.linalg.slogdet(cov)[1])
