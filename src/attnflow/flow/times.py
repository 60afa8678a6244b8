"""When frames are saved, and how they are grouped into segments."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._arrays import array, floats, known


class Times(NamedTuple):
    """The span of a run, the times of the frames after t0, and whether t0 is a frame itself."""

    t0: Float[Array, ""]
    t1: Float[Array, ""]
    frames: Float[Array, " t"]
    first: bool


def times(t0: Any, t1: Any, save_at: Any, dtype: Any) -> Times:
    """The frames asked for by `save_at`, a count or increasing times; t1 is always the last one."""
    t0, t1 = array(floats("t0", t0, ""), dtype), array(floats("t1", t1, ""), dtype)
    if known(t0, t1) and not float(t1) > float(t0):
        raise ValueError(f"t1 must be later than t0, got t0 = {float(t0)}, t1 = {float(t1)}")
    if isinstance(save_at, int | np.integer):
        if save_at < 1:
            raise ValueError(f"save_at must be at least 1 frame, got {save_at}")
        count = int(save_at)
        if known(t0, t1):
            frames = array(np.linspace(np.asarray(t0), np.asarray(t1), max(count, 2), dtype=dtype)[1:])
        else:
            frames = jnp.linspace(t0, t1, max(count, 2))[1:]
        return Times(t0, t1, frames, count > 1)
    frames = array(floats("save_at", save_at, "t"), dtype)
    if not known(frames, t0, t1):
        raise ValueError("save_at must be a count of frames inside jit and grad, got times")
    start, end = np.asarray(t0), np.asarray(t1)
    # Times such as np.geomspace makes miss the ends by round-off; they mean the ends.
    slack = 8 * np.finfo(end.dtype).eps * max(abs(start), abs(end))
    host = np.asarray(frames)
    host = np.where(np.abs(host - start) <= slack, start, np.where(np.abs(host - end) <= slack, end, host))
    if (np.diff(host) <= 0).any():
        i = int(np.argmax(np.diff(host) <= 0))
        raise ValueError(f"save_at must be increasing, got {host[i]} then {host[i + 1]} at [{i}]")
    if host[0] < start or host[-1] > end:
        raise ValueError(f"save_at must lie in [t0, t1] = [{start}, {end}], got times from {host[0]} to {host[-1]}")
    after = host[host > start]
    after = after if len(after) and after[-1] == end else np.append(after, end)
    return Times(t0, t1, array(after), bool(host[0] == start))


class Block(NamedTuple):
    """One segment: where it ends, and the times of its frames, filled up to a common length; the first `count` are real."""

    end: float
    ts: np.ndarray
    count: int

    def after(self, t: float) -> "Block":
        """What is left of it after time t."""
        rest = self.ts[: self.count][self.ts[: self.count] > t]
        return Block(self.end, np.append(rest, np.full(len(self.ts) - len(rest), self.end)).astype(self.ts.dtype), len(rest))


def blocks(span: Times, size: int, step: float | None) -> list[Block]:
    """The segments of a run over a state of `size` numbers.

    A state of few numbers makes cheap steps, so that a few segments do; a large one gets a segment a frame. Adaptive steps end on the
    last frame of each segment. Fixed steps end on their own grid, which frames must not disturb.
    """
    frames, t0, t1 = np.asarray(span.frames), float(span.t0), float(span.t1)
    segments = min(len(frames), max(2, size // 64))
    if step is None:
        width = -(-len(frames) // segments)
        groups = [frames[i : i + width] for i in range(0, len(frames), width)]
        ends = [float(group[-1]) for group in groups]
    else:
        steps = max(1, int(np.ceil((t1 - t0) / step - 1e-6)))
        marks = np.unique(np.linspace(0, steps, segments + 1).round())[1:]
        ends = [*(t0 + step * marks[:-1]).astype(frames.dtype).tolist(), t1]
        owner = np.searchsorted(ends, frames)
        groups = [frames[owner == i] for i in range(len(ends))]
        width = max(1, *map(len, groups))
    return [Block(end, np.append(g, np.full(width - len(g), end)).astype(frames.dtype), len(g)) for end, g in zip(ends, groups)]
