"""Metastability in physical time: clusters that live for e^{beta(1 - <x,y>)}, followed from one merger to the next.

Simple attention on the sphere moves a token by `x_i' = c P_i sum_j p_ij x_j`, with p of order e^{-beta(1 - <x_i,x_j>)}: between mergers
nothing moves for times that no stepper of t reaches, and for beta in the thousands the rates are below the smallest double. So rates are
kept as logarithms, and the tokens run on a clock s of their own, on which the fastest relative motion is of order one:

    x' = c e^{L} v~,    dx/ds = v~ / R,    dt/ds = e^{-L} / (c R),

with L the largest log p_ij of two different tokens and R the largest |v~_i|, or |v~_i - v~_j| over the distance to the nearest token j.
On it a pair closes like e^{-s}; when it has come within `radius` the two become one token, whose weight is the sum. log t is summed by
Simpson's rule.
"""

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attnflow import _check as check
from attnflow._types import FieldLike, Scalar
from attnflow.attention.law import Attention
from attnflow.attention.normalizations.softmax import Softmax
from attnflow.attention.normalizations.unnormalized import Unnormalized
from attnflow.flow.mergers import STEPS, begin, until_merger
from attnflow.flow.report import tracker
from attnflow.measures import Particles
from attnflow.numerics.arrays import array, floats, known, positive


@dataclasses.dataclass(frozen=True)
class Staircase:
    r"""A run from merger to merger.

    - `log_times [m]`: the logarithm of the physical time of each merger, with `errors [m]`, how much they change with steps twice as long.
    - `pairs [m, 2]`: which clusters merged: the first token of each. `cosines [m]`: their scalar product when the last merger was over.
    - `plateaus`: the clusters as `Particles` at the start and after each merger; `labels [m + 1, n]` has the cluster of every token, by
      its first token.
    - `log_t`, `energy`, `count`: along the way, the logarithm of the time, the energy
      $\sum_{i,j} w_i w_j e^{\beta(\langle x_i, x_j\rangle - 1)}$, which is $2\beta e^{-\beta} E$ and lies in $(0, 1]$, and how many
      clusters there are.
    - `radius`: tokens at this distance were taken as one: every position is off by at most this much times the number of mergers.
    - `ending`: "one cluster", "t1", or "saddle" if what is left does not move.
    """

    log_times: Float[np.ndarray, " m"]
    errors: Float[np.ndarray, " m"]
    pairs: Int[np.ndarray, "m 2"]
    cosines: Float[np.ndarray, " m"]
    plateaus: list[Particles]
    labels: Int[np.ndarray, "k n"]
    log_t: Float[np.ndarray, " f"]
    energy: Float[np.ndarray, " f"]
    count: Int[np.ndarray, " f"]
    radius: float
    ending: Literal["one cluster", "t1", "saddle"]

    def __repr__(self) -> str:
        times = ", ".join(f"{time:.6g}" for time in self.log_times[:6])
        return f"Staircase({len(self.log_times)} mergers at log t = {times}{', ...' if len(self.log_times) > 6 else ''}; {self.ending})"


def staircase(law: FieldLike, mu: Particles, *, log_t1: Scalar = math.inf, radius: Scalar = 1e-6, progress: bool = False) -> Staircase:
    r"""Simple attention on the sphere from `mu`, followed to one cluster or to $\log t$ = `log_t1`, however long that takes.

    **Arguments:**

    - `law`: `af.simple_attention(beta, d)`, with softmax or `Unnormalized`; $V = c I$ with $c > 0$.
    - `mu`: a few hundred tokens on the sphere at most: all pairs are looked at.
    - `radius`: the distance at which two tokens become one. It is the error of the positions; mergers take time $\log(1/r)$ longer on the
      clock of the pair alone, $r$ the radius, next to nothing in $\log t$.

    Computed in double precision, whatever the precision of the tokens and of JAX.
    """
    # Rates and mergers are differences of close tokens, far below the round-off of single precision.
    with jax.enable_x64(True):
        return _staircase(law, mu, log_t1, radius, progress)


def _staircase(law: FieldLike, mu: Particles, log_t1: Scalar, radius: Scalar, progress: bool) -> Staircase:
    beta, offset, speed = _simple(law, mu)
    r = float(positive("radius", radius))
    if not r < 0.1:
        raise ValueError(f"radius must be a small distance, below 0.1, got {r}")
    check.flag("progress", progress)
    if not (isinstance(log_t1, float) and log_t1 == math.inf):
        floats("log_t1", log_t1, "")
    end = float(log_t1)
    fine = _run(beta, offset, speed, mu, end, r, 1.0, progress)
    coarse = _run(beta, offset, speed, mu, end, r, 2.0, False)
    m = len(fine.log_times)
    errors = np.full(m, math.inf)
    both = min(m, len(coarse.log_times))
    errors[:both] = np.abs(fine.log_times[:both] - coarse.log_times[:both])
    return dataclasses.replace(fine, errors=errors)


