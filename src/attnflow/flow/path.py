"""What `solve` returns: frames of a measure along time, and how the run ended. Both are pytrees: they leave `jit` and `vmap`."""

import dataclasses
import importlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from attnflow import _check as check
from attnflow._types import PathLike, Scalar
from attnflow.flow.observe import Observed
from attnflow.measures import FlowingMeasure
from attnflow.numerics.arrays import array, known

if TYPE_CHECKING:
    import matplotlib.figure
    import xarray

Kind = Literal["reached", "blow-up", "stalled", "budget", "unresolved", "stopped", "steady", "consensus", "interrupted"]
KINDS: tuple[str, ...] = get_args(Kind)
REACHED, BLOW_UP, STALLED, BUDGET, UNRESOLVED, STOPPED = range(6)


def _code(kind: Any) -> Array | np.ndarray:
    """The code of a word; a code as it is."""
    if isinstance(kind, jax.Array | np.ndarray):
        return kind
    return np.asarray(KINDS.index(check.choice("kind", kind, KINDS)) if not isinstance(kind, int) else kind, np.int32)


class Status(eqx.Module):
    """How a run ended: a `code` and its word `kind`.

    - `reached` (code 0): at `t1`.
    - `blow-up` (1): the solution left every bound at `time`, or would so soon after t1 that the tolerance cannot tell them apart; the path
      has it up to there. Not on a compact space.
    - `stalled` (2): the step size underflowed at `time` while the velocity stayed bounded (a jump of the velocity, or too tight a
      tolerance), or the surrogate of a gradient flow degenerated there.
    - `budget` (3): `max_steps` were spent at `time`.
    - `unresolved` (4): the kernel became narrower than the cells of the `Grid` after `time`.
    - `stopped` (5): the condition `until` held at `time`; `steady` (6) and `consensus` (7) for those conditions.
    - `interrupted` (8): the run was interrupted at `time`, and the path was loaded from what it had written.

    `time` is known to `within` about ten times the relative tolerance, 0 where it is exact; only those digits are printed. Inside `jit`
    there is the code alone; a batch from `vmap` has a code, a time and a word for each member.
    """

    code: Int[Array, "*batch"] | Int[np.ndarray, "*batch"] = eqx.field(converter=_code)
    time: Any
    within: Any = 0.0

    @property
    def kind(self) -> Any:
        """The code in a word; an array of words for a batch."""
        if not known(self.code):
            raise ValueError("inside jit a status has no word yet, only status.code; ask for status.kind outside")
        words = np.asarray(KINDS)[np.asarray(self.code)]
        return str(words) if words.ndim == 0 else words

    def __str__(self) -> str:
        if not known(self):
            return "known when it is run"
        if np.ndim(self.code):
            words, counts = np.unique(self.kind, return_counts=True)
            return ", ".join(f"{count} {word}" for word, count in zip(words, counts))
        time, within = float(self.time), float(self.within)
        # Digits beyond what the tolerance gives are not shown.
        shown = round(time, math.floor(-math.log10(within))) if within > 0 else time
        return f"{self.kind} at t = {shown:.{15 if within > 0 else 10}g}"

    def __repr__(self) -> str:
        return f"Status({self})"


@jax.tree_util.register_pytree_node_class
class Stats(dict):
    """What the solver did, by name. As a pytree its numbers are leaves and its words are structure, so that it can leave `jit`."""

    def tree_flatten(self) -> tuple[list[Any], Any]:
        leaves, structure = jax.tree.flatten(dict(self))
        words = tuple(leaf if isinstance(leaf, str) else None for leaf in leaves)
        return [leaf for leaf in leaves if not isinstance(leaf, str)], (structure, words)

    @classmethod
    def tree_unflatten(cls, about: Any, numbers: Any) -> "Stats":
        structure, words = about
        rest = iter(numbers)
        return cls(jax.tree.unflatten(structure, [next(rest) if word is None else word for word in words]))


