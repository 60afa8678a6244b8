"""What does writing frames cost? A run of about one second a frame, with `out` and without."""

import tempfile
import time

import diffrax
import jax
import numpy as np

import attnflow as af
from benchmarks.table import Row

FRAMES, SECONDS = 9, 1.0
HEUN = diffrax.Heun()


def run() -> list[Row]:
    with jax.enable_x64(True):
        mu = af.samplers.sphere(4096, 3, key=jax.random.key(0))
        law = af.simple_attention(4.0, 3)
        velocity = jax.jit(lambda mu: mu.rate(law.at(mu)))
        velocity(mu).block_until_ready()
        start = time.perf_counter()
        velocity(mu).block_until_ready()
        once = time.perf_counter() - start
        # Fixed steps of Heun's two stages, as many a frame as make a second.
        steps = max(1, round(SECONDS / (2 * once)))

        def timed(out: str | None) -> float:
            start = time.perf_counter()
            af.solve(law, mu, t1=1.0, save_at=FRAMES, step=1 / ((FRAMES - 1) * steps), solver=HEUN, out=out)
            return time.perf_counter() - start

        timed(None)
        best = [np.inf, np.inf]
        for _ in range(3):
            with tempfile.TemporaryDirectory() as folder:
                best = np.minimum(best, [timed(folder), timed(None)])
    ours, peer = best
    question = f"writing {FRAMES} frames of 4096 tokens, {peer / (FRAMES - 1):.1f} s a frame, against keeping them in memory"
    return [Row(question, f"{ours:.2f} s", f"{peer:.2f} s", f"{ours / peer:.3f}", "<= 1.05", bool(ours <= 1.05 * peer))]
