"""How fast is the streamed engine? Velocities of 16,384 tokens against torch's scaled_dot_product_attention, and against the machine."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attnflow as af
from attnflow.sums import native
from benchmarks.peers import has
from benchmarks.table import Row, best, compare

N, SIZE = 16_384, 1536
# What the ratio to torch must reach, by dimension.
TARGETS = {
    "float32": {2: 2.0, 3: 2.0, 8: 1.5, 16: 1.0, 64: 1.0, 256: 1.0},
    "float64": {2: 1.1, 16: 1.1, 64: 1.1},
}
# Of these the fraction of the machine's limit is told too.
LIMITED = (2, 16, 64)
# The multiplications and multiply-adds of an exponential of this precision: a polynomial of degree 5 or 11, and three or four around it.
EXP = {"float32": 8, "float64": 15}


def run() -> list[Row]:
    if not has("torch"):
        return []
    import torch

    torch.set_num_threads(2)
    kernel = "native" if native.available() else "XLA tiles"
    rows = []
    for dtype, targets in TARGETS.items():
        with jax.enable_x64(dtype == "float64"):
            rows += _rows(dtype, targets, kernel)
    return rows


def _rows(dtype: str, targets: dict[int, float], kernel: str) -> Iterator[Row]:
    product, flops = matrix_product(dtype)
    for d, target in targets.items():
        host = (np.random.default_rng(0).normal(size=(N, d)) / d**0.25).astype(dtype)
        ours = velocity(host)
        fast, slow = compare(ours, attention(host), 5 if d < 64 else 3)
        question = f"softmax velocity, n = {N}, d = {d}, {dtype} ({kernel})"
        yield Row(question, _rate(fast), _rate(slow), f"{slow / fast:.2f}x", f">= {target}x", slow >= target * fast)
        if d in LIMITED:
            # In turns with the product, as the machine may have other work.
            fast, slow = compare(ours, product, 5)
            limit = N**2 * (4 * d + 2 * EXP[dtype]) * slow / flops
            question = f"the same, d = {d}, against its multiply-adds at the rate of a large matrix product"
            yield Row(question, _rate(fast), _rate(limit), f"{limit / fast:.0%}", "", True)
            # The same with the exponentials at the rate of XLA's, which the native kernel's own are faster than.
            limit = N**2 * 4 * d * slow / flops + N**2 * exponential(dtype)
            question = f"the same, d = {d}, against its products at that rate and its exponentials at the rate of XLA's exp"
            yield Row(question, _rate(fast), _rate(limit), f"{limit / fast:.0%}", "", True)
        if dtype == "float32" and d <= 3 and has("pykeops"):
            fast, slow = compare(ours, keops(host), 3)
            yield Row(f"the same, d = {d}, against KeOps", _rate(fast), _rate(slow), f"{slow / fast:.2f}x", ">= 2x", slow >= 2 * fast)


def velocity(host: np.ndarray) -> Callable[[], Any]:
    """A velocity by the streamed engine."""
    points, eye = jnp.asarray(host), np.eye(host.shape[1], dtype=host.dtype)
    law = af.Attention(af.dot_product(eye, eye), eye)
    rate = jax.jit(lambda x: af.Particles(x).rate(law.at(af.Particles(x), sums=af.Streamed())))
    return lambda: rate(points).block_until_ready()


def attention(host: np.ndarray) -> Callable[[], Any]:
    """The same by torch."""
    import torch

    batch = torch.tensor(host)[None, None]
    return lambda: torch.nn.functional.scaled_dot_product_attention(batch, batch, batch, scale=1.0)


def keops(host: np.ndarray) -> Callable[[], Any]:
    """The same by KeOps."""
    import torch
    from pykeops.torch import LazyTensor

    points = torch.tensor(host)
    x, y = LazyTensor(points[:, None]), LazyTensor(points[None])
    return lambda: (x | y).sumsoftmaxweight(y, axis=1)


def matrix_product(dtype: str) -> tuple[Callable[[], Any], float]:
    """A large matrix product by torch, and its floating-point operations."""
    import torch

    a = torch.tensor(np.random.default_rng(0).normal(size=(SIZE, SIZE)).astype(dtype))
    return lambda: a @ a, 2 * SIZE**3


def exponential(dtype: str) -> float:
    """Seconds of one exponential by XLA, in an array that stays in the cache."""
    size, times = 2**15, 2000
    x = jnp.linspace(-1, 0, size, dtype=dtype)
    many = jax.jit(lambda x: jax.lax.fori_loop(0, times, lambda _, y: jnp.exp(-y), x))
    return best(lambda: many(x), 3) / (size * times)


def _rate(seconds: float) -> str:
    return f"{N**2 / seconds / 1e9:.2f} Gpairs/s"
