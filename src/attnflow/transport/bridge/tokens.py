"""The bridge between clouds of tokens, by Sinkhorn scaling."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attnflow import _check as check
from attnflow._types import ArrayLike
from attnflow.measures import Particles
from attnflow.measures.velocity import Velocity
from attnflow.numerics.arrays import array, floats, known, one_program
from attnflow.sums import Atoms, Engine, Request, Streamed, isotropic
from attnflow.transport.bridge.base import Bridge
from attnflow.transport.sinkhorn.clouds import integral
from attnflow.transport.sinkhorn.kernel import ScaledKernel, scaled_kernel


def token_bridge(
    mu: Particles,
    nu: Particles | None,
    eps: Float[Array, ""],
    tolerance: Float[Array, ""],
    max_iterations: int,
    start: Any,
    sums: Request | None,
) -> "TokenBridge":
    """The bridge from `mu` to `nu`, or to itself; `start` is another bridge, or a first guess of psi at the tokens of the target."""
    eps, target = eps.astype(mu.dtype), mu if nu is None else nu
    logit, keys = isotropic(1 / eps, mu.dim), Atoms(target.points, target.log_weights)
    queries = None if nu is None else Atoms(mu.points, mu.log_weights)
    first = None
    if start is not None:
        center = jnp.mean(target.points, axis=0)
        gap = jnp.mean(mu.points, axis=0) - center
        first = _scaled(_potential(start, mu, target), target.points - center[None], gap, eps)

    def solved(sums: Request | None) -> TokenBridge:
        budget = jnp.asarray(tolerance, mu.dtype), jnp.asarray(max_iterations)
        return TokenBridge(mu, nu, eps, scaled_kernel(logit, keys, *budget, sums, first, queries))

    found = solved(sums)
    if not known(found):
        return found
    if not jnp.isfinite(found.error) and jnp.isfinite((streamed := solved(Streamed())).error):
        check.warn("spectral sums cannot resolve the potentials of this bridge; it ran on streamed sums instead")
        found = streamed
    if not found.converged:
        check.warn(
            f"the bridge did not converge: error {float(found.error):.1e} after {int(found.iterations)} iterations; "
            "raise max_iterations or tolerance",
        )
    return found


class TokenBridge(Bridge):
    """The bridge of a cloud. `error` is the largest violation of a marginal, relative to its mass; `converged` and `iterations` say how
    the iteration ended."""

    measure: Particles
    target: Particles | None
    eps: Float[Array, ""]
    kernel: ScaledKernel

    def barycentric(self, x: ArrayLike | None = None) -> Float[Array, "m d"]:
        """$B(x) = E[y|x]$ at every row of `x`, by default at the tokens themselves: there the engine of the bridge serves, elsewhere one
        is chosen anew."""
        return self.kernel(self.measure.points, sums=self.kernel.engine) if x is None else self.kernel(self._rows(x))

    def pull(self) -> Velocity:
        """`x -> B(x) - x`."""
        return Pull(self)

    def pull_at_tokens(self) -> Velocity:
        """The same for rows that are the tokens of the measure, in their order, on the engine of the bridge."""
        return Pull(self, self.kernel.engine)

    def plan(self) -> Float[Array, "m n"]:
        r"""The coupling $\pi_{ij}$, dense; its rows and columns sum to the weights."""
        log_kernel = self.kernel.log_kernel(self.measure.points)
        return jnp.exp(log_kernel + self._keys.log_weights[None, :] + self.measure.log_weights[:, None])

    def expect(self, values: ArrayLike) -> Float[Array, " m"]:
        """$E[v(y)|x]$ at every token $x$, for the values of a function $v$ at the tokens $y$: the plan as an operator, without its
        matrix."""
        found = floats("values", values, "n")
        if len(found) != len(self._keys.points):
            raise ValueError(f"values must have one entry per token, {len(self._keys.points)}, got {len(found)}")
        return self.kernel.expect(found)

    @property
    def potential(self) -> Float[Array, " n"]:
        r"""$\psi$ at every token of the target; for a bridge of a measure to itself, $\varphi = \psi$."""
        return self._psi + self._shift

    def potential_at(self, x: ArrayLike) -> Float[Array, " m"]:
        r"""$\varphi(x)$ at every row of `x`, on the support or off it."""
        rows = self._rows(x)
        return self._phi(self.kernel.row_potential(rows), rows - self.kernel.origin[None]) - self._shift

    @property
    def cost(self) -> Float[Array, ""]:
        r"""$\min_\pi \int \frac12 |x-y|^2 \,d\pi + \varepsilon\, \mathrm{KL}(\pi \mid \mu \otimes \nu)$, which is
        $\int \varphi \,d\mu + \int \psi \,d\nu$."""
        return 2 * integral(self.potential, self._keys)

    def cost_from(self, end: Bridge) -> Float[Array, ""]:
        """The cost, or the value of its dual at the potential of `end` if that is larger: the rows are exact for any psi, so that the dual
        is never above the cost."""
        assert isinstance(end, TokenBridge)
        f = self.kernel.rows_for(_scaled(end.potential, self.kernel.clouds.keys.points, self._gap, self.eps))
        dual = integral(self._phi(f, self.kernel.clouds.queries.points), self.measure) + integral(end.potential, self._keys)
        # The derivative is that of the cost, which is stationary in the potentials.
        cost = self.cost
        return cost + jax.lax.stop_gradient(jnp.maximum(dual - cost, 0))

    @property
    def converged(self) -> Bool[Array, ""] | None:
        """Whether the error is below the tolerance."""
        return self.kernel.scaling.converged

    @property
    def iterations(self) -> Int[Array, ""]:
        """How many updates of the potential were made."""
        return self.kernel.scaling.iterations

    @property
    def error(self) -> Float[Array, ""]:
        """The largest violation of a marginal, relative to its mass."""
        return self.kernel.scaling.error

    @property
    def stats(self) -> dict[str, Any]:
        """The convergence of the iteration, which engine the sums ran on, and their error if they are not exact."""
        return self.kernel.report | {"engine": repr(self.kernel.engine)}

    @property
    def _keys(self) -> Particles:
        return self.measure if self.target is None else self.target

    @property
    def _gap(self) -> Float[Array, " d"]:
        """From the center of the target to that of the measure."""
        return self.kernel.origin - self.kernel.center

    @property
    @one_program
    def _psi(self) -> Float[Array, " n"]:
        return self.eps * self.kernel.scaling.g - self.kernel.clouds.keys.points @ self._gap + 0.25 * jnp.sum(self._gap**2)

    def _phi(self, f: Float[Array, " m"], u: Float[Array, "m d"]) -> Float[Array, " m"]:
        return self.eps * f + u @ self._gap + 0.25 * jnp.sum(self._gap**2)

    @property
    def _shift(self) -> Float[Array, ""]:
        """The constant that is moved from phi to psi so that both have the same integral.

        The rows are exact for any psi, so that the integral of phi and psi together is the dual of transport, which is stationary: an
        error of psi enters the cost squared.
        """
        phi = self._phi(self.kernel.rows_for(self.kernel.scaling.before), self.kernel.clouds.queries.points)
        return 0.5 * (integral(phi, self.measure) - integral(self._psi, self._keys))


class Pull(Velocity):
    """`x -> B(x) - x`, on another engine than the one that is chosen for x if one is given."""

    bridge: TokenBridge
    engine: Engine | None = None

    def __call__(self, x: ArrayLike, order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        return self.bridge.kernel.pull(self.bridge._rows(x), self.engine)

    @property
    def report(self) -> dict[str, Any]:
        return self.bridge.kernel.report

    @property
    def engines(self) -> tuple[Engine, ...]:
        return self.bridge.kernel.engines


def _scaled(psi: Float[Array, " n"], y: Float[Array, "n d"], gap: Float[Array, " d"], eps: Float[Array, ""]) -> Float[Array, " n"]:
    """psi in units of eps, with the tokens y of the target and those of the measure, `gap` away, both about their centers: the g that
    the iteration works on."""
    return (psi + y @ gap - 0.25 * jnp.sum(gap**2)) / eps


def _potential(start: Any, mu: Particles, target: Particles) -> Float[Array, " n"]:
    """The potential that `start` stands for, one number per token of the target."""
    if isinstance(start, TokenBridge):
        if (start.measure.points.shape, start._keys.points.shape) != (mu.points.shape, target.points.shape):
            raise ValueError(f"start must be a bridge of {len(mu.points)} tokens in R^{mu.dim}, like mu, got {len(start.measure.points)}")
        return start.potential
    if isinstance(start, Bridge):
        raise TypeError(f"start must be a bridge of tokens, or a potential at them, got {type(start).__name__}")
    potential = array(floats("start", start, "n"), mu.dtype)
    if len(potential) != len(target.points):
        raise ValueError(f"start must have one number per token, {len(target.points)}, got {len(potential)}")
    return potential
