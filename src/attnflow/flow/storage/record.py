"""What a run has recorded so far: frames, observables and figures, in memory or on disk, and the path made of them."""

import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from attnflow._check import folder as check_folder
from attnflow.flow.observe import Observed, series
from attnflow.flow.path import Path, Status
from attnflow.flow.steps.times import labels
from attnflow.flow.storage.folder import Store, fingerprint, provenance
from attnflow.measures import FlowingMeasure
from attnflow.numerics.arrays import array, known

# The figures of a segment that are kept with its frames.
_FIGURES = ("frames", "reached", "left", "stopped", "out_of_steps", "finite", "speed", "pace", "accepted", "rejected")


class Frames(NamedTuple):
    """Some frames: times `[k]`, states and observables with a leading axis k. `states` is `None` if positions are not kept."""

    ts: Any
    states: PyTree
    observed: dict[str, Any]


class End(NamedTuple):
    """Where a segment ended, and what the host observables were there."""

    t: float
    values: dict[str, Any]


class Record:
    """The blocks of a run in order, each some frames, the figures of its segment and its end."""

    def __init__(self, measure: FlowingMeasure, store: Store | None = None):
        self.measure, self.store = measure, store
        self.blocks: list[Frames] = []
        self.figures: list[dict[str, Any]] = []
        self.ends: list[End] = []
        if store is not None:
            for data in store.blocks():
                self.blocks.append(_frames(data, measure))
                self.figures.append(json.loads(data.attrs["figures"]))
                self.ends += _ends(data)

    def add(self, frames: Frames, figures: dict[str, Any], end: End, state: PyTree, carry: PyTree) -> None:
        """One more block, which ended in `state`; on disk it is complete when this returns."""
        self.blocks.append(frames)
        self.figures.append(figures)
        self.ends.append(end)
        if self.store is not None:
            if frames.states is None:
                last = Frames(np.asarray([end.t]), jax.tree.map(lambda leaf: np.asarray(leaf)[None], state), {})
                self.store.replace_last(dataset(self.measure, last, [], {}))
            self.store.append(len(self.blocks) - 1, dataset(self.measure, frames, [end], {"figures": json.dumps(figures)}), carry)

    @property
    def ended(self) -> bool:
        """Whether the last segment stopped before its end."""
        return bool(self.figures) and not (self.figures[-1]["reached"] and self.figures[-1]["finite"])

    def gather(self) -> Frames:
        """All frames that were reached and are finite, in order."""
        frames = jax.tree.map(lambda *leaves: np.concatenate(leaves), *self.blocks)
        # A frame that was not reached has time infinity; fixed steps may run on into NaN.
        keep = np.isfinite(frames.ts)
        for leaf in jax.tree.leaves(frames.states):
            keep &= np.isfinite(leaf).all(axis=tuple(range(1, leaf.ndim)))
        frames = jax.tree.map(lambda leaf: leaf[keep], frames)
        # A segment that ended where it began has the last frame of the one before again.
        later = np.append(True, np.diff(frames.ts) > 0)[: len(frames.ts)]
        return jax.tree.map(lambda leaf: leaf[later], frames)

    def on_host(self) -> dict[str, Observed]:
        """The host observables at the ends of the segments."""
        names = self.ends[0].values if self.ends else {}
        return {name: series([end.t for end in self.ends], [end.values[name] for end in self.ends]) for name in names}


def figures_of(outcome: Any) -> dict[str, Any]:
    """The figures of a segment as plain numbers."""
    plain = {name: np.asarray(getattr(outcome, name)).item() for name in _FIGURES}
    plain["time"] = float(np.asarray(outcome.time, np.float64).sum())
    return plain | {"report": jax.tree.map(lambda leaf: np.asarray(leaf).item(), outcome.report)}


def path_of(
    frames: Frames,
    on_host: dict[str, Observed],
    state: PyTree,
    t: Any,
    status: Status,
    stats: dict[str, Any],
    measure: FlowingMeasure,
) -> Path:
    """The path; if positions were not kept, its one frame is the last state."""
    ts = labels(frames.ts, measure.dtype) if isinstance(frames.ts, np.ndarray) else frames.ts
    observed = {name: Observed(ts, values) for name, values in frames.observed.items()} | on_host
    if frames.states is None:
        last = labels(np.asarray([t], np.float64), measure.dtype) if known(t) else t[None]
        return Path(last, jax.tree.map(lambda leaf: leaf[None], state), status, stats, measure, observed)
    return Path(ts, jax.tree.map(array, frames.states), status, stats, measure, observed)


