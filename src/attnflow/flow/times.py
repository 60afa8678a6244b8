"""When frames are saved, and how they are grouped into segments."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow._arrays import floats, known


class Times(NamedTuple):
    """The span of a run, the times of the frames after t0, and whether t0 is a frame itself."""

    t0: Float[Array, ""]
    t1: Float[Array, ""]
    frames: Float[Array, " t"]
    first: bool


def times(t0: Any, t1: Any, save_at: Any, dtype: Any) -> Times:
    """The frames asked for by `save_at`, a count or increasing times; t1 is always the last one."""
    t0, t1 = floats("t0", t0, "").astype(dtype), floats("t1", t1, "").astype(dtype)
    if known(t0, t1) and not t1 > t0:
        raise ValueError(f"t1 must be later than t0, got t0 = {float(t0)}, t1 = {float(t1)}")
    if isinstance(save_at, int | np.integer):
        if save_at < 1:
            raise ValueError(f"save_at must be at least 1 frame, got {save_at}")
        frames = jnp.linspace(t0, t1, save_at)[1:] if save_at > 1 else t1[None]
        return Times(t0, t1, frames, save_at > 1)
    frames = floats("save_at", save_at, "t").astype(dtype)
    if not known(frames, t0, t1):
        raise ValueError("save_at must be a count of frames inside jit and grad, got times")
    host, start, end = np.asarray(frames), np.asarray(t0), np.asarray(t1)
    if (np.diff(host) <= 0).any():
        raise ValueError(f"save_at must be increasing, got {host.tolist()}")
    if host[0] < start or host[-1] > end:
        raise ValueError(f"save_at must lie in [t0, t1] = [{start}, {end}], got times from {host[0]} to {host[-1]}")
    after = host[host > start]
    after = after if len(after) and after[-1] == end else np.append(after, end)
    return Times(t0, t1, jnp.asarray(after), bool(host[0] == start))


def blocks(frames: Float[Array, " t"], size: int) -> np.ndarray:
    """The frame times as equal rows, one a segment, the last row filled up with t1.

    A state of few numbers makes cheap steps, so that a few segments do; a large one gets a segment a frame.
    """
    host = np.asarray(frames)
    count = min(len(host), max(2, size // 64))
    width = -(-len(host) // count)
    rows = -(-len(host) // width)
    return np.append(host, np.full(rows * width - len(host), host[-1])).reshape(rows, width)
