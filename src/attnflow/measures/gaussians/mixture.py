"""Mixtures of Gaussians: densities and scores in closed form, attention over them too, and a closure that moves them."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import ArrayLike, Key, PyTree, RowFunction, Scalar
from attnflow.measures.base import nonnegative
from attnflow.measures.flowing import Frame, NormalizationLike
from attnflow.measures.gaussians.base import Gaussians, State, placed
from attnflow.measures.gaussians.closure import cross, lines, moments, rates, residual
from attnflow.measures.gaussians.merging import merged
from attnflow.measures.particles import Particles
from attnflow.measures.quadrature import integral
from attnflow.measures.velocity import Affine, Velocity, moved
from attnflow.numerics.arrays import array, floats, known, on_host, one_program, shares
from attnflow.numerics.linalg import covariance, one_by_one, psd_sqrt
from attnflow.sums import Logit, Mask, Request


class GaussianMixture(Gaussians):
    r"""$\sum_k w_k\, \mathcal{N}(m_k, S_k)$ with positive definite covariances, which a flow may make singular.

    **Arguments:** `weights` `[k]` (non-negative, divided by their sum), `means` `[k, d]`, `covs` `[k, d, d]`.

    Softmax and unnormalized attention over a mixture, with dot products or squared distances, are exact. The flow is a closure: see
    `rate`. `path.stats["closure"]["residual"]` says how far the velocity was from affine on the components.
    """

    exact = False

    weights: Float[Array, " k"]
    means: Float[Array, "k d"]
    covs: Float[Array, "k d d"]

    def __init__(self, weights: ArrayLike, means: ArrayLike, covs: ArrayLike):
        weights, means, covs = shares("weights", weights), floats("means", means, "k d"), floats("covs", covs, "k d d")
        k, d = means.shape
        if weights.shape != (k,) or covs.shape != (k, d, d):
            raise ValueError(
                "weights [k], means [k, d] and covs [k, d, d] must agree, "
                f"got {list(weights.shape)}, {list(means.shape)} and {list(covs.shape)}"
            )
        if known(covs):
            for i, cov in enumerate(np.asarray(covs)):
                covariance(f"covs[{i}]", cov)
            lowest = np.linalg.eigvalsh(np.asarray(covs))[:, 0]
            if lowest.min() <= 0:
                raise ValueError(f"covs must be positive definite, got smallest eigenvalue {lowest.min():.6g} in [{lowest.argmin()}]")
        covs = on_host(lambda covs: (covs + covs.swapaxes(1, 2)) / 2, covs)
        dtype = jnp.result_type(weights, means, covs)
        self.weights, self.means, self.covs = array(weights, dtype), array(means, dtype), array(covs, dtype)

    @property
    def components(self) -> tuple[Float[Array, " k"], Float[Array, "k d"], Float[Array, "k d d"]]:
        return self.weights, self.means, self.covs

    @property
    def mean(self) -> Float[Array, " d"]:
        return self.weights @ self.means

    @property
    @one_program
    def cov(self) -> Float[Array, "d d"]:
        spread = self.means - self.mean[None]
        return jnp.tensordot(self.weights, self.covs, axes=1) + spread.T @ (spread * self.weights[:, None])

    def entropy(self) -> Float[Array, ""]:
        r"""$-\int \log\rho \,d\mu$, by the trapezoidal rule of `quadrature`: for $d \le 3$ and values that are known."""
        return -integral(self, self.log_density)

    def fisher_information(self) -> Float[Array, ""]:
        r"""$\int |\nabla\log\rho|^2 \,d\mu$, by the trapezoidal rule of `quadrature`: for $d \le 3$ and values that are known."""
        return integral(self, lambda x: jnp.sum(self.score(x) ** 2, axis=1))

    def sample(self, n: int, *, key: Key) -> Particles:
        """$n$ independent tokens."""
        check.count("n", n)
        check.key("key", key)
        pick, move = jax.random.split(key)
        component = jax.random.choice(pick, len(self.weights), (n,), p=self.weights)
        normal = jax.random.normal(move, (n, self.dim), self.means.dtype)
        points = self.means[component] + jnp.einsum("nij,nj->ni", _factors(self.covs)[component], normal)
        return Particles(points)

    def each(self, change: Callable[[Array, Array], tuple[Array, Array]]) -> "GaussianMixture":
        return GaussianMixture(self.weights, *one_by_one(change)(self.means, self.covs))

    def merged(self, tolerance: Scalar) -> "GaussianMixture":
        r"""A mixture of fewer components, at most `tolerance` away in $W_2$, with the same mean and covariance.

        Greedy: the two groups are merged next that cost least, until no two can be (Runnalls 2007, doi:10.1109/TAES.2007.4383588). A group
        becomes the Gaussian $N$ with its mean and covariance, and costs $\sum_i w_i\, W_2(N_i, N)^2$ over its components, by the formula of
        Bures, which needs no inverse; the sum over the groups bounds the squared distance (Delon and Desolneux 2020, arXiv:1907.05254).
        """
        tolerance = nonnegative("tolerance", tolerance)
        if not known(self, tolerance):
            raise ValueError("merged decides on the host, got traced values; call it outside jit and grad")
        weights, means, covs = (np.asarray(part, np.float64) for part in self.components)
        parts = merged(weights, means, covs, float(tolerance))
        return self._with(*(array(part, self.dtype) for part in parts))

    # As a state of the solver.

    @property
    def state(self) -> State:
        return self.means, self.covs

    def with_state(self, state: State) -> "GaussianMixture":
        return self._with(self.weights, *state)

    def rate(self, velocity: Velocity | RowFunction) -> State:
        r"""$m_k' = E_k v$, $S_k' = E_k[v\,(x - m_k)^\top] + E_k[v\,(x - m_k)^\top]^\top$, $E_k$ the cubature of component $k$.
        Weights stay."""
        nodes = self._nodes()
        return rates(self.means, nodes, self._along(velocity, nodes))

    def push(self, map: Velocity | RowFunction) -> "GaussianMixture":
        """Every component becomes the Gaussian with the moments of its nodes under the map: exact for affine maps."""
        return self.with_state(moments(self._along(map, self._nodes())))

    def report(self, velocity: Velocity | RowFunction) -> dict[str, PyTree]:
        r"""`residual`: the size of the velocity less its affine fit at the nodes, relative to that of the velocity, both in the mean square
        over the nodes, the means, and the points halfway between."""
        points = placed(self.means, self.covs, jnp.asarray(lines(self.dim), self.dtype))
        return {"closure": {"residual": residual(self.weights, self.covs, self._along(velocity, points))}}

    def attend(self, normalize: NormalizationLike, logit: Logit, inner: Affine | None, mask: Mask | None, sums: Request | None) -> Velocity:
        self._no_mask(mask)
        raise ValueError(
            f"{type(normalize).__name__} attention over a GaussianMixture has no closed form here; "
            "use Softmax or Unnormalized, or draw tokens with mu.sample(n, key=key)"
        )

    @classmethod
    def from_frame(cls, about: dict[str, Any], variables: dict[str, Any]) -> "GaussianMixture":
        means, covs = variables["means"][0], variables["covs"][0]
        # A frame on the way may have singular covariances, which the constructor refuses.
        first = cls(variables["weights"], means, np.broadcast_to(np.eye(means.shape[1], dtype=covs.dtype), covs.shape))
        return first.with_state((array(means), array(covs)))

    def frame(self, states: PyTree) -> Frame:
        means, covs = states
        return {
            "means": (("time", "component", "coordinate"), means),
            "covs": (("time", "component", "coordinate", "coordinate_"), covs),
            "weights": (("component",), self.weights),
        }

    def _with(self, weights: Array, means: Array, covs: Array) -> "GaussianMixture":
        return eqx.tree_at(lambda mu: (mu.weights, mu.means, mu.covs), self, (weights, means, covs))

    def _nodes(self) -> Float[Array, "k m d"]:
        return placed(self.means, self.covs, jnp.asarray(cross(self.dim), self.dtype))

    def _along(self, map: Velocity | RowFunction, points: Float[Array, "k m d"]) -> Float[Array, "k m d"]:
        """A velocity or a map at the points of all components, in one call."""
        return moved(map, points.reshape(-1, self.dim)).reshape(points.shape)


def _factors(covs: Float[Array, "k d d"]) -> Float[Array, "k d d"]:
    """A factor of every covariance: that of Cholesky, or where one is known to be singular the symmetric root."""
    if known(covs):
        values = np.linalg.eigvalsh(np.asarray(covs))
        if (values[:, 0] <= len(values[0]) * np.finfo(values.dtype).eps * values[:, -1]).any():
            return one_by_one(psd_sqrt)(covs)
    return one_by_one(jnp.linalg.cholesky)(covs)
