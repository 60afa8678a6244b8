"""Schrodinger bridges: entropic optimal transport with cost `1/2 |x-y|^2` and temperature eps, of a measure to itself or to another.

The plan is `pi(x, y) = e^{(phi(x) + psi(y) - |x-y|^2 / 2) / eps} mu(x) nu(y)` with marginals mu and nu. Its barycentric map is
`B(x) = integral y pi(y|x)`. For nu = mu the potentials are equal, B is doubly stochastic attention with `A = I / eps`, and a score
estimator: `(B(x) - x) / eps = 1/2 grad log rho(x) + O(eps)` (arXiv:2406.10823). Moving by `x <- 2x - B(x)` is a step of the heat flow
`d_t rho = 1/2 Laplace rho` of length eps.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from attnflow.measures import Affine, Gaussian, Particles
from attnflow.measures.velocity import Velocity
from attnflow.numerics.arrays import floats, one_program
from attnflow.sums import Request
from attnflow.transport.sinkhorn.clouds import integral
from attnflow.transport.sinkhorn.gaussian import conditional_shape
from attnflow.transport.sinkhorn.scaled import Scaled


class Bridge(eqx.Module):
    """The bridge from `measure` to `target` at temperature `eps`; without a target, of the measure to itself."""

    measure: eqx.AbstractVar[Any]
    target: eqx.AbstractVar[Any]
    eps: eqx.AbstractVar[Float[Array, ""]]

    @abc.abstractmethod
    def barycentric(self, x: Any) -> Float[Array, "m d"]:
        """$B(x) = E[y|x]$ at every row of `x`, on the support or off it."""

    @abc.abstractmethod
    def potential_at(self, x: Any) -> Float[Array, " m"]:
        r"""$\varphi(x)$ at every row of `x`, on the support or off it. Of the constants that $\varphi$ and $\psi$ may trade, half the cost
        is the integral of each."""

    @abc.abstractmethod
    def pull(self) -> Velocity:
        """`x -> B(x) - x`."""

    def at_tokens(self) -> Velocity:
        """The pull for rows that are the tokens of the measure, in their order: there the engine of the bridge serves."""
        return self.pull()

    def score(self, x: Any) -> Float[Array, "m d"]:
        """`2 (B(x) - x) / eps`, which is `grad log rho(x) + O(eps)`."""
        return self.score_map()(self._rows(x))

    def score_map(self) -> Velocity:
        """The score as a velocity; `Affine` for a Gaussian."""
        if self.target is not None:
            raise ValueError("a score comes from the bridge of a measure to itself, got one between two; use self_bridge")
        return self.pull().scaled(2 / self.eps)

    def cost_over(self, end: Any) -> Float[Array, ""]:
        """The cost; where it is iterated at least the value of its dual at the potential of the bridge of the target to itself."""
        return self.cost

    @property
    @abc.abstractmethod
    def cost(self) -> Float[Array, ""]:
        r"""$\min_\pi \int \frac12 |x-y|^2 \,d\pi + \varepsilon\, \mathrm{KL}(\pi \mid \mu \otimes \nu)$."""

    def _rows(self, x: Any) -> Array:
        x = floats("x", x, "m d").astype(self.measure.dtype)
        if x.shape[1] != self.measure.dim:
            raise ValueError(f"x must have rows in R^{self.measure.dim} like the measure, got {list(x.shape)}")
        return x


class TokenBridge(Bridge):
    """The bridge of a cloud. `error` is the largest violation of a marginal, relative to its mass; `converged` and `iterations` say how
    the iteration ended."""

    measure: Particles
    target: Particles | None
    eps: Float[Array, ""]
    kernel: Scaled

    def barycentric(self, x: Any = None) -> Float[Array, "m d"]:
        """$B(x) = E[y|x]$ at every row of `x`, by default at the tokens themselves: there the engine of the bridge serves, elsewhere one
        is chosen anew."""
        return self.kernel(self.measure.points, sums=self.kernel.engine) if x is None else self.kernel(self._rows(x))

    def pull(self) -> Velocity:
        return Pull(self)

    def at_tokens(self) -> Velocity:
        return Pull(self, self.kernel.engine)

    def plan(self) -> Float[Array, "m n"]:
        r"""The coupling $\pi_{ij}$, dense; its rows and columns sum to the weights."""
        log_kernel = self.kernel.log_kernel(self.measure.points)
        return jnp.exp(log_kernel + self._keys.log_weights[None, :] + self.measure.log_weights[:, None])

    def expect(self, values: Any) -> Float[Array, " m"]:
        """$E[v(y)|x]$ at every token $x$, for the values of a function $v$ at the tokens $y$: the plan as an operator, without its
        matrix."""
        values = floats("values", values, "n")
        if len(values) != len(self._keys.points):
            raise ValueError(f"values must have one entry a token, {len(self._keys.points)}, got {len(values)}")
        return self.kernel.expect(values)

    @property
    def potential(self) -> Float[Array, " n"]:
        r"""$\psi$ at every token of the target; for a bridge of a measure to itself, $\varphi = \psi$."""
        return self._psi + self._trade

    def potential_at(self, x: Any) -> Float[Array, " m"]:
        x = self._rows(x)
        return self._phi(self.kernel.row_potential(x), x - self.kernel.origin[None]) - self._trade

    @property
    def cost(self) -> Float[Array, ""]:
        r"""$\min_\pi \int \frac12 |x-y|^2 \,d\pi + \varepsilon\, \mathrm{KL}(\pi \mid \mu \otimes \nu)$, which is
        $\int \varphi \,d\mu + \int \psi \,d\nu$."""
        return 2 * integral(self.potential, self._keys)

    def dual(self, potential: Float[Array, " n"]) -> Float[Array, ""]:
        r"""$\int \varphi \,d\mu + \int \psi \,d\nu$ for a `potential` $\psi$ at the tokens of the target and the $\varphi$ that makes the
        rows exact: at most the cost, and equal for the potential of the bridge."""
        f = self.kernel.rows_for(self._scaled(potential))
        return integral(self._phi(f, self.kernel.clouds.queries.points), self.measure) + integral(potential, self._keys)

    def cost_over(self, end: Any) -> Float[Array, ""]:
        # The derivative is that of the cost, which is stationary in the potentials.
        cost = self.cost
        return cost + jax.lax.stop_gradient(jnp.maximum(self.dual(end.potential) - cost, 0))

    def _scaled(self, potential: Float[Array, " n"]) -> Float[Array, " n"]:
        r"""$\psi$ in units of eps about the centers of the clouds: the g that the iteration works on."""
        y, gap = self.kernel.clouds.keys.points, self.kernel.origin - self.kernel.center
        return (potential + y @ gap - 0.25 * jnp.sum(gap**2)) / self.eps

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

    @property
    def _keys(self) -> Particles:
        return self.measure if self.target is None else self.target

    @property
    @one_program
    def _psi(self) -> Array:
        y, gap = self.kernel.clouds.keys.points, self.kernel.origin - self.kernel.center
        return self.eps * self.kernel.scaling.g - y @ gap + 0.25 * jnp.sum(gap**2)

    def _phi(self, f: Array, u: Array) -> Array:
        gap = self.kernel.origin - self.kernel.center
        return self.eps * f + u @ gap + 0.25 * jnp.sum(gap**2)

    @property
    def _trade(self) -> Array:
        """The constant that goes from phi to psi so that both have the same integral.

        The rows are exact for any psi, so that the integral of phi and psi together is the dual of transport, which is stationary: an
        error of psi enters the cost squared.
        """
        phi = self._phi(self.kernel.rows_for(self.kernel.scaling.before), self.kernel.clouds.queries.points)
        return 0.5 * (integral(phi, self.measure) - integral(self._psi, self._keys))


class Pull(Velocity):
    """`x -> B(x) - x`, on another engine than the one that is chosen for x if one is given."""

    bridge: TokenBridge
    engine: Request | None = None

    def __call__(self, x: Any, order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        return self.bridge.kernel.pull(self.bridge._rows(x), self.engine)

    @property
    def report(self) -> dict[str, PyTree]:
        return self.bridge.kernel.report

    @property
    def engines(self) -> tuple[Any, ...]:
        return (self.bridge.kernel.engine,)


class GaussianBridge(Bridge):
    r"""The bridge between Gaussians $\mathcal{N}(m, S)$ and $\mathcal{N}(n, T)$, in closed form: $B(x) = n + W (x - m) / \varepsilon$, $W$
    the covariance of $y$ given $x$.

    For $\mathcal{N}(0, s^2)$ and itself $W / \varepsilon = (\sqrt{s^4 + \varepsilon^2 / 4} - \varepsilon / 2) / s^2$ (Janati et al. 2020,
    arXiv:2006.02572).
    """

    measure: Gaussian
    target: Gaussian | None
    eps: Float[Array, ""]
    map: Affine

    def barycentric(self, x: Any) -> Float[Array, "m d"]:
        return self.map(self._rows(x))

    def pull(self) -> Affine:
        return self.map.minus(jnp.eye(self.measure.dim, dtype=self.eps.dtype))

    def plan(self) -> Gaussian:
        r"""The coupling, a Gaussian on $\mathbb{R}^{2d}$."""
        mu, nu = self._ends
        across = self.map.matrix @ mu.cov
        return Gaussian(jnp.concatenate([mu.mean, nu.mean]), jnp.block([[mu.cov, across.T], [across, nu.cov]]))

    def potential_at(self, x: Any) -> Float[Array, " m"]:
        r"""$\varphi(x) = \frac12 \langle u, (I - W / \varepsilon) u\rangle + \langle u, m - n\rangle + c$, $u = x - m$."""
        (mu, nu), rest = self._ends, jnp.eye(self.measure.dim, dtype=self.measure.dtype) - self.map.matrix
        u = self._rows(x) - mu.mean[None]
        return 0.5 * jnp.sum((u @ rest) * u, axis=1) + u @ (mu.mean - nu.mean) + 0.5 * (self.cost - jnp.trace(rest @ mu.cov))

    @property
    def cost(self) -> Float[Array, ""]:
        r"""$\min_\pi \int \frac12 |x-y|^2 \,d\pi + \varepsilon\, \mathrm{KL}(\pi \mid \mu \otimes \nu)$."""
        mu, nu = self._ends
        distance = jnp.sum((mu.mean - nu.mean) ** 2) + jnp.trace(mu.cov) + jnp.trace(nu.cov) - 2 * jnp.trace(self.map.matrix @ mu.cov)
        w, _ = conditional_shape(jnp.eye(mu.dim, dtype=mu.dtype) / self.eps, mu, nu)
        # The determinant of W T^-1, -2 KL(pi | mu x nu) in logarithms, is that of w, also where T has no inverse.
        return 0.5 * distance - 0.5 * self.eps * jnp.linalg.slogdet(w)[1]

    @property
    def _ends(self) -> tuple[Gaussian, Gaussian]:
        return self.measure, self.measure if self.target is None else self.target
