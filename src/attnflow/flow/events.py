"""When to stop before t1: a condition on the measure, its rate of change and the time, looked at after every step."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from attnflow._types import Scalar
from attnflow.flow.steps.loop import largest
from attnflow.measures import FlowingMeasure, Particles
from attnflow.numerics.arrays import positive
from attnflow.numerics.tolerances import default


class Steady(eqx.Module):
    r"""Stop when nothing moves faster than `speed`: the largest entry of the rate of change of the state.

    By default the speed is what the tolerances of the run can tell from rest: $10 \max(r \max(1, |x|), a)$ with $r$ and $a$ its `rtol` and
    `atol`, $|x|$ the largest entry of the state. That is $10^{-6}$ in double precision and $10^{-3}$ in single for states of size one.
    """

    kind = "steady"
    speed: Float[Array, ""] | None
    tolerances: tuple[Float[Array, ""], Float[Array, ""]] | None

    def __init__(self, speed: Scalar | None = None):
        self.speed, self.tolerances = None if speed is None else positive("speed", speed), None

    def fitted(self, rtol: Array, atol: Array) -> "Steady":
        """The condition for a run with these tolerances, which count if no speed was given."""
        return (
            self if self.speed is not None else eqx.tree_at(lambda s: s.tolerances, self, (rtol, atol), is_leaf=lambda leaf: leaf is None)
        )

    def __call__(self, mu: FlowingMeasure, rate: PyTree, t: Scalar) -> Bool[Array, ""]:
        return largest(rate) <= self._speed(mu).astype(mu.dtype)

    def _speed(self, mu: FlowingMeasure) -> Float[Array, ""]:
        if self.speed is not None:
            return self.speed
        rtol, atol = self.tolerances or (default("rtol", mu.dtype), default("atol", mu.dtype))
        # Below the unit round-off nothing is told from rest.
        rtol = jnp.maximum(rtol, 4 * jnp.finfo(mu.dtype).eps)
        return 10 * jnp.maximum(rtol * jnp.maximum(largest(mu.state), 1), atol)


class Consensus(eqx.Module):
    """Stop when every token with mass lies within `radius` of the mean of the tokens."""

    kind = "consensus"
    radius: Float[Array, ""]

    def __init__(self, radius: Scalar = 1e-3):
        self.radius = positive("radius", radius)

    def __call__(self, mu: Particles, rate: PyTree, t: Scalar) -> Bool[Array, ""]:
        squares = jnp.sum((mu.points - mu.mean[None]) ** 2, axis=1)
        return jnp.max(jnp.where(jnp.isfinite(mu.log_weights), squares, 0)) <= self.radius.astype(squares.dtype) ** 2
