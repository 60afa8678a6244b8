"""The bridge of a cloud to itself against OTT, POT and GeomLoss, at the same error of the marginals; a million tokens; paths of bridges.

Errors are `max_j |column_j / weight_j - 1|` with exact rows for ours; the peers stop at 1e-6 in their own norm, which is weaker (the sum of
the violations). Where a peer would take more than minutes, its time is that of some iterations times the number it needs, and the row
says so.
"""

import resource
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attnflow as af
from attnflow.sums import log_integral
from attnflow.sums.rows import Atoms
from benchmarks.peers import has
from benchmarks.table import Row, best

EPS, TOLERANCE = 0.01, 1e-6


def run() -> list[Row]:
    with jax.enable_x64(True):
        return [*four_thousand(), *many(65_536), million(), *wide(), path_of_bridges()]


def four_thousand() -> list[Row]:
    """n = 4000 in the plane, eps = 0.01."""
    points = np.random.default_rng(0).normal(size=(4000, 2))
    mu = af.Particles(points)
    fast = best(lambda: af.self_bridge(mu, EPS, tolerance=TOLERANCE).kernel.scaling.g, 3)
    found = af.self_bridge(mu, EPS, tolerance=TOLERANCE)
    ours = f"{fast:.2f} s, {int(found.iterations)} iterations, error {float(found.error):.0e}"
    rows = []
    if has("ott"):
        default, steps = ott(points, {})
        tuned, few = ott(points, tuning())
        rows.append(row("OTT, default", ours, fast, default, f"{steps} iterations", 100))
        rows.append(row("OTT, parallel, momentum 0.5", ours, fast, tuned, f"{few} iterations", 4))
        rows.append(row("POT, log domain", ours, fast, pot(points, 10) * steps / 10, f"from 10 of the {steps} iterations of OTT", 10))
    if has("torch") and has("geomloss"):
        slow, error = geomloss(points)
        rows.append(row("GeomLoss, scaling 0.9", ours, fast, slow, f"stops at error {error:.0e}", 1))
    return rows


def many(n: int) -> list[Row]:
    """65,536 tokens; the peer is OTT tuned, the only one that ends within an hour, from one iteration on all pairs in batches."""
    if not has("ott"):
        return []
    points = np.random.default_rng(0).normal(size=(n, 2))
    mu = af.Particles(points)
    fast = best(lambda: af.self_bridge(mu, EPS, tolerance=TOLERANCE).kernel.scaling.g, 1)
    found = af.self_bridge(mu, EPS, tolerance=TOLERANCE)
    small, steps = 8192, ott(points[:4000], tuning())[1]
    one = ott_iterations(points[:small], 2)
    slow = one * steps * (n / small) ** 2
    detail = f"{steps} iterations, extrapolated from n = {small}"
    return [row(f"OTT tuned, n = {n}", f"{fast:.2f} s, error {float(found.error):.0e}, {engine(found)}", fast, slow, detail, 50)]


def million() -> Row:
    """A million tokens: the time of a bridge in those of one sum over the tokens."""
    mu = af.samplers.normal(1_000_000, 2, key=jax.random.key(0))
    found = af.self_bridge(mu, EPS, tolerance=TOLERANCE)
    fast = best(lambda: af.self_bridge(mu, EPS, tolerance=TOLERANCE).kernel.scaling.g, 1)
    logit, atoms = found.kernel.logit, Atoms(found.kernel.clouds.keys.points, mu.log_weights + found.kernel.scaling.g)
    matvec = best(lambda: log_integral(logit, atoms.points, atoms, found.kernel.engine), 3)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    question = f"bridge of 1e6 tokens in R^2, error {float(found.error):.0e}, {int(found.iterations)} iterations, peak {peak:.1f} GB"
    return Row(
        question,
        f"{fast:.1f} s",
        f"one sum {matvec:.2f} s",
        f"{fast / matvec:.1f} sums",
        "<= 16, < 4 GB",
        bool(fast <= 16 * matvec and peak < 4),
    )


def wide() -> list[Row]:
    """One iteration at n = 8192, d = 64."""
    if not has("ott"):
        return []
    points = (np.random.default_rng(0).normal(size=(8192, 64)) / 8).astype(np.float32)
    mu = af.Particles(points)

    def ours(steps: int) -> Any:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return af.self_bridge(mu, 0.3, tolerance=1e-30, max_iterations=steps).kernel.scaling

    # The iteration ends at round-off, maybe before its budget.
    steps = int(ours(12).iterations - ours(2).iterations)
    fast = (best(lambda: ours(12).g, 2) - best(lambda: ours(2).g, 2)) / steps
    slow = ott_iterations(points, 10)
    return [
        Row(
            "an iteration at n = 8192, d = 64, float32, against OTT tuned",
            f"{fast:.2f} s",
            f"{slow:.2f} s",
            f"{slow / fast:.1f}x",
            ">= 1x",
            slow >= fast,
        )
    ]


