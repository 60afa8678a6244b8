r"""Mixtures of Gaussians: densities and scores in closed form, attention over them too, and a closure that moves them.

A velocity that is not affine does not keep a mixture one. The closure moves each component by the moments that its own Gaussian gives,

$$m' = E\,v, \qquad S' = E[v\,(x - m)^\top] + E[v\,(x - m)^\top]^\top,$$

by the cubature of degree three, $2d$ nodes $m \pm \sqrt{d}\,R_j$ of equal weight with the columns $R_j$ of the symmetric root of $S$
(Arasaratnam and Haykin 2009, doi:10.1109/TAC.2009.2019800). It is exact for affine velocities, and never forms a grid, so that $d$ may be
in the hundreds.
"""

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from attnflow import _check as check
from attnflow.measures.base import FlowingMeasure, Noise, moved, values_of
from attnflow.measures.closed_forms import duration
from attnflow.measures.gaussians.gaussian import hermite, log_and_pull, queries
from attnflow.measures.gaussians.merging import merged
from attnflow.measures.gaussians.tilted import TiltedGaussians
from attnflow.measures.line import Normals
from attnflow.measures.particles import Particles
from attnflow.measures.quadrature import ruled_or_sampled
from attnflow.measures.velocity import Affine, Velocity
from attnflow.numerics.arrays import array, floats, known, on_host, one_program, shares
from attnflow.numerics.linalg import covariance, one_by_one, psd_sqrt
from attnflow.numerics.special import safe_root
from attnflow.spaces import Euclidean
from attnflow.sums import Logit, Mask, Request

State = tuple[Float[Array, "k d"], Float[Array, "k d d"]]
# Where the velocity is compared with its affine fit, on the way from the mean to the nodes.
_ALONG = (-1.0, -0.5, 0.5, 1.0)


