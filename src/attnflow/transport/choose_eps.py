"""The temperature of a score, chosen by cross-validation.

With s the score from n tokens of density rho, the bias in `integral |s - grad log rho|^2 drho` falls with eps, while its variance grows.
The integral is not known, but up to the Fisher information of rho, which no s changes, it is

    J(s) = integral (|s|^2 + 2 div s) drho,

by parts (Hyvarinen 2005, J. Mach. Learn. Res. 6, 695-709): an average over tokens, if these are not the ones that s was made from. So the
tokens are dealt into folds, the score of all but one fold is averaged over that fold, and the eps with the least sum is taken. Weights
enter twice: in the measure that s is made from, and in the average.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import ArrayLike, Key
from attnflow.measures import Measure, Particles
from attnflow.numerics.arrays import floats, known
from attnflow.transport.scores import Estimator, bridge_score, richardson_score

# The least number of tokens at different places.
_LEAST = 10
# A fold has so many tokens at most: their average is then known far better than eps needs to be, and the rest trains.
_FOLD = 2048
# Up to this many dimensions the divergence is summed over all axes, above along as many random signs.
_AXES = 16
# The least and the largest number of temperatures in a range of our own; with tokens far out its upper end is not the variance.
_SPAN = (5, 24)
# How many temperatures such a range may get beyond its ends.
_WIDER = 12
# Far below the fluctuations of any sample; the default tolerance of a bridge takes twice as many iterations.
_ROUGH: dict[Estimator, dict[str, float]] = {bridge_score: {"tolerance": 1e-5}, richardson_score: {"tolerance": 1e-5}}


class Choice(float):
    r"""An $\varepsilon$ that knows how it was chosen: a number like any other, with

    - `epsilons` `[k]`: the candidates, growing;
    - `losses` `[k]`: the averages of `|s|^2 + 2 div s` over held-out tokens; `losses[i] - losses[j]` estimates the difference of two mean
      squared errors;
    - `errors` `[k]`: the standard error of `losses - losses.min()`, zero at the chosen one.
    """

    epsilons: Float[np.ndarray, " k"]
    losses: Float[np.ndarray, " k"]
    errors: Float[np.ndarray, " k"]

    def __new__(
        cls, eps: float, epsilons: Float[np.ndarray, " k"], losses: Float[np.ndarray, " k"], errors: Float[np.ndarray, " k"]
    ) -> "Choice":
        self = super().__new__(cls, eps)
        self.epsilons, self.losses, self.errors = epsilons, losses, errors
        return self

    def __getnewargs__(self) -> tuple[object, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return float(self), self.epsilons, self.losses, self.errors


def choose_eps(
    mu: Measure,
    score: Estimator = bridge_score,
    *,
    key: Key,
    epsilons: ArrayLike | None = None,
    folds: int = 5,
) -> Choice:
    r"""The $\varepsilon$ at which a score of tokens is expected to err least in $L^2(\rho)$, where the tokens are a sample of the density
    $\rho$.

    **Arguments:**

    - `mu`: `Particles` in $\mathbb{R}^d$, at least ten at different places. Tokens at the same place count as one with their weight.
    - `score`: `bridge_score`, `kernel_score`, `richardson_score`, whose best $\varepsilon$ differ, or any `(mu, eps) -> score` of that
      kind.
    - `key`: by which the tokens are dealt into folds.
    - `epsilons`: the candidates. `None` doubles from where a kernel holds about $n^{1/3}$ tokens to the largest variance, and goes on
      beyond an end at which the loss is least.
    - `folds`: into how many parts the tokens are dealt, each held out once. Of a large cloud a part is 2048 tokens.

    Returns a `Choice`, a number with its record: `af.bridge_score(mu, af.choose_eps(mu, key=key))` works.

    The criterion is that of implicit score matching (Hyvarinen 2005), the mean squared error up to a constant. It takes `folds` scores
    per candidate. What is not a sample, such as `quadrature` tokens, has less noise than the folds show: there any small $\varepsilon$
    that the spacing resolves does better.
    """
    check.key("key", key)
    points, weights = _places(mu, score, check.count("folds", folds))
    order = np.asarray(jax.random.permutation(key, len(points)))
    points, weights = points[order], weights[order]
    size = min(len(points) // folds, _FOLD)
    held = [np.arange(k * size, (k + 1) * size) for k in range(folds)]
    directions = jnp.asarray(_directions((size, points.shape[1]), points.dtype, key=jax.random.fold_in(key, 1)))

    def losses(eps: float) -> Float[np.ndarray, " t"]:
        """At the tokens of every fold, of the score of the others."""
        found = []
        for fold in held:
            others = Particles(np.delete(points, fold, axis=0), weights=np.delete(weights, fold))
            made = score(others, eps, **_ROUGH.get(score, {}))
            found.append(np.asarray(score_loss(made, jnp.asarray(points[fold]), directions)))
        return np.concatenate(found)

    tested = np.concatenate(held)
    found = {eps: losses(eps) for eps in (_range(points, weights) if epsilons is None else _candidates(epsilons))}
    for _ in range(_WIDER if epsilons is None else 0):
        best = min(found, key=lambda eps: _mean(found[eps], weights[tested]))
        if min(found) < best < max(found):
            break
        beyond = best / 2 if best == min(found) else 2 * best
        found[beyond] = losses(beyond)
    return _chosen(found, weights[tested])


@eqx.filter_jit
def score_loss(score: Callable[..., Any], x: Float[Array, "m d"], directions: Float[Array, "k m d"]) -> Float[Array, " m"]:
    """`|s|^2 + 2 div s` at every row of x, the divergence as the sum of `<v, Ds v>` over the directions v."""
    value, push = jax.linearize(score, x)
    divergence = jnp.sum(jax.lax.map(lambda v: jnp.sum(v * push(v), axis=1), directions), axis=0)
    return jnp.sum(value**2, axis=1) + 2 * divergence


def _places(mu: Measure, score: Estimator, folds: int) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"]]:
    """The places of the tokens that have mass, sorted, with their weights; raises on what has no eps to choose."""
    mu = check.measure("mu", mu, Particles, "Particles, a sample of tokens in R^d")
    if not mu.space.flat:
        raise TypeError(f"mu must be a sample of tokens in R^d, got Particles on the {type(mu.space).__name__}")
    if not known(mu):
        raise ValueError("choose_eps needs the values of the tokens, got traced ones; call it outside jit and grad")
    check.function("score", score, "af.bridge_score, af.kernel_score, af.richardson_score or a function like them")
    points, mass = np.asarray(mu.points), np.exp(np.asarray(mu.log_weights))
    # A token that is held out while its twin is not would ask for eps = 0.
    places, which = np.unique(points[mass > 0], axis=0, return_inverse=True)
    if len(places) < _LEAST:
        raise ValueError(f"choose_eps needs at least {_LEAST} tokens at different places, got {len(places)}")
    if not 2 <= folds <= len(places) // 2:
        raise ValueError(f"folds must be between 2 and half the number of places, {len(places) // 2}, got {folds}")
    return places, np.bincount(which.reshape(-1), mass[mass > 0]).astype(points.dtype)


def _range(points: Float[np.ndarray, "n d"], weights: Float[np.ndarray, " n"]) -> list[float]:
    """Doubling from the squared distance of the `n^(1/3)`-th neighbor in a coordinate to the largest variance."""
    from scipy.spatial import KDTree

    top = float(np.linalg.eigvalsh(np.cov(points, rowvar=False, aweights=weights, ddof=0).reshape(points.shape[1], -1))[-1])
    near = np.asarray(KDTree(points).query(points[:1000], k=math.ceil(len(points) ** (1 / 3)) + 1)[0])[:, -1]
    bottom = float(np.median(near)) ** 2 / points.shape[1]
    count = math.ceil(math.log2(max(top / bottom, 1))) + 1
    return [bottom * 2.0**i for i in range(min(max(count, _SPAN[0]), _SPAN[1]))]


def _candidates(epsilons: ArrayLike) -> list[float]:
    given = np.unique(np.asarray(floats("epsilons", epsilons, "k")))
    if given[0] <= 0:
        raise ValueError(f"epsilons must be positive, got {given[0]}")
    if len(given) < 2:
        raise ValueError(f"epsilons must be at least two different numbers, got {given[0]} alone")
    return given.tolist()


def _directions(shape: tuple[int, int], dtype: np.dtype, *, key: Key) -> Float[np.ndarray, "k m d"]:
    """Vectors v at every token with `sum v v^T = I`, in many dimensions on average only (Hutchinson 1989)."""
    if shape[1] <= _AXES:
        return np.broadcast_to(np.eye(shape[1], dtype=dtype)[:, None], (shape[1], *shape))
    return np.asarray(jax.random.rademacher(key, (_AXES, *shape), dtype)) / dtype.type(math.sqrt(_AXES))


def _mean(losses: Float[np.ndarray, " t"], weights: Float[np.ndarray, " t"]) -> float:
    mean = float(np.average(losses, weights=weights))
    return mean if math.isfinite(mean) else math.inf


def _chosen(found: dict[float, Float[np.ndarray, " t"]], weights: Float[np.ndarray, " t"]) -> Choice:
    """The record of the candidates, and a warning where the least loss is at an end of them."""
    epsilons = sorted(found)
    means = np.array([_mean(found[eps], weights) for eps in epsilons])
    best = int(means.argmin())
    if not math.isfinite(means[best]):
        raise ValueError(f"no candidate gave a finite score, from {epsilons[0]:.3g} to {epsilons[-1]:.3g}; give larger epsilons")
    if best in (0, len(epsilons) - 1):
        check.warn(
            f"the least loss is at an end of the candidates, eps = {epsilons[best]:.3g}: the best may lie beyond; give epsilons that reach "
            f"{'lower' if best == 0 else 'higher'}",
        )
    share = weights / weights.sum()
    gaps = (found[eps] - found[epsilons[best]] for eps in epsilons)
    errors = np.array([math.sqrt(np.sum((share * (gap - np.sum(share * gap))) ** 2)) for gap in gaps])
    return Choice(epsilons[best], np.array(epsilons), means, errors)