def dataset(measure: FlowingMeasure, frames: Frames, ends: list[End], attributes: dict[str, Any]) -> Any:
    """Frames, and the host observables at the ends of segments, as an xarray dataset."""
    import xarray

    variables = {} if frames.states is None else {k: (a, np.asarray(v)) for k, (a, v) in measure.frame(frames.states).items()}
    for name, values in frames.observed.items():
        variables[f"observed.{name}"] = (("time", *(f"{name}.{i}" for i in range(1, values.ndim))), np.asarray(values))
    for name in ends[0].values if ends else ():
        values = np.stack([np.asarray(end.values[name]) for end in ends])
        variables[f"host.{name}"] = (("end", *(f"{name}.{i}" for i in range(1, values.ndim))), values)
    about = measure.about
    coords = {"time": np.asarray(frames.ts), "end": np.asarray([end.t for end in ends])}
    return xarray.Dataset(variables, coords=coords, attrs=about | attributes)


def _frames(data: Any, measure: FlowingMeasure) -> Frames:
    """The frames of a dataset that `dataset` made."""
    names = list(measure.frame(jax.tree.map(lambda leaf: leaf[None], measure.state)))
    leaves = [data[name].values for name in names if name in data and "time" in data[name].dims]
    states = jax.tree.unflatten(jax.tree.structure(measure.state), leaves) if leaves else None
    observed = {str(n).removeprefix("observed."): data[n].values for n in data.data_vars if str(n).startswith("observed.")}
    return Frames(data["time"].values, states, observed)


def _ends(data: Any) -> list[End]:
    """The ends of segments in a dataset."""
    values = {str(n).removeprefix("host."): data[n].values for n in data.data_vars if str(n).startswith("host.")}
    return [End(float(t), {name: found[i] for name, found in values.items()}) for i, t in enumerate(data["end"].values)]


def load_path(folder: Any) -> Path:
    """The path in a folder that `solve(..., out=folder)` or `path.save(folder)` wrote; of a run that was cut off, what it has."""
    store = Store(check_folder("folder", folder))
    header, ended = store.header(), store.status()
    datasets = store.blocks()
    if not datasets:
        raise ValueError(f"{str(folder)!r} holds a run without frames: it was cut off before its first block")
    last = store.last()
    measure = _measure(datasets[0] if last is None else last)
    record = Record(measure)
    record.blocks = [_frames(data, measure) for data in datasets]
    record.ends = [end for data in datasets for end in _ends(data)]
    frames = record.gather()
    if last is not None:
        final = _frames(last, measure)
        t, state = final.ts[-1], jax.tree.map(lambda leaf: jnp.asarray(leaf[-1]), final.states)
    else:
        t, state = frames.ts[-1], None
    status = Status("interrupted", float(t)) if ended is None else Status(ended["kind"], ended["time"], ended.get("within", 0.0))
    stats = {} if ended is None else ended["stats"]
    return path_of(frames, record.on_host(), state, t, status, stats | {"provenance": header["provenance"]}, measure)


def save_path(path: Path, folder: Any) -> None:
    """Write a path as one block."""
    compiled = {name: o for name, o in path.observed.items() if not o.on_host}
    host = {name: o for name, o in path.observed.items() if o.on_host}
    ends = [
        End(float(t), {name: np.asarray(o.values)[i] for name, o in host.items()})
        for i, t in enumerate(next(iter(host.values())).ts if host else [])
    ]
    last = Frames(np.asarray(path.ts), jax.tree.map(np.asarray, path.states), {})
    frames = last._replace(observed={name: np.asarray(o.values) for name, o in compiled.items()})
    kept = all(len(o.ts) == len(path.ts) for o in compiled.values())
    if not kept:
        frames = frames._replace(ts=np.asarray(next(iter(compiled.values())).ts), states=None)
    stats = dict(path.stats)
    about = stats.pop("provenance", provenance(measure=path.measure))
    store = Store.open(folder, fingerprint((frames, path.measure)), about)
    if not kept:
        store.replace_last(dataset(path.measure, last, [], {}))
    store.append(0, dataset(path.measure, frames, ends, {"figures": "{}"}), None)
    store.finish({"kind": path.status.kind, "time": float(path.status.time), "within": path.status.within, "stats": stats})


def _measure(data: Any) -> FlowingMeasure:
    """The measure of the first frame of a dataset."""
    # Grids are loaded when they are first used.
    import attnflow.measures.grid  # noqa: F401

    name = data.attrs["picture"]
    if name not in FlowingMeasure.kinds:
        raise ValueError(f"the file holds a {name}, which is no picture known here; import the module that defines it first")
    return FlowingMeasure.kinds[name].from_frame(data.attrs, {str(variable): data[variable].values for variable in data.data_vars})
