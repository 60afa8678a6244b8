"""Which engine, when the user does not say."""

import math

import equinox as eqx
import numpy as np

from attnflow._check import instance
from attnflow.numerics.arrays import known
from attnflow.sums.engines.base import Engine, Request
from attnflow.sums.engines.plan import installed, maskable, planned
from attnflow.sums.engines.spectral import Transform
from attnflow.sums.engines.tiled import over_pairs
from attnflow.sums.logits.logit import Logit
from attnflow.sums.rows import Pairs

# Below this many pairs tiles take less than a plan.
SPECTRAL_PAIRS = 2**28
# Seconds per token, per token and mode that it is spread over, and per operation of the FFT, on two cores: `benchmarks/cost_model.py` fits
# them, and they predict the time within a factor of 2.2.
SPECTRAL_SECONDS = (8e-8, 4e-10, 3.5e-9)
# Seconds per pair in a streamed softmax in at most three dimensions: an exponential and little else.
PAIR_SECONDS = {"float64": 1.05e-9, "float32": 3.5e-10}


class Automatic(Request):
    """The engine expected to be the fastest: by size, dimension, mask, precision, and for spectral sums by the modes they would take."""

    # Whether the series on the circle may serve tokens that lie on one.
    circle: bool = eqx.field(static=True, default=True)

    differences = True

    def fit(self, pairs: Pairs) -> Engine:
        atoms, m, n = pairs.atoms, len(pairs.x), len(pairs.atoms.points)
        if atoms.engine is not None and m == n and not (known(pairs.logit) and m * n >= SPECTRAL_PAIRS and _mixes(pairs.logit)):
            return atoms.engine
        tiles = self.over(m, n)
        if not self.by_value(pairs.logit.dim, m * n) or not (known(pairs) and pairs.logit.keys_are_tokens and atoms.values is None):
            return tiles
        if not installed() or not maskable(pairs):
            return tiles
        plan, _ = planned(None, pairs, self.circle)
        if plan is None or spectral_seconds(plan, m, n) > PAIR_SECONDS[pairs.x.dtype.name] * m * n:
            return tiles
        return plan

    def over(self, queries: int, keys: int) -> Engine:
        return over_pairs(queries, keys)

    def by_value(self, dim: int, pairs: int) -> bool:
        return pairs >= SPECTRAL_PAIRS and dim <= 3

    def for_motion(self) -> "Automatic":
        return Automatic(circle=False)


_AUTOMATIC = Automatic()


def request(sums: Request | None) -> Request:
    """What was asked for; `None` is the automatic choice."""
    return _AUTOMATIC if sums is None else sums


def choose(queries: int, keys: int, sums: Request | None = None) -> Engine:
    """The engine for sums over all pairs of this number of `queries` and `keys`: by default, or as asked for by `sums`."""
    check_request(sums)
    return request(sums).over(queries, keys)


def check_request(sums: object) -> None:
    """Raise unless `sums` is a request or `None`."""
    if sums is not None:
        instance("sums", sums, Request, "None, Dense(), Streamed(), Spectral() or what af.plan made of it")


def _mixes(logit: Logit) -> bool:
    """Whether a logit in the plane mixes the two axes, so that sums over a lattice are not fast."""
    A = np.asarray(logit.form.A)
    return bool(np.abs(A - np.diag(np.diagonal(A))).max() > 0) if len(A) == 2 else False


def spectral_seconds(plan: Transform, queries: int, keys: int) -> float:
    """The expected time of a spectral sum on two cores."""
    exact = plan.exact * keys * PAIR_SECONDS["float64"]
    return float(np.dot(spectral_work(plan, queries, keys), SPECTRAL_SECONDS) + exact)


def spectral_work(plan: Transform, queries: int, keys: int) -> tuple[float, float, float]:
    """The work of a spectral sum, added over its transforms: tokens, tokens times the modes they are spread over, operations of the FFT."""
    width, d = np.ceil(-np.log10(plan.delta)) + 1, len(plan.modes)
    back = (d + 2) // 2 if not plan.circle else 2
    tokens, grid = keys + back * queries, 2.0**d * math.prod(plan.modes)
    return float(tokens), float(tokens * width**d), float((1 + back) * grid * np.log2(grid))
