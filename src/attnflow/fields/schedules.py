"""Fields whose matrices depend on time: a field for each t, made by a function or picked from a list."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from attnflow import _check as check
from attnflow._types import ArrayLike, Key, Scalar
from attnflow.measures import Field, FlowingMeasure, Velocity, velocity_of
from attnflow.measures.field import check_at
from attnflow.numerics.arrays import floats, known, positive
from attnflow.sums import Request


class Scheduled(Field):
    r"""The field `make(t)` at time $t$: any of $Q$, $K$, $V$, $\beta$, biases as functions of time.

    `make` is a named function or an `equinox.Module`; a module's arrays may change without compiling again, a new function compiles. The
    solver does not step across `jump_times`, where the result may jump; at a jump the later value counts.
    """

    make: Callable[[Any], Any]
    jump_times: Float[Array, " k"] | None

    def __init__(self, make: Callable[[Any], Any], *, jump_times: ArrayLike | None = None):
        self.make = check.function("make", make, "a function t -> field")
        self.jump_times = None if jump_times is None else _increasing("jump_times", jump_times)

    def at(self, mu: FlowingMeasure, t: Scalar = 0.0, sums: Request | None = None) -> Velocity:
        check_at(mu, t, sums)
        return velocity_of(check.field("make(t)", self.make(t)), mu, t, sums)

    @property
    def jumps(self) -> Float[Array, " k"] | None:
        return self.jump_times


def piecewise(times: ArrayLike, fields: Sequence[Any]) -> Scheduled:
    """`fields[i]` from `times[i]` to `times[i + 1]`, the last one forever: its own matrices for each layer.

    The fields must be alike but for the values of their arrays; before `times[0]` the first one acts. One compiled program serves all.
    """
    starts = _increasing("times", times)
    check.instance("fields", fields, (list, tuple), "a list of fields")
    if len(starts) != len(fields):
        raise ValueError(f"times and fields must be equally many, got {len(starts)} and {len(fields)}")
    for i, field in enumerate(fields):
        check.instance(f"fields[{i}]", field, eqx.Module, "a law, a field or a norm")
    shapes = [jax.tree.map(jnp.shape, field) for field in fields]
    for i, shape in enumerate(shapes):
        if jax.tree.structure(fields[i]) != jax.tree.structure(fields[0]) or shape != shapes[0]:
            raise ValueError(f"fields must be alike but for the values of their arrays, got a different one at [{i}]")
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *fields)
    return Scheduled(_Piece(starts, stacked), jump_times=starts[1:] if len(starts) > 1 else None)


def resampled(draw: Callable[[PRNGKeyArray], Any], *, key: Key, width: Scalar = 1.0, layers: int = 1) -> Scheduled:
    """Fresh random weights for each layer: the field `draw(key_k)` on $[k w, (k+1) w)$ with the `width` $w$, for `layers` layers (the last
    one forever).

    `draw` makes a field from a key, such as `lambda key: af.Attention(af.dot_product(*af.matrices.gaussian(d, key=key, count=2)), V)`.
    """
    check.function("draw", draw, "a function key -> field")
    check.key("key", key)
    check.count("layers", layers)
    size = positive("width", width)
    return Scheduled(_Draw(draw, key, size, layers), jump_times=size * jnp.arange(1, layers) if layers > 1 else None)


class _Piece(eqx.Module):
    starts: Float[Array, " k"]
    fields: Any

    def __call__(self, t: Scalar) -> Any:
        index = jnp.maximum(jnp.searchsorted(self.starts, t, side="right") - 1, 0)
        return jax.tree.map(lambda leaf: leaf[index], self.fields)


class _Draw(eqx.Module):
    draw: Callable
    key: PRNGKeyArray
    width: Float[Array, ""]
    layers: int = eqx.field(static=True)

    def __call__(self, t: Scalar) -> Any:
        # Comparing with the same products as the jumps, so that both agree on which side of a jump t lies.
        index = jnp.sum(t >= self.width * jnp.arange(1, self.layers))
        return self.draw(jax.random.fold_in(self.key, index))


def _increasing(name: str, value: ArrayLike) -> Array:
    times = floats(name, value, "k")
    if known(times) and (np.diff(np.asarray(times)) <= 0).any():
        raise ValueError(f"{name} must be increasing, got {np.asarray(times).tolist()}")
    return times
