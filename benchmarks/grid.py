"""Densities: the rate on the circle against its FFTs alone, the cost against the number of cells, and a large box under the Sinkhorn law.

A rate of change has four real FFTs: of the weights, of the kernel, and back for the sum and the two parts of the mean (these three as one
batch). The peer is those transforms on arrays of the same sizes and nothing else. On the box sums over cells are matrix products, one axis
after the other; the exponent is that of n cells in R^2, where they cost n^1.5 and the rest n.
"""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import attnflow as af
from benchmarks.table import Row, best

# A flow takes many rates in one compiled loop, so that is how one is timed: the cost of a call from Python is not in it.
IN_A_LOOP = 100


@eqx.filter_jit
def rates(law, mu, times):
    return jax.lax.fori_loop(0, times, lambda _, mass: mass + 1e-9 * mu.with_state(mass).rate(law.at(mu.with_state(mass))), mu.mass)


@jax.jit
def transforms(weights, kernel, times):
    def once(_, weights):
        # The kernel changes from one time to the next, or its transform would leave the loop.
        modes, coefficients = jnp.fft.rfft(weights), jnp.fft.rfft(kernel + weights[0])
        sums = jnp.fft.irfft(jnp.stack([modes * coefficients] * 3) * jnp.arange(1.0, 4)[:, None], len(weights))
        return weights + 1e-9 * (sums[0] + sums[1] + sums[2])

    return jax.lax.fori_loop(0, times, once, weights)


def ring(cells: int) -> af.Grid:
    return af.Grid.from_density(lambda x: (1 + 0.5 * x[:, 0]) / (2 * np.pi), [af.Circle(cells)])


def box(cells: int) -> af.Grid:
    def density(x):
        return jnp.exp(-jnp.sum(x**2, axis=1) / 2) / (2 * np.pi)

    return af.Grid.from_density(density, [af.Interval(-8, 8, cells)] * 2)


def cost(law: af.Attention, mu: af.Grid, repeats: int) -> float:
    return best(lambda: rates(law, mu, 1), repeats)


def exponent(sizes: list[int], times: list[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def run() -> list[Row]:
    rows = []
    with jax.enable_x64(True):
        law, mu = af.simple_attention(9.0, 2), ring(4096)
        kernel = jnp.exp(9 * (jnp.cos(jnp.arange(4096) * 2 * np.pi / 4096) - 1))
        ours, ffts = (
            np.min(
                [
                    (best(lambda: rates(law, mu, IN_A_LOOP), 3), best(lambda: transforms(mu.weights, kernel, IN_A_LOOP), 3))
                    for _ in range(20)
                ],
                axis=0,
            )
            / IN_A_LOOP
        )
        question = "one rate on the circle, 4096 cells, beta = 9, against its FFTs alone"
        rows.append(Row(question, f"{ours * 1e6:.0f} us", f"{ffts * 1e6:.0f} us", f"{ours / ffts:.2f}x", "<= 2x", ours <= 2 * ffts))
        sizes = [2**k for k in (14, 16, 18, 20)]
        times = [cost(law, ring(n), 10) for n in sizes]
        alone = [best(lambda n=n: transforms(jnp.ones(n), jnp.ones(n), 1), 10) for n in sizes]
        power, peer = exponent(sizes, times), exponent(sizes, alone)
        # n log n over this range has the exponent 1.06, and memory adds to it for both.
        rows.append(
            Row(
                "the same, 2^14 to 2^20 cells, time ~ n^a",
                f"a = {power:.2f}, {times[-1] * 1e3:.0f} ms at 2^20",
                f"a = {peer:.2f}, {alone[-1] * 1e3:.0f} ms",
                f"{power - peer:+.2f}",
                "<= +0.1",
                power <= peer + 0.1,
            )
        )
        sizes = [128, 256, 512]
        times = [cost(af.simple_attention(1.0, 2), box(n), 3) for n in sizes]
        power = exponent([n**2 for n in sizes], times)
        rows.append(
            Row(
                "softmax on a box in R^2, 128^2 to 512^2 cells, time ~ n^a",
                f"{times[-1]:.2f} s at 512^2",
                "",
                f"a = {power:.2f}",
                "<= 1.5",
                power <= 1.5,
            )
        )
        rows.append(sinkhorn_box())
    return rows


def sinkhorn_box() -> Row:
    """512 x 512 cells, 50 steps of the Sinkhorn law."""
    mu, law = box(512), af.Attention(af.dot_product(np.eye(2), np.eye(2)), np.eye(2), af.Sinkhorn(tolerance=1e-8))
    step = 0.4 / (8 / (16 / 512) * 2)
    start = time.perf_counter()
    path = af.solve(law, mu, t1=50 * step, step=step, save_at=6, progress=True)
    took = time.perf_counter() - start
    streamed = 50 * 2 * path.stats["sinkhorn"]["iterations"] * mu.mass.size**2 * 1.05e-9
    question = (
        f"Sinkhorn law on 512 x 512 cells, {path.stats['accepted_steps']} steps, mass off by {abs(float(path.final.mass.sum()) - 1):.0e}"
    )
    return Row(question, f"{took:.0f} s", f"{streamed:.0e} s, pairs, extrapolated", f"{streamed / took:.0f}x", "minutes", took < 600)
