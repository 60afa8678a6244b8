"""Which engine, when the user does not say."""

import math
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from attnflow._arrays import known
from attnflow._check import instance
from attnflow.sums.atoms import Atoms
from attnflow.sums.base import Engine
from attnflow.sums.engine import Dense, Streamed
from attnflow.sums.logit import Logit
from attnflow.sums.mask import Causal, Sight
from attnflow.sums.plan import installed, planned
from attnflow.sums.spectral import Transform

# Up to this many pairs (n = 1448, 16 MB in float64) one pass and tiles take the same time; at four times that, tiles take about half.
DENSE_PAIRS = 2**21
# Below this many pairs tiles take less than a plan.
SPECTRAL_PAIRS = 2**28
# Seconds a token, a token and mode it is spread over, and an operation of the FFT: on two cores;
# `benchmarks/cost_model.py` fits them, and they tell the time within a factor of 2.2.
SPECTRAL_SECONDS = (8e-8, 4e-10, 3.5e-9)
# Seconds a pair in a streamed softmax in at most three dimensions: an exponential and little else.
PAIR_SECONDS = {"float64": 1.05e-9, "float32": 3.5e-10}


def choose(queries: int, keys: int, sums: Engine | None = None) -> Engine:
    """The engine over all `queries x keys` pairs; `sums` if it is given. Whether it is native is settled here."""
    check_engine(sums)
    return (sums or (Dense() if queries * keys <= DENSE_PAIRS else Streamed())).over(queries, keys)


def check_engine(sums: Any) -> None:
    """Raise if this is not an engine."""
    if sums is not None:
        instance("sums", sums, Engine, "None, Dense(), Streamed(), Spectral() or what af.plan made of it")


def automatic(logit: Logit, x: Float[Array, "m d"], atoms: Atoms, sight: Sight | None = None, stays: bool = True) -> Engine:
    """The engine expected to be the fastest: by size, dimension, mask, precision, and for spectral sums by the modes they would take."""
    m, n = len(x), len(atoms.points)
    if atoms.engine is not None and m == n and not (known(logit) and m * n >= SPECTRAL_PAIRS and _mixes(logit)):
        return atoms.engine
    tiles = choose(m, n)
    if m * n < SPECTRAL_PAIRS or logit.dim > 3 or not known(logit, x, atoms) or not installed():
        return tiles
    if sight is not None and not (isinstance(sight.mask, Causal) and logit.dim == 2):
        return tiles
    plan, _ = planned(None, logit, x, atoms, sight, stays)
    if plan is None or spectral_seconds(plan, m, n) > PAIR_SECONDS[x.dtype.name] * m * n:
        return tiles
    return plan


def _mixes(logit: Logit) -> bool:
    """Whether a logit mixes the axes, so that a lattice is no help."""
    A = np.asarray(logit.A)
    return bool(np.abs(A - np.diag(np.diagonal(A))).max() > 0) if len(A) == 2 else False


def spectral_seconds(plan: Transform, queries: int, keys: int) -> float:
    """The time of a spectral sum on two cores."""
    exact = plan.exact * keys * PAIR_SECONDS["float64"]
    return float(np.dot(spectral_work(plan, queries, keys), SPECTRAL_SECONDS) + exact)


def spectral_work(plan: Transform, queries: int, keys: int) -> tuple[float, float, float]:
    """What a spectral sum does, transform by transform: tokens, tokens times the modes they are spread over, and the FFT's operations."""
    width, d = np.ceil(-np.log10(plan.delta)) + 1, len(plan.modes)
    back = (d + 2) // 2 if not plan.circle else 2
    tokens, grid = keys + back * queries, 2.0**d * math.prod(plan.modes)
    return float(tokens), float(tokens * width**d), float((1 + back) * grid * np.log2(grid))
