"""What a Schrodinger bridge is: entropic optimal transport with cost `1/2 |x-y|^2` and temperature eps, of mu to itself or to nu.

The plan is `pi(x, y) = e^{(phi(x) + psi(y) - |x-y|^2 / 2) / eps} mu(x) nu(y)` with marginals mu and nu. Its barycentric map is
`B(x) = integral y pi(y|x)`. For nu = mu the potentials are equal, B is doubly stochastic attention with `A = I / eps`, and a score
estimator: `(B(x) - x) / eps = 1/2 grad log rho(x) + O(eps)` (arXiv:2406.10823). Moving by `x <- 2x - B(x)` is a step of the heat flow
`d_t rho = 1/2 Laplace rho` of length eps.
"""

import abc
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from attnflow._types import ArrayLike
from attnflow.measures import Measure
from attnflow.measures.velocity import Velocity
from attnflow.numerics.arrays import floats


class Bridge(eqx.Module):
    """The bridge from `measure` to `target` at temperature `eps`; without a target, of the measure to itself."""

    measure: eqx.AbstractVar[Measure]
    target: eqx.AbstractVar[Any]
    eps: eqx.AbstractVar[Float[Array, ""]]

    @abc.abstractmethod
    def barycentric(self, x: ArrayLike) -> Float[Array, "m d"]:
        """$B(x) = E[y|x]$ at every row of `x`, on the support or off it."""

    @abc.abstractmethod
    def potential_at(self, x: ArrayLike) -> Float[Array, " m"]:
        r"""$\varphi(x)$ at every row of `x`, on the support or off it. The constant that may be moved from $\psi$ to $\varphi$ is such that
        both have the same integral, half the cost."""

    @abc.abstractmethod
    def pull(self) -> Velocity:
        """`x -> B(x) - x`."""

    def pull_at_tokens(self) -> Velocity:
        """The same for rows that are the tokens of the measure, in their order: there the engine of the bridge serves."""
        return self.pull()

    def score(self, x: ArrayLike) -> Float[Array, "m d"]:
        """`2 (B(x) - x) / eps`, which is `grad log rho(x) + O(eps)`."""
        return self.score_map()(self._rows(x))

    def score_map(self) -> Velocity:
        """The score as a velocity; `Affine` for a Gaussian."""
        if self.target is not None:
            raise ValueError("a score comes from the bridge of a measure to itself, got one between two; use self_bridge")
        return self.pull().scaled(2 / self.eps)

    @property
    @abc.abstractmethod
    def cost(self) -> Float[Array, ""]:
        r"""$\min_\pi \int \frac12 |x-y|^2 \,d\pi + \varepsilon\, \mathrm{KL}(\pi \mid \mu \otimes \nu)$."""

    def cost_from(self, end: "Bridge") -> Float[Array, ""]:
        """The cost; where it is iterated, at least the value of its dual at the potential of `end`, the bridge of the target to itself."""
        return self.cost

    def _rows(self, x: ArrayLike) -> Array:
        x = floats("x", x, "m d").astype(self.measure.dtype)
        if x.shape[1] != self.measure.dim:
            raise ValueError(f"x must have rows in R^{self.measure.dim} like the measure, got {list(x.shape)}")
        return x
