"""Sums in O(n log n) at a million tokens, against the best engine over all pairs, extrapolated from 65,536 tokens."""

import time
from collections.abc import Callable

import jax
import numpy as np

import attnflow as af
from benchmarks.peers import has
from benchmarks.table import Row, best

N, SMALL, TOLERANCE = 1_000_000, 65_536, 1e-9


def run() -> list[Row]:
    eye = np.eye(2)
    with jax.enable_x64(True):
        plane = af.Attention(af.squared_distance(eye, eye, temperature=0.02), eye)
        rows = [
            *compare_pairs(
                "circle, beta = 9", af.simple_attention(9.0, 2), lambda n: af.samplers.sphere(n, 2, key=jax.random.key(0)), 1000
            ),
            *compare_pairs("S^2, beta = 9", af.simple_attention(9.0, 3), lambda n: af.samplers.sphere(n, 3, key=jax.random.key(0)), 200),
            *compare_pairs("R^2, e^{-|x-y|^2 / (2 0.01)}", plane, lambda n: af.samplers.normal(n, 2, key=jax.random.key(0)), 1000),
            energy_and_gradient(),
            growth(),
        ]
    return rows


def compare_pairs(name: str, law: af.Attention, draw: Callable[[int], af.Particles], target: float) -> list[Row]:
    """One velocity of a million tokens to the tolerance, against the best of streamed sums and torch."""
    mu, few = draw(N), draw(SMALL)
    plan = af.plan(law, mu, af.Spectral(TOLERANCE))
    velocity = jax.jit(lambda x: law.at(mu.with_state(x), sums=plan)(x))
    fast = best(lambda: velocity(mu.points), 3)
    error = float(law.at(mu, sums=plan).report["sums"]["error"])
    streamed = jax.jit(lambda x: law.at(few.with_state(x), sums=af.Streamed())(x))
    pairs = min(best(lambda: streamed(few.points), 2), torch_seconds(np.asarray(few.points))) * (N / SMALL) ** 2
    question = f"{name}, n = {N:.0e}, error {error:.0e}, against all pairs (extrapolated from n = {SMALL})"
    ok = bool(pairs >= target * fast and error <= TOLERANCE)
    return [Row(question, f"{fast:.2f} s", f"{pairs:.0f} s", f"{pairs / fast:.0f}x", f">= {target}x", ok)]


def energy_and_gradient() -> Row:
    """The energy on S^2 with its gradient, against one velocity."""
    mu, law = af.samplers.sphere(N, 3, key=jax.random.key(0)), af.simple_attention(9.0, 3)
    plan = af.plan(law, mu, af.Spectral(TOLERANCE))
    both = jax.jit(jax.value_and_grad(lambda x: af.energy(mu.with_state(x), 9.0, log_scale=-9.0, sums=plan)))
    velocity = jax.jit(lambda x: law.at(mu.with_state(x), sums=plan)(x))
    ours, peer = best(lambda: both(mu.points), 2), best(lambda: velocity(mu.points), 2)
    question = "energy and its gradient on S^2, n = 1e+06, against one velocity"
    return Row(question, f"{ours:.2f} s", f"{peer:.2f} s", f"{ours / peer:.1f}", "<= 10", ours <= 10 * peer)


def growth() -> Row:
    """How the cost grows on the circle from 1e5 to 1e7 tokens."""
    law, sizes, seconds = af.simple_attention(9.0, 2), (10**5, 10**6, 10**7), []
    for n in sizes:
        mu = af.samplers.sphere(n, 2, key=jax.random.key(0))
        plan = af.plan(law, mu, af.Spectral(TOLERANCE))
        velocity = jax.jit(lambda x, mu=mu, plan=plan: law.at(mu.with_state(x), sums=plan)(x))
        seconds.append(best(lambda velocity=velocity, mu=mu: velocity(mu.points), 3))
    slope = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
    times = ", ".join(f"{s:.2g}" for s in seconds)
    return Row(f"circle, n = 1e5, 1e6, 1e7: {times} s", f"n^{slope:.2f}", "n^2", "", "<= n^1.1", slope <= 1.1)


def torch_seconds(points: np.ndarray) -> float:
    """torch's attention over the same number of tokens; for ever without torch."""
    if not has("torch"):
        return float("inf")
    import torch

    torch.set_num_threads(2)
    batch = torch.tensor(points)[None, None]
    start = time.perf_counter()
    torch.nn.functional.scaled_dot_product_attention(batch, batch, batch, scale=1.0)
    return time.perf_counter() - start
