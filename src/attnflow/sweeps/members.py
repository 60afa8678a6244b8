"""The members of a sweep: every point of a grid of parameters with every seed, in batches; and what `make` builds of one."""

import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from attnflow import _check as check
from attnflow._types import FieldLike
from attnflow.measures import FlowingMeasure
from attnflow.numerics.arrays import floats

# Names that the result has already.
TAKEN = ("seed", "time", "status", "ended", "steps")
# Seeds that are looked at to see whether members differ; two are most often enough.
_ALIKE = 16


class Batch(NamedTuple):
    """Which members, by their seeds and parameters; the first `count` are wanted, the others fill the batch up."""

    seeds: Int[np.ndarray, " b"]
    parameters: dict[str, Float[np.ndarray, " b"]]
    count: int


class Members(NamedTuple):
    """Every member in order, the seed changing fastest: their seeds and parameters; and how many make a batch."""

    seeds: Int[np.ndarray, " m"]
    parameters: dict[str, Float[np.ndarray, " m"]]
    size: int

    @property
    def batches(self) -> int:
        """How many batches there are."""
        return -(-len(self.seeds) // self.size)

    def batch(self, index: int) -> Batch:
        """One of them. All have the same size, so that they are one program: the last is filled up with its last member."""
        start = index * self.size
        rows = np.minimum(np.arange(start, start + self.size), len(self.seeds) - 1)
        return Batch(self.seeds[rows], {name: a[rows] for name, a in self.parameters.items()}, min(self.size, len(self.seeds) - start))


def all_members(axes: dict[str, np.ndarray], seeds: np.ndarray, size: int) -> Members:
    """All of them, in batches of nearly the size asked for that waste little of the last one."""
    points = np.array(list(itertools.product(*axes.values())))
    parameters = {name: np.repeat(points[:, i], len(seeds)).astype(a.dtype) for i, (name, a) in enumerate(axes.items())}
    count = len(points) * len(seeds)
    return Members(np.tile(seeds, len(points)), parameters, -(-count // -(-count // size)))


def check_axes(make: Any, grid: Any) -> dict[str, np.ndarray]:
    """The values of the parameters, refused unless `make` takes just these."""
    check.function("make", make, "a function make(key, **parameters) -> (field, mu)")
    if not isinstance(grid, dict) or not grid:
        raise ValueError(check.refusal("grid", "a dict of names and values with at least one parameter", grid))
    parameters = list(inspect.signature(make).parameters.values())[1:]
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = [name for name in grid if name not in names]
    if unknown and not any(p.kind == p.VAR_KEYWORD for p in parameters):
        takes = ", ".join(map(repr, names)) or "only a key"
        raise ValueError(f"make must take the parameters of the grid, got {', '.join(map(repr, unknown))}; it takes {takes}")
    missing = [p.name for p in parameters if p.name in names and p.default is p.empty and p.name not in grid]
    if missing:
        raise ValueError(f"make needs {', '.join(map(repr, missing))} too; add it to the grid, or bind it before")
    taken = [name for name in grid if name in TAKEN]
    if taken:
        raise ValueError(f"{taken[0]!r} is a name of the result, got it for a parameter; give the grid another name")
    return {name: np.asarray(floats(f"grid[{name!r}]", values, "k")) for name, values in grid.items()}


def check_seeds(seeds: Any) -> Int[np.ndarray, " s"]:
    """The seeds, from their number or a list of them."""
    if isinstance(seeds, int | np.integer) and not isinstance(seeds, bool):
        found = np.arange(int(seeds))
    else:
        found = np.asarray(seeds if isinstance(seeds, Sequence | np.ndarray) and not isinstance(seeds, str) else [])
    fine = found.ndim == 1 and found.size > 0 and np.issubdtype(found.dtype, np.integer)
    if not fine or found.min() < 0 or found.max() >= 2**31 or len(set(found.tolist())) != len(found):
        raise ValueError(check.refusal("seeds", "a positive count or different integers from 0 on", seeds))
    return found


def first_member(make: Callable[..., Any], axes: dict[str, np.ndarray], seeds: np.ndarray) -> tuple[FieldLike, FlowingMeasure]:
    """The first member, which all others are like. Raise if `make` does not build one, or builds the same one for all of the first seeds:
    then it does not depend on its key, and all seeds are one run."""
    values = {name: jnp.asarray(a[0]) for name, a in axes.items()}
    try:
        made = _made(make, jax.random.key(0), values)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        line = str(error).strip().splitlines()[0]
        raise ValueError(f"make cannot be compiled, as parameters have no value yet; shapes cannot be swept ({line})") from error
    if not isinstance(made, tuple) or len(made) != 2 or not hasattr(made[0], "at") or not isinstance(made[1], FlowingMeasure):
        raise TypeError(f"make must return (field, mu), a law or field and a measure that flows, got {type(made).__name__}")
    if len(seeds) > 1:
        members = (_bits(_made(make, jax.random.key(int(seed)), values)) for seed in seeds[:_ALIKE])
        first = next(members)
        if all(other == first for other in members):
            raise ValueError(
                "make must draw from its key where there are several seeds, got one that ignores it; use the key, or give seeds=1"
            )
    return made


@eqx.filter_jit
def _made(make: Callable[..., Any], key: jax.Array, values: dict[str, jax.Array]) -> Any:
    return make(key, **values)


def _bits(made: Any) -> list[bytes]:
    """The arrays of a member, bit by bit."""
    leaves = (leaf for leaf in jax.tree.leaves(made) if isinstance(leaf, jax.Array))
    plain = (jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf for leaf in leaves)
    return [np.asarray(leaf).tobytes() for leaf in plain]
