"""What `solve` returns: frames of a measure along time, and how the run ended."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from attnflow._check import folder as folder_
from attnflow._check import refusal
from attnflow.flow.observe import Observed
from attnflow.measures import FlowingMeasure
from attnflow.numerics.arrays import array, known

Kind = Literal["reached", "blow-up", "stalled", "budget", "unresolved", "stopped", "steady", "consensus", "interrupted"]


@dataclasses.dataclass(frozen=True)
class Status:
    """How a run ended.

    - `reached`: at `t1`.
    - `blow-up`: the solution left every bound at `time`, or would so soon after t1 that the tolerance cannot tell them apart; the path has
      it up to there. Not on a compact space.
    - `stalled`: the step size underflowed at `time` while the velocity stayed bounded (a jump of the velocity, or too tight a tolerance),
      or the surrogate of a gradient flow degenerated there.
    - `budget`: `max_steps` were spent at `time`.
    - `unresolved`: the kernel became narrower than the cells of the `Grid` after `time`.
    - `stopped`: the condition `until` held at `time`; `steady` and `consensus` for those conditions.
    - `interrupted`: the run was cut off at `time`, and the path was loaded from what it had written.

    `time` is known to `within` about ten times the relative tolerance, 0 where it is exact; only those digits are printed.
    """

    kind: Kind
    time: Any
    within: float = 0.0

    def __str__(self) -> str:
        time = float(self.time)
        # Digits beyond what the tolerance gives are not shown.
        shown = round(time, math.floor(-math.log10(self.within))) if self.within > 0 else time
        return f"{self.kind} at t = {shown:.{15 if self.within > 0 else 10}g}"


@dataclasses.dataclass(frozen=True, eq=False)
class Path:
    """A path of measures.

    `ts` are the times of the frames, `path[i]` is the measure at `ts[i]`, `path.final` the last one. `states` are the evolving arrays
    with a leading time axis (for tokens `[t, n, d]`). `stats` says what the solver did. `observed[name]` has the `ts` and `values` of an
    observable.
    """

    ts: Float[Array, " t"] | Float[np.ndarray, " t"]
    states: PyTree[Float[Array, "t ..."]]
    status: Status
    stats: dict[str, Any]
    measure: FlowingMeasure
    observed: dict[str, Observed] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ts)

    def __getitem__(self, i: int) -> Any:
        if not isinstance(i, int | np.integer):
            raise TypeError(refusal("index", "a whole number, that of a frame", i, "path.states has the arrays of all frames"))
        if not -len(self) <= i < len(self):
            raise IndexError(f"the path has {len(self)} frames, got index {i}")
        return self.measure.with_state(jax.tree.map(lambda s: array(np.asarray(s)[i]) if known(s) else s[i], self.states))

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    @property
    def final(self) -> Any:
        """The last frame."""
        return self[-1]

    def __repr__(self) -> str:
        ts = np.asarray(self.ts)
        return f"Path({len(self)} frames of {type(self.measure).__name__}, t = {ts[0]:.6g} .. {ts[-1]:.6g}, {self.status})"

    def save(self, folder: Any) -> None:
        """Write the path to a new folder, which `af.load_path` reads."""
        from attnflow.flow.storage.record import save_path

        save_path(self, folder_("folder", folder))

    def to_xarray(self):
        """The frames as an `xarray.Dataset`: named variables and axes, the status and the solver's figures as attributes."""
        import xarray

        variables = {name: (axes, np.asarray(value)) for name, (axes, value) in self.measure.frame(self.states).items()}
        attributes = {"status": self.status.kind, "status_time": float(self.status.time)} | _flat(self.stats)
        return xarray.Dataset(variables, coords={"time": np.asarray(self.ts)}, attrs=attributes)


def _flat(stats: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested figures as one level of attributes that every file format takes."""
    out: dict[str, Any] = {}
    for name, value in stats.items():
        if isinstance(value, dict):
            out |= _flat(value, f"{prefix}{name}.")
        else:
            out[prefix + name] = int(value) if isinstance(value, bool) else value
    return out
