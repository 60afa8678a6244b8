"""Does a causal mask save time? A streamed velocity with it, against the same without: half the pairs are never looked at."""

import jax
import jax.numpy as jnp
import numpy as np

import attnflow as af
from benchmarks.table import Row, compare

N, D = 16_384, 16


def run() -> list[Row]:
    points = jnp.asarray(np.random.default_rng(0).normal(size=(N, D)).astype(np.float32) / 4)
    eye = np.eye(D, dtype=np.float32)

    def timed(mask):
        law = af.Attention(af.dot_product(eye, eye), eye, mask=mask)
        rate = jax.jit(lambda x: af.Particles(x).rate(law.at(af.Particles(x))))
        return lambda: rate(points).block_until_ready()

    causal, free = compare(timed(af.Causal()), timed(None), 7)
    question = f"causal velocity, n = {N}, d = {D}, against the unmasked one"
    return [Row(question, f"{causal * 1e3:.0f} ms", f"{free * 1e3:.0f} ms", f"{causal / free:.2f}", "<= 0.65", causal <= 0.65 * free)]
