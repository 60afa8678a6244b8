"""What a run has recorded so far: frames, observables and figures, in memory or on disk, and the path made of them."""

import json
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from attnflow._check import folder as check_folder
from attnflow._types import PathLike
from attnflow.flow.observe import Observed
from attnflow.flow.path import REACHED, Path, Status
from attnflow.flow.steps.segment import Carry
from attnflow.flow.steps.stretch import Frames, finite
from attnflow.flow.steps.times import labels
from attnflow.flow.storage.folder import Store, fingerprint, provenance
from attnflow.measures import FlowingMeasure
from attnflow.numerics.arrays import array, known

if TYPE_CHECKING:
    import xarray


class Record:
    """The blocks of a run in order, each some frames, the figures of its segment and when it ended."""

    def __init__(self, measure: FlowingMeasure, store: Store | None = None):
        self.measure, self.store = measure, store
        self.blocks: list[Frames] = []
        self.figures: list[dict[str, Any]] = []
        for data in [] if store is None else store.blocks():
            self.blocks.append(_frames(data, measure))
            self.figures.append(json.loads(data.attrs["figures"]))

    def add(self, frames: Frames, figures: dict[str, Any], t: float, carry: Carry) -> None:
        """One more block, which ended at time t; on disk it is complete when this returns."""
        self.blocks.append(frames)
        self.figures.append(figures | {"end": t})
        if self.store is not None:
            if frames.states is None:
                last = Frames(np.asarray([t]), jax.tree.map(lambda leaf: np.asarray(leaf)[None], carry.state), {})
                self.store.replace_last(dataset(self.measure, last, {}))
            self.store.append(len(self.blocks) - 1, dataset(self.measure, frames, {"figures": json.dumps(self.figures[-1])}), carry)

    @property
    def ended(self) -> bool:
        """Whether the last segment stopped before its end."""
        return bool(self.figures) and self.figures[-1]["code"] != REACHED


def gather(blocks: list[Frames]) -> Frames:
    """All frames that are finite, in order."""
    some = [block for block in blocks if len(block.ts)] or blocks[:1]
    frames = finite(jax.tree.map(lambda *leaves: np.concatenate(leaves), *some))
    # A segment that ended where it began has the last frame of the one before again.
    later = np.append(True, np.diff(frames.ts) > 0)[: len(frames.ts)]
    return jax.tree.map(lambda leaf: leaf[later], frames)


def path_of(frames: Frames, state: PyTree, t: Any, status: Status, stats: dict[str, Any], measure: FlowingMeasure) -> Path:
    """The path; if positions were not kept, its one frame is the last state, at time t."""
    ts = labels(frames.ts, measure.dtype) if isinstance(frames.ts, np.ndarray) else frames.ts
    observed = {name: Observed(ts, values) for name, values in frames.observed.items()}
    if frames.states is None:
        last = labels(np.asarray([t], np.float64), measure.dtype) if known(t) else t[None]
        return Path(last, jax.tree.map(lambda leaf: leaf[None], state), status, stats, measure, observed)
    return Path(ts, jax.tree.map(array, frames.states), status, stats, measure, observed)


def dataset(measure: FlowingMeasure, frames: Frames, attributes: dict[str, Any]) -> "xarray.Dataset":
    """Frames as an xarray dataset."""
    import xarray

    variables = {} if frames.states is None else {k: (a, np.asarray(v)) for k, (a, v) in measure.frame(frames.states).items()}
    for name, values in frames.observed.items():
        variables[f"observed.{name}"] = (("time", *(f"{name}.{i}" for i in range(1, values.ndim))), np.asarray(values))
    return xarray.Dataset(variables, coords={"time": np.asarray(frames.ts)}, attrs=measure.about | attributes)


def _frames(data: "xarray.Dataset", measure: FlowingMeasure) -> Frames:
    """The frames of a dataset that `dataset` made."""
    names = list(measure.frame(jax.tree.map(lambda leaf: leaf[None], measure.state)))
    leaves = [data[name].values for name in names if name in data and "time" in data[name].dims]
    states = jax.tree.unflatten(jax.tree.structure(measure.state), leaves) if leaves else None
    observed = {str(n).removeprefix("observed."): data[n].values for n in data.data_vars if str(n).startswith("observed.")}
    return Frames(data["time"].values, states, observed)


def load_path(folder: PathLike) -> Path:
    """The path in a folder that `solve(..., out=folder)` or `path.save(folder)` wrote; of a run that was interrupted, what it has."""
    store = Store(check_folder("folder", folder))
    header, ended, datasets, last = store.header(), store.status(), store.blocks(), store.last()
    if not datasets:
        raise ValueError(f"{str(folder)!r} holds a run without frames: it was interrupted before its first block")
    measure = _measure(datasets[0] if last is None else last)
    frames = gather([_frames(data, measure) for data in datasets])
    t, state = (frames.ts[-1] if len(frames.ts) else 0.0), None
    if last is not None:
        final = _frames(last, measure)
        t, state = final.ts[-1], jax.tree.map(lambda leaf: jnp.asarray(leaf[-1]), final.states)
    status = Status("interrupted", float(t)) if ended is None else Status(ended["kind"], ended["time"], ended["within"])
    stats = {} if ended is None else ended["stats"]
    return path_of(frames, state, t, status, stats | {"provenance": header["provenance"]}, measure)


def save_path(path: Path, folder: PathLike) -> None:
    """Write a path as one block."""
    last = Frames(np.asarray(path.ts), jax.tree.map(np.asarray, path.states), {})
    frames = last._replace(observed={name: np.asarray(o.values) for name, o in path.observed.items()})
    kept = all(len(o.ts) == len(path.ts) for o in path.observed.values())
    if not kept:
        frames = frames._replace(ts=np.asarray(next(iter(path.observed.values())).ts), states=None)
    stats = dict(path.stats)
    about = stats.pop("provenance", provenance(measure=path.measure))
    store = Store.open(folder, fingerprint((frames, path.measure)), about)
    if not kept:
        store.replace_last(dataset(path.measure, last, {}))
    store.append(0, dataset(path.measure, frames, {"figures": "{}"}), None)
    store.finish(ending(path.status, stats))


def ending(status: Status, stats: dict[str, Any]) -> dict[str, Any]:
    """How a run ended, as its file has it."""
    return {"kind": status.kind, "time": float(status.time), "within": float(status.within), "stats": stats}


def _measure(data: "xarray.Dataset") -> FlowingMeasure:
    """The measure of the first frame of a dataset."""
    # Grids are loaded when they are first used.
    import attnflow.measures.grid  # noqa: F401

    name = data.attrs["picture"]
    if name not in FlowingMeasure.kinds:
        raise ValueError(f"the file holds a {name}, which is no picture known here; import the module that defines it first")
    return FlowingMeasure.kinds[name].from_frame(data.attrs, {str(variable): data[variable].values for variable in data.data_vars})
