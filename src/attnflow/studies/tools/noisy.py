"""Runs of densities and noisy tokens on the circle, for comparison with stationary states."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attnflow as af

# The noise, over the critical one, of the state that runs are compared with.
NOISE = 0.85
# Steps of the tokens: their error is of first order in the step, and extrapolated from these two.
_STEPS = (0.06, 0.03)
_SUMS = af.Spectral(1e-6)


@dataclasses.dataclass(frozen=True)
class Runs:
    """Orders |mean|: of a state by Newton's method, of the density after a long run, of noisy tokens averaged over time; beyond the
    critical beta that of the stable state between bifurcation and fold, and of runs from an ordered and from an almost uniform start."""

    newton: float
    density: float
    tokens: float
    stable: float
    ordered: float
    uniform: float


def law(beta: Any, dim: int) -> af.Field:
    return af.simple_attention(beta, dim, normalize=af.Unnormalized())


def runs(uniform: af.Grid, beta: float, beyond: Any, tokens: int, seed: int) -> Runs:
    """At a beta below the critical one a state three ways; at that of a diagram beyond it two starts, half way from bifurcation to fold."""
    field, sigma = law(beta, 2), NOISE * float(af.theory.critical_noise(beta, 2))
    state = af.stationary(field, _tilted(uniform, 2.0), sigma)
    density = _end(field, _tilted(uniform, 1.0), sigma, 20 / abs(state.growth))
    # The order on the stable part of the branch, where the noise falls.
    half, stable = (1 + float(beyond.folds[0, 0])) / 2, beyond.growth < 0
    order = float(np.interp(-half, -beyond.noise[stable], beyond.order[stable]))
    decay = float(af.growth_rates(law(beyond.beta, 2), 2, 1, noise=half * beyond.critical)[0])
    ends = [_end(law(beyond.beta, 2), _tilted(uniform, tilt), half * beyond.critical, 12 / abs(decay)) for tilt in (4.0, 0.02)]
    return Runs(state.order, density, _tokens(tokens, seed, field, sigma, abs(state.growth)), order, ends[0], ends[1])


def _tilted(uniform: af.Grid, tilt: float) -> af.Grid:
    """The density `e^{tilt x_1}`, over its mass."""
    tilted = np.exp(tilt * np.asarray(uniform.points[:, 0])) * np.asarray(uniform.weights)
    return uniform.with_state(jnp.asarray(tilted / tilted.sum()))


def _end(field: af.Field, mu: af.Grid, sigma: float, time: float) -> float:
    """The order after a run of the density, in steps short enough for the splitting of drift and noise, even if hardly anything flows."""
    return float(jnp.linalg.norm(af.solve(field, mu, time, save_at=2, noise=sigma, step=0.02).final.mean))


def _tokens(count: int, seed: int, field: af.Field, sigma: float, rate: float) -> float:
    """The order of tokens that start in one point, averaged in time after ten relaxation times, in the limit of short steps."""
    mu = af.Particles(np.tile([[1.0, 0.0]], (count, 1)), space=af.Sphere())
    found = []
    for i, step in enumerate(_STEPS):
        key = jax.random.fold_in(jax.random.key(seed), i)
        observe: dict[str, Any] = {"mean": _mean}
        path = af.solve(field, mu, 30 / rate, save_at=200, step=step, noise=sigma, key=key, observe=observe, keep_states=False, sums=_SUMS)
        seen = path.observed["mean"]
        orders = np.linalg.norm(np.asarray(seen.values), axis=1)
        found.append(float(orders[np.asarray(seen.ts) > 10 / rate].mean()))
    return found[1] + (found[1] - found[0]) * _STEPS[1] / (_STEPS[0] - _STEPS[1])


def _mean(mu: af.Particles) -> Any:
    return mu.mean
