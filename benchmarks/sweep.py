"""A phase diagram: 32 tokens on the circle to T = 30, 90 inverse temperatures x 2048 starts, against an Euler loop in torch.

torch steps all members of a chunk together in float64 with dt = 0.1; the size of a chunk is the best of a few. It would take minutes, so
it runs a part of the starts and its time is scaled; it runs before and after ours, and the best time counts. The errors of both are for
the same starts, against rtol 1e-10.
"""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attnflow as af
from benchmarks.peers import has
from benchmarks.table import Row

N, END, DT, STARTS, PART, CHECKED = 32, 30.0, 0.1, 2048, 16, 8
BETAS = np.linspace(0.1, 9.0, 90, dtype=np.float32)
FRAMES = np.linspace(0.0, END, 31, dtype=np.float32)
CHUNKS = (64, 256, 1440)
# Whole batches of this size, so that the warm-up compiles what is timed.
BATCH, WARM = 1024, 512


def make(key: Any, beta: Any) -> Any:
    return af.simple_attention(beta, 2), af.samplers.sphere(N, 2, key=key, dtype=jnp.float32)


def make_double(key: Any, beta: Any) -> Any:
    """The same starts in double precision."""
    return af.simple_attention(beta, 2), af.Particles(make(key, beta)[1].points.astype(jnp.float64), space=af.Sphere())


def cosine(mu: Any) -> Any:
    """The mean cosine of all pairs."""
    return jnp.sum(mu.mean**2)


def euler(starts: np.ndarray, chunk: int, end: float = END) -> np.ndarray:
    """The mean cosine at the frames, `[beta, start, time]`, from `starts [start, n, 2]`."""
    import torch

    torch.set_num_threads(2)
    points = torch.tensor(starts, dtype=torch.float64).repeat(len(BETAS), 1, 1)
    betas = torch.tensor(BETAS, dtype=torch.float64).repeat_interleave(len(starts))[:, None, None]
    every = round(FRAMES[1] / DT)
    found = []
    for x, beta in zip(points.split(chunk), betas.split(chunk)):
        frames = [(x.mean(1) ** 2).sum(-1)]
        for step in range(round(end / DT)):
            v = torch.softmax(beta * (x @ x.transpose(1, 2)), dim=-1) @ x
            x = x + DT * (v - (v * x).sum(-1, keepdim=True) * x)
            x = x / x.norm(dim=-1, keepdim=True)
            if (step + 1) % every == 0:
                frames.append((x.mean(1) ** 2).sum(-1))
        found.append(torch.stack(frames, dim=-1))
    return torch.cat(found).reshape(len(BETAS), len(starts), -1).numpy()


def run() -> list[Row]:
    if not has("torch"):
        return []

    def ours(seeds: Any, make: Any = make, rtol: float = 1e-3) -> np.ndarray:
        data = af.sweep(make, {"beta": BETAS}, seeds, END, save_at=FRAMES, observe={"cosine": cosine}, rtol=rtol, batch=BATCH)
        return data.cosine.values

    starts = np.asarray(jax.vmap(lambda seed: make(jax.random.key(seed), 1.0)[1].points)(jnp.arange(PART)))
    ours(WARM)
    trials = {chunk: min(_timed(lambda chunk=chunk: euler(starts, chunk, 1.0))[0] for _ in range(3)) for chunk in CHUNKS}
    chunk = min(CHUNKS, key=lambda chunk: trials[chunk])
    before, peer = _timed(lambda: euler(starts, chunk))
    fast, found = _timed(lambda: ours(STARTS))
    after, _ = _timed(lambda: euler(starts, chunk))
    slow = min(before, after, trials[chunk] * END) * STARTS / PART
    with jax.enable_x64(True):
        exact = ours(CHECKED, make_double, 1e-10)
    errors = [_error(values[:, :CHECKED], exact) for values in (found, peer)]
    return [
        Row(
            f"phase diagram, {len(BETAS)} betas x {STARTS} starts, n = 32, circle, T = 30 (peer: 1/{STARTS // PART} of it, scaled)",
            f"{fast:.0f} s",
            f"{slow:.0f} s torch Euler",
            f"{slow / fast:.1f}x",
            ">= 10x",
            slow >= 10 * fast,
        ),
        Row("its error in the mean cosine, root mean square", f"{errors[0]:.1e}", f"{errors[1]:.1e}", "", "below", errors[0] < errors[1]),
    ]


def _timed(function: Any) -> tuple[float, np.ndarray]:
    start = time.perf_counter()
    values = function()
    return time.perf_counter() - start, values


def _error(values: np.ndarray, exact: np.ndarray) -> float:
    return float(np.sqrt(((values - exact) ** 2).mean()))
