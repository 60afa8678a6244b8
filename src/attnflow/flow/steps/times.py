"""When frames are saved, and how they are grouped into segments. Times that are known are doubles on the host, whatever the precision of
the state: a compiled segment is given times since it began."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow.numerics.arrays import array, floats, known

Known = Float[np.ndarray, ""]


class Times(NamedTuple):
    """The span of a run, the times of the frames after t0, and whether t0 is a frame itself."""

    t0: Float[Array, ""] | Known
    t1: Float[Array, ""] | Known
    frames: Float[Array, " t"] | Float[np.ndarray, " t"]
    first: bool

    @property
    def length(self) -> Any:
        """`t1 - t0`, a plain number if it is known."""
        return float(self.t1 - self.t0) if known(self) else self.t1 - self.t0

    @property
    def ts(self) -> Any:
        """The times of all frames."""
        return (np if known(self) else jnp).concatenate([self.t0[None], self.frames]) if self.first else self.frames

    def since(self, dtype: Any) -> "Since":
        """The span as one segment."""
        return Since(widest(self.t0), array(self.frames - self.t0, dtype), array(self.t1 - self.t0, dtype), self.first)


class Since(NamedTuple):
    """When a segment begins, the times of its frames since then and its length, and whether the beginning is a frame."""

    start: Float[Array, ""]
    frames: Float[Array, " t"]
    length: Float[Array, ""]
    first: bool

    @property
    def ts(self) -> Float[Array, " t"]:
        return jnp.concatenate([jnp.zeros_like(self.frames[:1]), self.frames]) if self.first else self.frames


def widest(t: Any) -> Float[Array, ""]:
    """A time as an array of the widest precision that JAX has."""
    return array(np.asarray(t, jnp.result_type(float))) if known(t) else t.astype(jnp.result_type(float))


def labels(ts: np.ndarray, dtype: Any) -> Any:
    """The times of frames in the precision of the state; in double if that could not tell them apart to a thousandth of their distance."""
    rounding = np.abs(ts.astype(dtype).astype(np.float64) - ts)
    if len(ts) and (rounding.max() <= 1e-3 * np.diff(ts).min() if len(ts) > 1 else ts[0] == 0 or rounding[0] <= 1e-6 * abs(ts[0])):
        return array(ts.astype(dtype))
    return ts


def times(t0: Any, t1: Any, save_at: Any, dtype: Any) -> Times:
    """The frames asked for by `save_at`, a count or increasing times; t1 is always the last one."""
    t0, t1 = _time("t0", t0, "", dtype), _time("t1", t1, "", dtype)
    if known(t0, t1) and not float(t1) > float(t0):
        raise ValueError(f"t1 must be later than t0, got t0 = {float(t0)}, t1 = {float(t1)}")
    if isinstance(save_at, int | np.integer):
        count = check.count("save_at", save_at)
        if known(t0, t1):
            frames = np.linspace(t0, t1, max(count, 2))[1:]
        else:
            t0, t1 = (array(t, dtype) for t in (t0, t1))
            frames = jnp.linspace(t0, t1, max(count, 2))[1:]
        return Times(t0, t1, frames, count > 1)
    frames = _time("save_at", save_at, "t", dtype)
    if not known(frames, t0, t1):
        raise ValueError("save_at must be a count of frames inside jit and grad, got times")
    start, end, host = np.asarray(t0), np.asarray(t1), np.asarray(frames)
    # Times such as np.geomspace makes miss the ends by round-off; they mean the ends.
    given = np.asarray(save_at).dtype
    slack = 8 * np.finfo(np.float32 if given == np.float32 else np.float64).eps * max(abs(start), abs(end))
    host = np.where(np.abs(host - start) <= slack, start, np.where(np.abs(host - end) <= slack, end, host))
    if (np.diff(host) <= 0).any():
        i = int(np.argmax(np.diff(host) <= 0))
        raise ValueError(f"save_at must be increasing, got {host[i]} then {host[i + 1]} at [{i}]")
    if host[0] < start or host[-1] > end:
        raise ValueError(f"save_at must lie in [t0, t1] = [{start}, {end}], got times from {host[0]} to {host[-1]}")
    after = host[host > start]
    after = after if len(after) and after[-1] == end else np.append(after, end)
    return Times(t0, t1, after, bool(host[0] == start))


def _time(name: str, value: Any, shape: str, dtype: Any) -> Any:
    """Times in double on the host, or being traced in the precision of the state."""
    checked = floats(name, np.asarray(value, jnp.result_type(float)) if isinstance(value, np.ndarray) else value, shape)
    return np.asarray(value, np.float64) if known(checked) else checked.astype(dtype)


class Block(NamedTuple):
    """One segment: where it ends, and the times of its frames, filled up to a common length; the first `count` are real."""

    end: float
    ts: np.ndarray
    count: int

    def after(self, t: float) -> "Block":
        """What is left of it after time t."""
        rest = self.ts[: self.count][self.ts[: self.count] > t]
        return Block(self.end, np.append(rest, np.full(len(self.ts) - len(rest), self.end)), len(rest))


def width_of(span: Times, size: int, step: float | None) -> float:
    """How long the segments of a run over a state of `size` numbers are: in whole frames, or for fixed steps in steps on average.

    A state of few numbers makes cheap steps, so that a few segments do; a large one gets a segment for each frame.
    """
    segments = min(len(span.frames), max(2, size // 64))
    return float(-(-len(span.frames) // segments)) if step is None else _steps(span, step) / segments


def blocks(span: Times, width: float, step: float | None, t: float) -> list[Block]:
    """The segments of a run from time t on. Those of a run that goes on are those of the run that was never interrupted.

    Adaptive steps end on the last frame of each segment. Fixed steps end on their own grid, which frames must not disturb.
    """
    frames, t0, t1 = np.asarray(span.frames), float(span.t0), float(span.t1)
    frames = frames[frames > t]
    if step is None:
        count = int(width)
        groups = [frames[i : i + count] for i in range(0, len(frames), count)]
        ends = [float(group[-1]) for group in groups]
    else:
        steps = _steps(span, step)
        marks = np.unique((width * np.arange(1, np.ceil(steps / width))).round())
        marks = t0 + step * marks[(marks > 0) & (marks < steps)]
        # Round-off must not leave a sliver after the time that was reached.
        ends = [*marks[marks > t + 1e-6 * step].tolist(), t1]
        owner = np.searchsorted(ends, frames)
        groups = [frames[owner == i] for i in range(len(ends))]
        count = max(1, *map(len, groups))
    return [Block(end, np.append(g, np.full(count - len(g), end)), len(g)) for end, g in zip(ends, groups)]


def _steps(span: Times, step: float) -> int:
    """How many steps of this size there are in the span."""
    return max(1, int(np.ceil((float(span.t1) - float(span.t0)) / step - 1e-6)))