class GaussianMixture(FlowingMeasure):
    r"""$\sum_k w_k\, \mathcal{N}(m_k, S_k)$ with positive definite covariances, which a flow may make singular.

    **Arguments:** `weights` `[k]` (non-negative, divided by their sum), `means` `[k, d]`, `covs` `[k, d, d]`.

    Softmax and unnormalized attention over a mixture, with dot products or squared distances, are exact. The flow is a closure: see
    `rate`. `path.stats["closure"]["residual"]` says how far the velocity was from affine on the components.
    """

    smooth = True
    by_atoms = False
    exact = False

    weights: Float[Array, " k"]
    means: Float[Array, "k d"]
    covs: Float[Array, "k d d"]

    def __init__(self, weights: Any, means: Any, covs: Any):
        weights, means, covs = (
            shares("weights", weights),
            floats("means", means, "k d"),
            floats("covs", covs, "k d d"),
        )
        k, d = means.shape
        if weights.shape != (k,) or covs.shape != (k, d, d):
            raise ValueError(
                "weights [k], means [k, d] and covs [k, d, d] must agree, "
                f"got {list(weights.shape)}, {list(means.shape)} and {list(covs.shape)}"
            )
        covs = _stacked([covariance(f"covs[{i}]", cov) for i, cov in enumerate(np.asarray(covs) if known(covs) else covs)])
        if known(covs):
            lowest = np.linalg.eigvalsh(np.asarray(covs))[:, 0]
            if lowest.min() <= 0:
                raise ValueError(f"covs must be positive definite, got smallest eigenvalue {lowest.min():.6g} in [{lowest.argmin()}]")
        dtype = jnp.result_type(weights, means, covs)
        self.weights = array(weights, dtype)
        self.means, self.covs = array(means, dtype), array(covs, dtype)

    @property
    def dim(self) -> int:
        return self.means.shape[1]

    @property
    def space(self) -> Euclidean:
        return Euclidean()

    @property
    def mean(self) -> Float[Array, " d"]:
        return self.weights @ self.means

    @property
    @one_program
    def cov(self) -> Float[Array, "d d"]:
        spread = self.means - self.mean[None]
        return jnp.tensordot(self.weights, self.covs, axes=1) + spread.T @ (spread * self.weights[:, None])

    def integrate(self, f: Callable[[Float[Array, "n d"]], Float[Array, "n ..."]]) -> Float[Array, "..."]:
        r"""$E f$, by Gauss-Hermite quadrature on each component: for smooth $f$ and $d \le 6$."""
        nodes, weights = hermite(self.dim)
        points = _placed(self.means, self.covs, jnp.asarray(nodes, self.dtype))
        values = values_of(f, points.reshape(-1, self.dim))
        masses = self.weights[:, None] * jnp.asarray(weights, self.dtype)[None]
        return jnp.tensordot(masses.reshape(-1), values, axes=1)

    def log_density(self, x: Any) -> Float[Array, " m"]:
        r"""$\log \rho(x)$, for covariances of full rank, like `density` and `score`."""
        terms, _ = self._terms(x)
        return jax.nn.logsumexp(terms, axis=0)

    def density(self, x: Any) -> Float[Array, " m"]:
        r"""$\rho(x)$."""
        return jnp.exp(self.log_density(x))

    def score(self, x: Any) -> Float[Array, "m d"]:
        r"""$\nabla\log\rho(x) = -\sum_k p(k|x)\, S_k^{-1} (x - m_k)$."""
        terms, pulls = self._terms(x)
        return -jnp.einsum("km,kmd->md", jax.nn.softmax(terms, axis=0), pulls)

    def sample(self, n: int, *, key: PRNGKeyArray) -> Particles:
        """$n$ independent tokens."""
        check.count("n", n)
        check.key("key", key)
        pick, move = jax.random.split(key)
        component = jax.random.choice(pick, len(self.weights), (n,), p=self.weights)
        normal = jax.random.normal(move, (n, self.dim), self.means.dtype)
        points = self.means[component] + jnp.einsum("nij,nj->ni", _factors(self.covs)[component], normal)
        return Particles(points)

    @property
    def components(self) -> tuple[Float[Array, " k"], Float[Array, "k d"], Float[Array, "k d d"]]:
        return self.weights, self.means, self.covs

    def each(self, change: Callable) -> "GaussianMixture":
        return GaussianMixture(self.weights, *one_by_one(change)(self.means, self.covs))

    def heat(self, t: Any) -> "GaussianMixture":
        r"""The heat flow $\partial_t \rho = \frac12 \Delta\rho$ for a time $t$: every covariance gains $t I$."""
        gained = on_host(lambda covs, t: covs + t * np.eye(self.dim, dtype=self.dtype)[None], self.covs, array(duration(t), self.dtype))
        return self.with_state((self.means, gained))

    def tokens(self, eps: Float[Array, ""], key: PRNGKeyArray | None) -> Particles:
        return ruled_or_sampled(self, eps, key)

    def projected(self, direction: Float[Array, " d"]) -> Normals:
        return Normals(self.weights, self.means @ direction, safe_root(jnp.einsum("kij,i,j->k", self.covs, direction, direction)))

    def merged(self, tolerance: Any) -> "GaussianMixture":
        r"""A mixture of fewer components, at most `tolerance` away in $W_2$, with the same mean and covariance.

        Greedy: the two groups are merged next that cost least, until no two can be (Runnalls 2007, doi:10.1109/TAES.2007.4383588). A group
        becomes the Gaussian $N$ with its mean and covariance, and costs $\sum_i w_i\, W_2(N_i, N)^2$ over its components, by the formula of
        Bures, which needs no inverse; the sum over the groups bounds the squared distance (Delon and Desolneux 2020, arXiv:1907.05254).
        """
        tolerance = floats("tolerance", tolerance, "")
        if not known(self, tolerance):
            raise ValueError("merged decides on the host, got traced values; call it outside jit and grad")
        if float(tolerance) < 0:
            raise ValueError(f"tolerance must not be negative, got {float(tolerance)}")
        weights, means, covs = (np.asarray(part, np.float64) for part in self.components)
        parts = merged(weights, means, covs, float(tolerance))
        return self._with(*(array(part, self.dtype) for part in parts))

    # As a state of the solver.

    @property
    def state(self) -> State:
        return self.means, self.covs

    def with_state(self, state: State) -> "GaussianMixture":
        return self._with(self.weights, *state)

    def rate(self, velocity: Velocity | Callable) -> State:
        r"""$m_k' = E_k v$, $S_k' = E_k[v\,(x - m_k)^\top] + E_k[v\,(x - m_k)^\top]^\top$, $E_k$ the cubature of component $k$.
        Weights stay."""
        nodes = self._nodes()
        return _rates(self.means, nodes, self._along(velocity, nodes))

    def push(self, map: Velocity | Callable) -> "GaussianMixture":
        """Every component becomes the Gaussian with the moments of its nodes under the map: exact for affine maps."""
        return self.with_state(_moments(self._along(map, self._nodes())))

    def report(self, velocity: Velocity | Callable) -> dict[str, PyTree]:
        r"""`residual`: the size of the velocity less its affine fit at the nodes, relative to that of the velocity, both in the mean square
        over the nodes, the means, and the points halfway between."""
        lines = _placed(self.means, self.covs, jnp.asarray(_lines(self.dim), self.dtype))
        return {"closure": {"residual": _residual(self.weights, self.covs, self._along(velocity, lines))}}

    def tilt(self, logit: Logit, inner: Affine | None = None, mask: Mask | None = None, sums: Request | None = None) -> TiltedGaussians:
        _no_mask(mask)
        return TiltedGaussians(logit.form, self.weights, self.means, self.covs, inner)

    def attend(self, normalize: Any, logit: Logit, inner: Affine | None, mask: Mask | None, sums: Request | None) -> Velocity:
        _no_mask(mask)
        raise ValueError(
            f"{type(normalize).__name__} attention over a GaussianMixture has no closed form here; "
            "use Softmax or Unnormalized, or draw tokens with mu.sample(n, key=key)"
        )

    def retract(self, state: State) -> State:
        means, covs = state
        return means, (covs + jnp.swapaxes(covs, 1, 2)) / 2

    def motion(self, velocity: Callable, noise: Noise | None = None) -> diffrax.AbstractTerm:
        r"""With noise every covariance gains $\sigma^2 I$ in unit time."""
        if noise is None:
            return super().motion(velocity)
        gain = noise.sigma.astype(self.dtype) ** 2 * jnp.eye(self.dim, dtype=self.dtype)

        def rate(t: Any, state: Any, args: Any) -> Any:
            means, covs = self._rate(velocity, t, state)
            return means, covs + gain[None]

        return diffrax.ODETerm(rate)  # pyright: ignore[reportArgumentType]

    @staticmethod
    def error_norm(scaled_error: State) -> Float[Array, ""]:
        means, covs = scaled_error
        worst = jnp.sqrt(jnp.maximum(jnp.max(means**2), jnp.max(covs**2)))
        return jnp.where(jnp.isnan(worst), jnp.inf, worst)

    @classmethod
    def from_frame(cls, about: dict[str, Any], variables: dict[str, Any]) -> "GaussianMixture":
        means, covs = variables["means"][0], variables["covs"][0]
        # A frame on the way may have singular covariances, which the constructor refuses.
        first = cls(variables["weights"], means, np.broadcast_to(np.eye(means.shape[1], dtype=covs.dtype), covs.shape))
        return first.with_state((array(means), array(covs)))

    def frame(self, states: Any) -> dict[str, tuple[tuple[str, ...], Any]]:
        means, covs = states
        return {
            "means": (("time", "component", "coordinate"), means),
            "covs": (("time", "component", "coordinate", "coordinate_"), covs),
            "weights": (("component",), self.weights),
        }

    def _with(self, weights: Array, means: Array, covs: Array) -> "GaussianMixture":
        return eqx.tree_at(lambda mu: (mu.weights, mu.means, mu.covs), self, (weights, means, covs))

    def _nodes(self) -> Float[Array, "k m d"]:
        return _placed(self.means, self.covs, jnp.asarray(_cross(self.dim), self.dtype))

    def _along(self, map: Velocity | Callable, points: Float[Array, "k m d"]) -> Float[Array, "k m d"]:
        """A velocity or a map at the points of all components, in one call."""
        return moved(map, points.reshape(-1, self.dim)).reshape(points.shape)

    def _terms(self, x: Any) -> tuple[Float[Array, "k m"], Float[Array, "k m d"]]:
        if known(self.covs) and not (lowest := np.linalg.eigvalsh(np.asarray(self.covs))[:, 0]).min() > 0:
            raise ValueError(
                f"a GaussianMixture has a density if its covariances have full rank, got smallest eigenvalue {lowest.min():.6g} "
                f"in [{lowest.argmin()}]; smooth it with mu.heat(t)"
            )
        return _terms(self, queries(x, self))