class Path(eqx.Module):
    """A path of measures.

    `ts` are the times of the frames, `path[i]` is the measure at `ts[i]`, `path.final` the last one, `path[2:10]` and `path[::5]` are
    paths of some of the frames, and `path(t)` is the measure at any time between the first and the last. `states` are the evolving arrays
    with a leading time axis (for tokens `[t, n, d]`). `stats` says what the solver did. `observed[name]` has the `ts` and `values` of an
    observable.

    A path is a pytree. Inside `jit` all frames asked for are there; those that the run did not reach are infinite, and `status.code` says
    why. A batch from `vmap` has one more axis in front of everything: `jax.tree.map(lambda a: a[i], batch)` is the path of one member.
    """

    ts: Float[Array, " t"] | Float[np.ndarray, " t"]
    states: PyTree
    status: Status
    stats: dict[str, Any] = eqx.field(converter=Stats)
    measure: FlowingMeasure
    observed: dict[str, Observed] = eqx.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ts)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return self._slice(i)
        if not isinstance(i, int | np.integer):
            raise TypeError(check.refusal("index", "a whole number, that of a frame", i, "path.states has the arrays of all frames"))
        if not -len(self) <= i < len(self):
            raise IndexError(f"the path has {len(self)} frames, got index {i}")
        return self.measure.with_state(jax.tree.map(lambda s: array(np.asarray(s)[i]) if known(s) else s[i], self.states))

    def _slice(self, part: slice) -> "Path":
        """Some of the frames, and the observables along with them."""
        kept = range(len(self))[part]
        if not kept or kept.step < 0:
            raise IndexError(f"a slice must hold frames in the order of time, got {part} of {len(self)} frames")
        # Observables have times of their own where only the last state was kept.
        observed = {name: jax.tree.map(lambda a: a[part], o) if len(o.ts) == len(self) else o for name, o in self.observed.items()}
        states = jax.tree.map(lambda s: s[part], self.states)
        return dataclasses.replace(self, ts=self.ts[part], states=states, observed=observed)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __call__(self, t: Scalar) -> Any:
        r"""The measure at a time $t$ between the first frame and the last: on the chord between the two frames around it, brought back to
        the space.

        Tokens stay on the sphere, covariances positive and the mass of a grid 1. For frames a time $h$ apart the error is $O(h^2)$, at most
        $\frac18 h^2 \max |x''|$ per coordinate; `save_at=[t]` has the accuracy of the solver instead.
        """
        if known(t, self.ts):
            ts, xp = np.asarray(self.ts, np.float64), np
            t = _within(t, ts)
        else:
            ts, xp = self.ts, jnp
        if len(ts) == 1:
            return self[0]
        i = xp.clip(xp.searchsorted(ts, t, side="right") - 1, 0, len(ts) - 2)
        share = (t - ts[i]) / (ts[i + 1] - ts[i])
        between = jax.tree.map(lambda s: jnp.asarray((1 - share) * s[i] + share * s[i + 1], s.dtype), self.states)
        return self.measure.with_state(self.measure.retract(between))

    @property
    def final(self) -> Any:
        """The last frame."""
        return self[-1]

    def __repr__(self) -> str:
        name = type(self.measure).__name__
        if not known(self.ts) or np.ndim(self.ts) != 1:
            return f"Path(frames of {name}, {self.status})"
        ts = np.asarray(self.ts)
        return f"Path({len(self)} frames of {name}, t = {ts[0]:.6g} .. {ts[-1]:.6g}, {self.status})"

    def _repr_html_(self) -> str:
        return importlib.import_module("attnflow.plot.notebook").html(self)

    def plot(self, **options: Any) -> "matplotlib.figure.Figure":
        """The figure `af.plot.summary(path, **options)`."""
        return _plots().summary(self, **options)

    def movie(self, file: PathLike, **options: Any) -> Any:
        """The file that `af.plot.movie(path, file, **options)` writes."""
        return _plots().movie(self, file, **options)

    def save(self, folder: PathLike) -> None:
        """Write the path to a new folder, which `af.load_path` reads."""
        from attnflow.flow.storage.record import save_path

        save_path(self, check.folder("folder", folder))

    def to_xarray(self) -> "xarray.Dataset":
        """The frames as an `xarray.Dataset`: named variables and axes, the status and the solver's figures as attributes."""
        import xarray

        variables = {name: (axes, np.asarray(value)) for name, (axes, value) in self.measure.frame(self.states).items()}
        attributes = {"status": self.status.kind, "status_time": float(self.status.time)} | _flat(self.stats)
        return xarray.Dataset(variables, coords={"time": np.asarray(self.ts)}, attrs=attributes)


def _plots() -> Any:
    """The room of figures, which stands above this one."""
    import attnflow as af

    return af.plot


def _within(t: Scalar, ts: np.ndarray) -> float:
    """A number within the times of a path; what misses an end by round-off is that end."""
    time = float(np.asarray(t)) if np.ndim(t) == 0 and np.asarray(t).dtype.kind in "iuf" else None
    if time is None:
        raise TypeError(check.refusal("t", "a time, one number", t))
    slack = 8 * np.finfo(np.float64).eps * np.abs(ts[[0, -1]]).max()
    if not ts[0] - slack <= time <= ts[-1] + slack:
        raise ValueError(f"t must lie within the frames, from {ts[0]:.6g} to {ts[-1]:.6g}, got {time:.6g}")
    return min(max(time, float(ts[0])), float(ts[-1]))


def _flat(stats: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested figures as one level of attributes that every file format takes."""
    out: dict[str, Any] = {}
    for name, value in stats.items():
        if isinstance(value, dict):
            out |= _flat(value, f"{prefix}{name}.")
        else:
            out[prefix + name] = int(value) if isinstance(value, bool) else value
    return out
