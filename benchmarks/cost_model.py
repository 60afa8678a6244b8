"""The constants of the cost model in `sums/engines/choose.py`, fitted on this machine: `python -m benchmarks.cost_model`.

Not a row of the table: it prints the constants in use, what a fit gives, and how far modeled and measured times differ.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

import attnflow as af
from attnflow.sums import Pairs, fitted
from attnflow.sums.engines.choose import PAIR_SECONDS, spectral_seconds, spectral_work
from attnflow.sums.kernel import average
from attnflow.sums.logits.logit import Logit
from attnflow.sums.rows import Atoms
from benchmarks.table import best

SMALL = 16_384


def main() -> None:
    for dtype in ("float32", "float64"):
        with jax.enable_x64(dtype == "float64"):
            pairs(dtype)
    with jax.enable_x64(True):
        spectral()


def pairs(dtype: str) -> None:
    """The time of a pair."""
    found = {}
    for d in (1, 2, 3):
        points = jnp.asarray(np.random.default_rng(0).normal(size=(SMALL, d)).astype(dtype))
        atoms = Atoms(points, jnp.full(SMALL, -np.log(SMALL), dtype))
        velocity = jax.jit(lambda x, atoms=atoms, d=d: average(Logit(jnp.eye(d, dtype=dtype)), x, atoms, af.Streamed())[1])
        found[d] = best(lambda velocity=velocity, points=points: velocity(points), 3) / SMALL**2
    print(f"{dtype}: a pair takes {np.mean(list(found.values())):.2e} seconds, in use {PAIR_SECONDS[dtype]:.2e}")
    print("  " + ", ".join(f"d = {d}: {seconds:.2e}" for d, seconds in found.items()))


def spectral() -> None:
    """The time of a spectral sum: a token, a token and a spread mode, a mode of the grid."""
    plans, seconds = [], []
    for d, n, width, tolerance in itertools.product((1, 2, 3), (10**5, 10**6), (0.3, 0.05), (1e-5, 1e-9)):
        points = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, size=(n, d)))
        atoms, eye = Atoms(points, jnp.full(n, -np.log(n))), jnp.eye(d) / width**2
        logit = Logit(eye, eye, eye, psd=True)
        plan = fitted(Pairs(logit, points, atoms), af.Spectral(tolerance))
        if not hasattr(plan, "modes") or plan.exact:
            continue
        velocity = jax.jit(lambda x, atoms=atoms, logit=logit, plan=plan: average(logit, x, atoms, plan)[1])
        plans.append((plan, n))
        seconds.append(best(lambda velocity=velocity, points=points: velocity(points), 2))
    work = np.array([spectral_work(plan, n, n) for plan, n in plans])
    # Relative errors, none negative.
    constants, _ = scipy.optimize.nnls(work / np.array(seconds)[:, None], np.ones(len(seconds)))
    print("spectral: " + ", ".join(f"{c:.2e}" for c in constants) + " seconds a token, a token and spread mode, a mode of the grid")
    for (plan, n), measured, row in zip(plans, seconds, work):
        line = f"  d = {len(plan.modes)}, n = {n:.0e}, {plan.modes}, delta {plan.delta:.0e}: measured {measured:.3f}"
        print(f"{line}, fit {row @ constants:.3f}, in use {spectral_seconds(plan, n, n):.3f}")


if __name__ == "__main__":
    main()