@one_program
def _terms(mu: GaussianMixture, x: Float[Array, "m d"]) -> tuple[Float[Array, "k m"], Float[Array, "k m d"]]:
    """`log w_k N(x; m_k, S_k)` and `S_k^-1 (x - m_k)`."""
    logs, pulls = one_by_one(lambda mean, cov: log_and_pull(mean, cov, x))(mu.means, mu.covs)
    return logs + jnp.log(mu.weights)[:, None], pulls


def _stacked(matrices: list[Array]) -> Array:
    """Matrices on a new first axis; on the host, if they are there."""
    return array(np.stack([np.asarray(m) for m in matrices])) if known(matrices) else jnp.stack(matrices)


def _cross(dim: int) -> Float[np.ndarray, "m d"]:
    """The nodes of the cubature for a standard normal law, all of one side first."""
    return np.sqrt(dim) * np.concatenate([np.eye(dim), -np.eye(dim)])


def _lines(dim: int) -> Float[np.ndarray, "m d"]:
    """The mean, then the points along the way to the nodes and beyond the mean, row `j` of each block on the axis `j`."""
    return np.concatenate([np.zeros((1, dim)), *(c * np.sqrt(dim) * np.eye(dim) for c in _ALONG)])


@one_program
def _placed(means: Float[Array, "k d"], covs: Float[Array, "k d d"], z: Float[Array, "m d"]) -> Float[Array, "k m d"]:
    """Points of the standard normal law as those of every component."""
    return means[:, None] + jnp.einsum("mi,kij->kmj", z, one_by_one(psd_sqrt)(covs))


