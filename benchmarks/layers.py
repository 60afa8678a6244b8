"""Do layers cost more than their velocities? 100 layers of n = 4096 tokens in R^64, against 100 single velocities in the same engine."""

import jax
import jax.numpy as jnp
import numpy as np

import attnflow as af
from benchmarks.table import Row, compare

N, D, DEPTH = 4096, 64, 100


def run() -> list[Row]:
    points = jnp.asarray(np.random.default_rng(0).normal(size=(N, D)).astype(np.float32))
    eye = np.eye(D, dtype=np.float32)
    law, mu = af.Attention(af.dot_product(eye, eye, temperature=8.0), -0.1 * eye), af.Particles(points)
    velocity = jax.jit(lambda x: af.Particles(x).rate(law.at(af.Particles(x))))

    def stack() -> None:
        jax.block_until_ready(af.layers([law], mu, depth=DEPTH, step=0.1).final.points)

    def singles() -> None:
        for _ in range(DEPTH):
            velocity(points).block_until_ready()

    ours, peer = compare(stack, singles, 2)
    question = f"{DEPTH} layers, n = {N}, d = {D}, against as many single velocities"
    return [Row(question, f"{ours:.2f} s", f"{peer:.2f} s", f"{ours / peer:.2f}", "<= 1.10", ours <= 1.10 * peer)]
