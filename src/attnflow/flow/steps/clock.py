"""Time inside a segment, counted from where the segment begins, so that a late or a long run keeps the digits of its steps.

On the host times are doubles. A compiled segment has the precision of the state, where `t + h = t` once t is large: in single precision a
step of 0.01 is lost after t = 1e5. So a segment counts from zero, and when its steps have become short beside what it has counted, the loop
puts that behind it and counts from zero again. What is behind is a sum of two floats, exact to twice the precision.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


class Clock(eqx.Module):
    """`t = start + behind + rest + s` for the local time s; `jumps` are times at which the velocity jumps, on the scale of t."""

    start: Float[Array, ""]
    behind: Float[Array, ""]
    rest: Float[Array, ""]
    jumps: Float[Array, " k"] | None

    def at(self, s: Float[Array, ""]) -> Float[Array, ""]:
        """The time, as a field is given it: in the precision of the state, on the same side of every jump as s."""
        wide = self.start.dtype
        t = (self.start + self.behind.astype(wide) + (self.rest + s).astype(wide)).astype(s.dtype)
        if self.jumps is None:
            return t
        after = self.local_jumps <= s
        t = jnp.maximum(t, jnp.max(jnp.where(after, self.jumps, -jnp.inf)))
        return jnp.minimum(t, jnp.min(jnp.where(after, jnp.inf, jnp.nextafter(self.jumps, jnp.full_like(self.jumps, -jnp.inf)))))

    def local(self, times: Float[Array, "*k"]) -> Float[Array, "*k"]:
        """Times since the beginning of the segment, on the scale of s."""
        return times - self.behind - self.rest

    @property
    def local_jumps(self) -> Float[Array, " k"]:
        """The jumps on the scale of s."""
        assert self.jumps is not None
        return self.local((self.jumps.astype(self.start.dtype) - self.start).astype(self.jumps.dtype))

    def put_behind(self, s: Float[Array, ""]) -> "Clock":
        """The clock that counts from local time s; the sum of two floats is kept with its rounding error (Knuth)."""
        total = self.behind + s
        part = total - self.behind
        error = (self.behind - (total - part)) + (s - part)
        return eqx.tree_at(lambda clock: (clock.behind, clock.rest), self, (total, self.rest + error))


def clock(start: Float[Array, ""], jumps: Float[Array, " k"] | None, dtype: Any) -> Clock:
    """The clock of a segment that begins at `start`."""
    return Clock(start, jnp.zeros((), dtype), jnp.zeros((), dtype), jumps)


def depends_on_time(rate: Callable, t: Array, state: PyTree) -> bool:
    """Whether `rate(t, state)` makes use of t: by its program, without running it."""
    program = jax.make_jaxpr(rate)(t, state).jaxpr
    reached = {program.invars[0]}
    for equation in program.eqns:
        # A literal is no variable, and cannot be looked up.
        if any(not hasattr(atom, "val") and atom in reached for atom in equation.invars):
            reached.update(equation.outvars)
    return any(not hasattr(atom, "val") and atom in reached for atom in program.outvars)