def path_of_bridges() -> Row:
    """A heat flow of 1e5 tokens in the plane, 100 steps: iterations from extrapolated starts, against cold ones."""
    mu = af.samplers.normal(100_000, 2, key=jax.random.key(0))
    path = af.gradient_flow(af.Heat(), mu, EPS, 100, tolerance=TOLERANCE)
    warm = float(np.mean(np.asarray(path.stats["sinkhorn"]["iterations"])[2:]))
    cold = float(np.mean([int(af.self_bridge(path[i], EPS, tolerance=TOLERANCE).iterations) for i in (10, 50, 90)]))
    question = "heat flow of 1e5 tokens in R^2, 100 steps: mean iterations of a bridge, extrapolated starts against cold ones"
    return Row(question, f"{warm:.1f}", f"{cold:.1f}", f"{warm / cold:.2f}", "<= 0.7", warm <= 0.7 * cold)


def row(peer: str, ours: str, fast: float, slow: float, detail: str, target: float) -> Row:
    return Row(
        f"self-transport in R^2, eps = {EPS}, against {peer}",
        ours,
        f"{slow:.1f} s, {detail}",
        f"{slow / fast:.0f}x",
        f">= {target}x",
        slow >= target * fast,
    )


def engine(found: Any) -> str:
    return type(found.kernel.engine).__name__.lower()


def tuning() -> dict[str, Any]:
    """OTT's solver for equal marginals: both potentials at once, averaged."""
    from ott.solvers.linear import acceleration

    return {"parallel_dual_updates": True, "momentum": acceleration.Momentum(value=0.5), "inner_iterations": 1}


def ott(points: np.ndarray, options: dict[str, Any]) -> tuple[float, int]:
    """Seconds, after compilation, and iterations of OTT to the tolerance."""
    from ott.geometry import pointcloud
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import sinkhorn

    x = jnp.asarray(points)

    def solve(x: Any, threshold: Any) -> Any:
        # Its cost is |x-y|^2, twice ours.
        problem = linear_problem.LinearProblem(pointcloud.PointCloud(x, x, epsilon=2 * EPS))
        out = sinkhorn.Sinkhorn(threshold=threshold, max_iterations=10_000, **options)(problem)
        return out.f, out.n_iters

    compiled = jax.jit(solve, static_argnums=1).lower(x, TOLERANCE).compile()
    start = time.perf_counter()
    _, count = jax.block_until_ready(compiled(x))
    return time.perf_counter() - start, int(count)


def ott_iterations(points: np.ndarray, count: int) -> float:
    """Seconds of one iteration of OTT tuned, on all pairs in batches where they do not fit."""
    from ott.geometry import pointcloud
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import sinkhorn

    x = jnp.asarray(points)

    def solve(x: Any, steps: int) -> Any:
        geometry = pointcloud.PointCloud(x, x, epsilon=2 * EPS, batch_size=1024 if len(points) > 10_000 else None)
        limits = {"min_iterations": steps, "max_iterations": steps, "threshold": 0.0}
        return sinkhorn.Sinkhorn(**(tuning() | limits))(linear_problem.LinearProblem(geometry)).f

    compiled = {steps: jax.jit(solve, static_argnums=1).lower(x, steps).compile() for steps in (1, 1 + count)}
    seconds = {steps: best(lambda steps=steps: compiled[steps](x), 2) for steps in compiled}
    return (seconds[1 + count] - seconds[1]) / count


def pot(points: np.ndarray, steps: int) -> float:
    """Seconds of so many iterations of POT in the log domain."""
    import warnings

    import ot

    weights = np.full(len(points), 1 / len(points))
    cost = 0.5 * ot.dist(points, points)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        ot.sinkhorn(weights, weights, cost, EPS, method="sinkhorn_log", numItermax=steps, stopThr=0.0)
    return time.perf_counter() - start


def geomloss(points: np.ndarray) -> tuple[float, float]:
    """Seconds of GeomLoss, and the error of the columns of its plan, in our norm."""
    import torch
    from geomloss import SamplesLoss

    torch.set_num_threads(2)
    x = torch.tensor(points)
    loss = SamplesLoss("sinkhorn", p=2, blur=EPS**0.5, scaling=0.9, debias=False, potentials=True, backend="tensorized")
    start = time.perf_counter()
    _, g = loss(x, x)
    seconds = time.perf_counter() - start
    kernel = af.self_bridge(af.Particles(points), EPS, start=np.asarray(g).ravel(), tolerance=1e30).kernel
    return seconds, float(kernel.scaling.error)
