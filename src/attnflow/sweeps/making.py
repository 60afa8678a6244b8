"""A member of a sweep, as `make` builds it: what all of them are like, and whether they differ from seed to seed."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from attnflow.measures import FlowingMeasure

# Seeds that are looked at to see whether members differ; most often two tell.
_ALIKE = 16


def first_member(make: Callable, axes: dict[str, np.ndarray]) -> tuple[Any, FlowingMeasure]:
    """The first member: what all of them are like."""
    values = {name: jnp.asarray(a[0]) for name, a in axes.items()}
    try:
        made = _made(make, jax.random.key(0), values)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        line = str(error).strip().splitlines()[0]
        raise ValueError(f"make cannot be compiled, as parameters have no value yet; shapes cannot be swept ({line})") from error
    if not isinstance(made, tuple) or len(made) != 2 or not hasattr(made[0], "at") or not isinstance(made[1], FlowingMeasure):
        raise TypeError(f"make must return (field, mu), a law or field and a measure that flows, got {type(made).__name__}")
    return made


@eqx.filter_jit
def _made(make: Callable, key: Any, values: dict[str, jax.Array]) -> Any:
    return make(key, **values)


def check_key(make: Callable, axes: dict[str, np.ndarray], seeds: np.ndarray) -> None:
    """Raise if the first seeds all make the same member: what `make` builds does not depend on its key, and all seeds are one run."""
    values = {name: jnp.asarray(a[0]) for name, a in axes.items()}
    first = None
    for seed in seeds[:_ALIKE]:
        made = [_bits(leaf) for leaf in jax.tree.leaves(_made(make, jax.random.key(int(seed)), values)) if isinstance(leaf, jax.Array)]
        first = made if first is None else first
        if first != made:
            return
    raise ValueError("make must draw from its key where there are several seeds, got one that ignores it; use the key, or give seeds=1")


def _bits(leaf: jax.Array) -> bytes:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf).tobytes()