def _simple(law: FieldLike, mu: Particles) -> tuple[Array, Array | None, float]:
    """beta, what is added to beta(<x,y> - 1) if rows are not normalized, and c; an error that says what is missing for other laws."""
    if not isinstance(law, Attention) or law.mask is not None or not isinstance(law.normalize, Softmax | Unnormalized):
        raise TypeError(check.refusal("law", "af.simple_attention(beta, d), with softmax or Unnormalized and no mask", law))
    mu = check.measure("mu", mu, Particles, "Particles, tokens on the sphere")
    if mu.space.radius != 1:
        cure = "give space=af.Sphere()" if mu.space.radius is None else "give points / radius, space=af.Sphere() and beta * radius**2"
        raise TypeError(f"mu must be tokens on the sphere of radius 1, got tokens on {mu.space}; {cure}")
    if mu.dim != law.logit.dim:
        raise ValueError(f"the law acts on R^{law.logit.dim}, got tokens in R^{mu.dim}")
    form, V = law.logit.form, law.value
    A = form.A
    parts = (form.P, form.R, form.p, form.r, form.constant)
    if not known(A, V) or any(part is not None for part in parts):
        raise TypeError("a staircase needs a law whose logit is beta <x, y>, with known numbers")
    A, V = (array(np.asarray(matrix, np.float64)) for matrix in (A, V))
    for name, matrix in (("K^T Q", np.asarray(A)), ("V", np.asarray(V))):
        if matrix[0, 0] <= 0 or np.abs(matrix - matrix[0, 0] * np.eye(len(matrix))).max() > 0:
            raise ValueError(
                f"a staircase needs {name} to be a positive multiple of I, got {matrix.tolist()}; elsewhere nothing is metastable"
            )
    offset = A[0, 0] + np.asarray(law.normalize.log_scale, np.float64) if isinstance(law.normalize, Unnormalized) else None
    return A[0, 0], offset, float(V[0, 0])


def _run(
    beta: Array, offset: Array | None, speed: float, mu: Particles, end: float, radius: float, coarse: float, progress: bool
) -> Staircase:
    n, label = len(mu.points), np.arange(len(mu.points))
    point = np.array(mu.points, np.float64)
    point /= np.linalg.norm(point, axis=1)[:, None]
    weights = np.full(n, 1 / n) if mu.weights is None else np.asarray(mu.weights, np.float64)
    with np.errstate(divide="ignore"):
        log_w = np.log(weights / weights.sum())
    # Tokens that are together from the start are one cluster, and no merger.
    while (pair := _within(point, log_w, radius)) is not None:
        _merge(point, log_w, label, pair)
    state = begin(jnp.asarray(point), jnp.asarray(-jnp.inf, point.dtype))
    times, pairs, cosines, plateaus, labels = [], [], [], [_plateau(point, log_w, mu)], [label.copy()]
    log_ts, energies, counts = [], [], []
    ending = "one cluster"
    with tracker(progress, 0.0, float(n - 1), "mergers") as advance:
        while (alive := np.flatnonzero(np.isfinite(log_w))).size > 1:
            start = point.copy()
            while True:
                state = until_merger(
                    beta,
                    offset,
                    state._replace(points=jnp.asarray(point), steps=jnp.asarray(0)),
                    jnp.asarray(log_w),
                    radius,
                    end + math.log(speed),
                    coarse,
                )
                steps = int(state.steps)
                point = np.array(state.points)
                log_ts.append(np.asarray(state.log_ts)[:steps] - math.log(speed))
                energies.append(np.asarray(state.energies)[:steps])
                counts.append(np.full(steps, alive.size))
                if steps < STEPS:
                    break
            pair = _within(point, log_w, radius)
            if pair is None:
                ending = "t1" if float(state.log_t) - math.log(speed) >= end else "saddle"
                break
            times.append(float(state.log_t) - math.log(speed))
            pairs.append(pair)
            cosines.append(float(start[pair[0]] @ start[pair[1]]))
            _merge(point, log_w, label, pair)
            plateaus.append(_plateau(point, log_w, mu))
            labels.append(label.copy())
            state = begin(jnp.asarray(point), state.log_t)
            advance(len(times))
    joined = [np.concatenate(parts) if parts else np.zeros(0) for parts in (log_ts, energies, counts)]
    return Staircase(
        np.array(times),
        np.zeros(len(times)),
        np.array(pairs, int).reshape(-1, 2),
        np.array(cosines),
        plateaus,
        np.array(labels),
        joined[0],
        joined[1],
        joined[2].astype(int),
        radius,
        ending,
    )


def _plateau(point: np.ndarray, log_w: np.ndarray, mu: Particles) -> Particles:
    kept = np.isfinite(log_w)
    return Particles(jnp.asarray(point[kept], mu.dtype), np.exp(log_w[kept]), space=mu.space)


def _within(point: np.ndarray, log_w: np.ndarray, radius: float) -> tuple[int, int] | None:
    """The closest two tokens, if they are within the radius."""
    alive = np.flatnonzero(np.isfinite(log_w))
    gaps = np.linalg.norm(point[alive][:, None] - point[alive][None], axis=2)
    gaps[np.tril_indices(len(alive))] = np.inf
    i, j = np.unravel_index(np.argmin(gaps), gaps.shape)
    return (int(alive[i]), int(alive[j])) if gaps[i, j] <= radius else None


def _merge(point: np.ndarray, log_w: np.ndarray, label: np.ndarray, pair: tuple[int, int]) -> None:
    """The two become one token, in the row of the first; the arrays are changed in place."""
    i, j = pair
    weights = np.exp(log_w[[i, j]])
    middle = weights @ point[[i, j]]
    point[i], log_w[i], log_w[j] = middle / np.linalg.norm(middle), np.log(weights.sum()), -np.inf
    label[label == label[j]] = label[i]
