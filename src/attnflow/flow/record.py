"""What a run has recorded so far: frames, observables and figures, in memory or on disk, and the path made of them."""

import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from attnflow.flow.observe import Observed
from attnflow.flow.path import Path, Status
from attnflow.flow.store import Store, fingerprint, provenance
from attnflow.measures import FlowingMeasure, Gaussian, Particles
from attnflow.spaces import Euclidean, Sphere

_SPACES = {"Euclidean": Euclidean, "Sphere": Sphere}
# The figures of a segment that are kept with its frames.
_FIGURES = ("reached", "stopped", "out_of_steps", "finite", "accepted", "rejected")


class Frames(NamedTuple):
    """Some frames: times `[k]`, states and observables with a leading axis k. `states` is `None` if positions are not kept."""

    ts: Any
    states: PyTree
    observed: dict[str, Any]


class Record:
    """The blocks of a run in order, each some frames and the figures of its segment."""

    def __init__(self, measure: FlowingMeasure, store: Store | None = None):
        self.measure, self.store = measure, store
        self.blocks: list[Frames] = []
        self.figures: list[dict[str, Any]] = []
        if store is not None:
            for data in store.blocks():
                self.blocks.append(_frames(data, measure))
                self.figures.append(json.loads(data.attrs["figures"]))

    def add(self, frames: Frames, figures: dict[str, Any], t: Any, state: PyTree, carry: PyTree) -> None:
        """One more block, which ended at t in `state`; on disk it is complete when this returns."""
        self.blocks.append(frames)
        self.figures.append(figures)
        if self.store is not None:
            if frames.states is None:
                last = Frames(np.asarray(t)[None], jax.tree.map(lambda leaf: np.asarray(leaf)[None], state), {})
                self.store.replace_last(dataset(self.measure, last, {}))
            self.store.append(len(self.blocks) - 1, dataset(self.measure, frames, {"figures": json.dumps(figures)}), carry)

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
        return jax.tree.map(lambda leaf: leaf[keep], frames)


def figures_of(outcome: Any) -> dict[str, Any]:
    """The figures of a segment as plain numbers."""
    plain = {name: np.asarray(getattr(outcome, name)).item() for name in _FIGURES}
    return plain | {"report": jax.tree.map(lambda leaf: np.asarray(leaf).item(), outcome.report)}


def path_of(frames: Frames, state: PyTree, t: Any, status: Status, stats: dict[str, Any], measure: FlowingMeasure) -> Path:
    """The path; if positions were not kept, its one frame is the last state."""
    observed = {name: Observed(frames.ts, values) for name, values in frames.observed.items()}
    if frames.states is None:
        return Path(jnp.asarray(t)[None], jax.tree.map(lambda leaf: leaf[None], state), status, stats, measure, observed)
    return Path(jnp.asarray(frames.ts), jax.tree.map(jnp.asarray, frames.states), status, stats, measure, observed)


def dataset(measure: FlowingMeasure, frames: Frames, attributes: dict[str, Any]) -> Any:
    """Frames as an xarray dataset."""
    import xarray

    variables = {} if frames.states is None else {k: (a, np.asarray(v)) for k, (a, v) in measure.frame(frames.states).items()}
    for name, values in frames.observed.items():
        variables[f"observed.{name}"] = (("time", *(f"{name}.{i}" for i in range(1, values.ndim))), np.asarray(values))
    about = {"picture": type(measure).__name__, "space": type(measure.space).__name__}
    return xarray.Dataset(variables, coords={"time": np.asarray(frames.ts)}, attrs=about | attributes)


def _frames(data: Any, measure: FlowingMeasure) -> Frames:
    """The frames of a dataset that `dataset` made."""
    names = list(measure.frame(jax.tree.map(lambda leaf: leaf[None], measure.state)))
    leaves = [data[name].values for name in names if name in data and "time" in data[name].dims]
    states = jax.tree.unflatten(jax.tree.structure(measure.state), leaves) if leaves else None
    observed = {str(n).removeprefix("observed."): data[n].values for n in data.data_vars if str(n).startswith("observed.")}
    return Frames(data["time"].values, states, observed)


def load_path(folder: Any) -> Path:
    """The path in a folder that `solve(..., out=folder)` or `path.save(folder)` wrote; of a run that was cut off, what it has."""
    store = Store(folder)
    header, ended = store.header(), store.status()
    datasets = store.blocks()
    if not datasets:
        raise ValueError(f"{str(folder)!r} holds a run without frames: it was cut off before its first block")
    last = store.last()
    measure = _measure(datasets[0] if last is None else last)
    record = Record(measure)
    record.blocks = [_frames(data, measure) for data in datasets]
    frames = record.gather()
    if last is not None:
        final = _frames(last, measure)
        t, state = final.ts[-1], jax.tree.map(lambda leaf: jnp.asarray(leaf[-1]), final.states)
    else:
        t, state = frames.ts[-1], None
    status = Status("interrupted", float(t)) if ended is None else Status(ended["kind"], ended["time"])
    stats = {} if ended is None else ended["stats"]
    return path_of(frames, state, t, status, stats | {"provenance": header["provenance"]}, measure)


def save_path(path: Path, folder: Any) -> None:
    """Write a path as one block. Observables at other times than the frames (host ones) are not written."""
    ts = np.asarray(path.ts)
    observed = {name: np.asarray(o.values) for name, o in path.observed.items() if np.array_equal(o.ts, ts)}
    frames = Frames(ts, jax.tree.map(np.asarray, path.states), observed)
    stats = dict(path.stats)
    about = stats.pop("provenance", provenance(measure=path.measure))
    store = Store.open(folder, fingerprint((frames, path.measure)), about)
    store.append(0, dataset(path.measure, frames, {"figures": "{}"}), None)
    store.finish({"kind": path.status.kind, "time": float(path.status.time), "stats": stats})


def _measure(data: Any) -> FlowingMeasure:
    """The measure of the first frame of a dataset."""
    if data.attrs["picture"] == "Gaussian":
        return Gaussian(data["mean"].values[0], data["cov"].values[0])
    extra = {name: data[name].values for name in ("weights", "order") if name in data}
    return Particles(data["points"].values[0], space=_SPACES[data.attrs["space"]](), **extra)
