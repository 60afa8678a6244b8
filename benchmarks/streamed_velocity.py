"""65,536 tokens in R^3, one softmax velocity in float32, against torch's scaled_dot_product_attention."""

import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

import attnflow as af
from benchmarks.peers import has
from benchmarks.table import Row, compare

N, D = 65_536, 3


def tokens() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)


def velocity(points: jax.Array) -> jax.Array:
    law = af.Attention(af.dot_product(np.eye(D, dtype=np.float32), np.eye(D, dtype=np.float32)), np.eye(D, dtype=np.float32))
    mu = af.Particles(points)
    return jax.block_until_ready(law.at(mu, sums=af.Streamed())(mu.points))


def exact(points: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The velocity of some rows in float64."""
    y = points.astype(np.float64)
    logits = y[rows] @ y.T
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (p @ y) / p.sum(axis=1, keepdims=True)


def peak_megabytes() -> float:
    """How much one velocity adds to the peak memory of a fresh process that has everything imported."""
    out = subprocess.run([sys.executable, "-m", "benchmarks.streamed_velocity"], capture_output=True, text=True, check=True)
    return float(out.stdout)


def run() -> list[Row]:
    memory = peak_megabytes()
    added = Row(
        f"softmax velocity, n = {N}, d = {D}, float32: peak memory added",
        f"{memory:.0f} MB",
        f"n x n: {N**2 * 4 / 1e6:.0f} MB",
        "",
        "< 1000 MB",
        memory < 1000,
    )
    return [against_torch(), added] if has("torch") else [added]


def against_torch() -> Row:
    import torch

    torch.set_num_threads(2)
    host = tokens()
    points, batch = jnp.asarray(host), torch.tensor(host)[None, None]

    def peer() -> np.ndarray:
        return torch.nn.functional.scaled_dot_product_attention(batch, batch, batch, scale=1.0)[0, 0].numpy()

    fast, slow = compare(lambda: velocity(points), peer, 3)
    rows = np.random.default_rng(1).choice(N, 200, replace=False)
    truth = exact(host, rows)
    errors = [float(np.abs(np.asarray(found)[rows] - truth).max()) for found in (velocity(points), peer())]
    question = f"softmax velocity, n = {N}, d = {D}, float32 (error {errors[0]:.0e}; torch {errors[1]:.0e})"
    pairs = N**2 / 1e9
    return Row(
        question, f"{pairs / fast:.2f} Gpairs/s", f"{pairs / slow:.2f} Gpairs/s", f"{slow / fast:.2f}x", ">= 1.5x", slow >= 1.5 * fast
    )


def high_water() -> float:
    """The largest resident size of this process so far, in megabytes (not inherited from the parent, as that of getrusage is)."""
    return int(re.findall(r"VmHWM:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[0]) / 1024


if __name__ == "__main__":
    cloud = jnp.asarray(tokens())
    before = high_water()
    velocity(cloud)
    print(high_water() - before)