@one_program
def _rates(means: Float[Array, "k d"], nodes: Float[Array, "k m d"], found: Float[Array, "k m d"]) -> State:
    flux = jnp.einsum("kmi,kmj->kij", found, nodes - means[:, None]) / nodes.shape[1]
    return jnp.mean(found, axis=1), flux + jnp.swapaxes(flux, 1, 2)


@one_program
def _moments(points: Float[Array, "k m d"]) -> State:
    means = jnp.mean(points, axis=1)
    apart = points - means[:, None]
    return means, jnp.einsum("kmi,kmj->kij", apart, apart) / points.shape[1]


@one_program
def _residual(weights: Float[Array, " k"], covs: Float[Array, "k d d"], found: Float[Array, "k m d"]) -> Float[Array, ""]:
    """With the values `b + o_j` and `b - o_j` at the two nodes of an axis, the affine fit at `m + c sqrt(d) R_j` is `mean b + c (P o)_j`,
    P the projection to the range of the covariance."""
    dim = covs.shape[-1]
    values, vectors = one_by_one(jnp.linalg.eigh)(jax.lax.stop_gradient(covs))
    seen = values > dim * jnp.finfo(values.dtype).eps * values[:, -1:]
    spans = jnp.einsum("kia,ka,kja->kij", vectors, seen.astype(values.dtype), vectors)
    blocks = found[:, 1:].reshape(len(found), len(_ALONG), dim, dim)
    below, above = blocks[:, 0], blocks[:, -1]
    middle, slope = jnp.mean((above + below) / 2, axis=1), jnp.einsum("kij,kje->kie", spans, (above - below) / 2)
    along = jnp.asarray(_ALONG, found.dtype)[None, :, None, None]
    fit = (middle[:, None, None] + along * slope[:, None]).reshape(len(found), -1, dim)
    off = found - jnp.concatenate([middle[:, None], fit], axis=1)
    missed, size = (jnp.sum(weights * jnp.mean(jnp.sum(part**2, axis=2), axis=1)) for part in (off, found))
    return jnp.sqrt(missed / jnp.where(size > 0, size, 1))


def _factors(covs: Float[Array, "k d d"]) -> Float[Array, "k d d"]:
    """A factor of every covariance: that of Cholesky, or where one is known to be singular the symmetric root."""
    if known(covs):
        values = np.linalg.eigvalsh(np.asarray(covs))
        if (values[:, 0] <= len(values[0]) * np.finfo(values.dtype).eps * values[:, -1]).any():
            return one_by_one(psd_sqrt)(covs)
    return one_by_one(jnp.linalg.cholesky)(covs)


def _no_mask(mask: Mask | None) -> None:
    if mask is not None:
        raise ValueError("a mask needs tokens in order, got a GaussianMixture; draw tokens with mu.sample(n, key=key)")
