"""Tokens on the sphere gather in clusters, and the clusters live long (arXiv:2312.10794, arXiv:2410.06833).

Under simple attention with softmax, `x_i' = P_{x_i} sum_j softmax_j(beta <x_i, x_j>) x_j`, tokens uniform on S^2 gather in a few clusters
within a time of order 1. Then nothing seems to happen until, after a time of order `e^{beta (1 - <x, y>)}`, the two closest clusters x, y
merge. The energy climbs a staircase: on a plateau, where clusters of masses w_k are far apart, `2 beta e^{-beta} E = sum_k w_k^2`.

Beside this simulation, three small ones with known answers: each number below is compared with something found in another way.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import attnflow as af

if TYPE_CHECKING:
    import matplotlib.figure

# Tokens closer than this many radians are drawn and counted as one cluster.
_RADIUS = 0.2


@dataclasses.dataclass(frozen=True)
class Spec:
    """What to simulate."""

    n: int = 256
    """the number of tokens, drawn uniformly on the sphere S^2"""
    beta: float = 9.0
    """the inverse temperature of the attention"""
    t1: float = 300.0
    """the final time"""
    seed: int = 0
    """the seed: the same one gives the same numbers"""
    frames: int = 240
    """the number of frames, evenly spaced in log(1 + t)"""

    def __post_init__(self):
        for name, least in {"n": 1, "seed": 0, "frames": 4}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("beta", "t1"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}")


@dataclasses.dataclass(frozen=True)
class Check:
    """One number against what it should be: `ok` says whether they differ by no more than `tolerance`."""

    name: str
    measured: float
    expected: float
    tolerance: float

    @property
    def ok(self) -> bool:
        return abs(self.measured - self.expected) <= self.tolerance


@dataclasses.dataclass(frozen=True)
class Result:
    """The tokens along time with their energy `2 beta e^{-beta} E`, and three small simulations for the checks."""

    spec: Spec
    path: af.Path
    energy: np.ndarray
    equiangular: af.Path
    gaussian: af.Path
    cloud: af.Path
    closed: af.Path


def run(spec: Spec = Spec(), progress: bool = False) -> Result:
    """The simulation, and those with known answers."""
    tokens, frame, cloud = jax.random.split(jax.random.key(spec.seed), 3)
    mu = af.samplers.sphere(spec.n, 3, key=tokens)
    times = np.expm1(np.linspace(0, np.log1p(spec.t1), spec.frames)).clip(max=spec.t1)
    path = af.solve(af.simple_attention(spec.beta, dim=3), mu, spec.t1, save_at=times, progress=progress)

    def energy(points):
        at = af.Particles(points, space=af.Sphere())
        return 2 * spec.beta * af.energy(at, spec.beta, log_scale=-spec.beta)

    # 32 orthonormal tokens: all 496 cosines are one function of time.
    orthonormal = af.samplers.orthonormal(32, 32, key=frame)
    equiangular = af.solve(af.simple_attention(_BETA, dim=32), orthonormal, t1=5.0)
    # A Gaussian under softmax, which blows up.
    gaussian = af.solve(af.Attention(af.dot_product(_EYE, _KEY), _EYE), af.Gaussian(_ZERO, _COV), t1=10.0)
    # Tokens of a Gaussian under Sinkhorn, and the Gaussian with their mean and covariance.
    law = af.Attention(af.dot_product(_EYE, _EYE), -_EYE, af.Sinkhorn())
    start = af.Gaussian(_ZERO, _COV).sample(256, key=cloud)
    cloud = af.solve(law, start, t1=1.0, save_at=2)
    closed = af.solve(law, af.Gaussian.matching(start), t1=1.0, save_at=2)
    return Result(spec, path, np.asarray(jax.lax.map(energy, path.states)), equiangular, gaussian, cloud, closed)
