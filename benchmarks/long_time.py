"""Long times: a staircase of mergers at beta = 4000 in physical time, and the clusters of a million tokens.

The peers: for the staircase there is none, because a stepper of t would need about e^{7460} time units; the row says how long it took. For
clusters DBSCAN's rule with one neighbor is the same as union by radius; the peer is SciPy's tree listing all pairs, on the most tokens for
which the list fits, extrapolated by the number of pairs.
"""

import time

import jax
import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

import attnflow as af
from benchmarks.table import Row

N, CENTRES, SPREAD, RADIUS = 10**6, 50, 0.02, 0.05


def run() -> list[Row]:
    with jax.enable_x64(True):
        return [stairs(), clusters()]


def stairs() -> Row:
    """Five tokens on the circle."""
    angles = np.array([0.0, 0.9, 2.1, 3.3, 4.9])
    mu = af.Particles(np.stack([np.cos(angles), np.sin(angles)], axis=1), space=af.Sphere())
    start = time.perf_counter()
    found = af.staircase(af.simple_attention(4000.0, 2), mu)
    took = time.perf_counter() - start
    question = f"staircase at beta = 4000 to log t = {found.log_times[-1]:.0f}, compilation and all"
    return Row(question, f"{took:.1f} s", "", "", "<= 60 s", took <= 60)


def clusters() -> Row:
    """A million tokens in R^3 in dense clusters."""
    rng = np.random.default_rng(0)
    points = rng.uniform(-2, 2, size=(CENTRES, 3))[rng.integers(0, CENTRES, N)] + SPREAD * rng.normal(size=(N, 3))
    mu = af.Particles(points)
    start = time.perf_counter()
    found = af.clusters(mu, RADIUS)
    took = time.perf_counter() - start
    few = points[: N // 32]
    start = time.perf_counter()
    pairs = cKDTree(few).query_pairs(RADIUS, output_type="ndarray")
    graph = coo_array((np.ones(len(pairs), np.int8), pairs.T), shape=(len(few), len(few)))
    connected_components(graph, directed=False)
    peer = (time.perf_counter() - start) * 32**2
    question = f"{found.count} clusters of {N:,} tokens in R^3"
    return Row(question, f"{took:.1f} s", f"{peer:.0f} s, all pairs by SciPy, extrapolated", f"{peer / took:.0f}x", "<= 5 s", took <= 5)
