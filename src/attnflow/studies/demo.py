r"""Tokens on the sphere gather in clusters, and clusters live long (arXiv:2312.10794, arXiv:2410.06833).

Under simple attention, $x_i' = P_{x_i} \sum_j \mathrm{softmax}_j(\beta\langle x_i, x_j\rangle)\, x_j$, tokens uniform on $S^2$ soon gather
in a few clusters. Then nothing seems to happen until, after a time of order $e^{\beta (1 - \langle x, y\rangle)}$, the closest clusters
$x$ and $y$ merge. The energy climbs a staircase: where clusters of masses $w_k$ are far apart, $2\beta e^{-\beta} E$ is nearly
$\sum_k w_k^2$.

Beside this simulation run three small ones whose answer is known, for the checks.
"""

import dataclasses
import math
import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import Checked, Count, Meta, Positive, Seed
from attnflow.studies.tools.data import Of
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

# For the checks: the inverse temperature of the equiangular tokens, a Gaussian and the number of tokens drawn from it.
_BETA, _MEAN, _COV, _TOKENS = 4.0, [0.0, 0.0], [[1.0, 0.3], [0.3, 0.5]], 256
# A movie of about so many frames lasts ten seconds.
_MOVIE_FRAMES = 240

CLAIMS = {
    "energy": Claim(
        r"On the sphere simple attention climbs $E = \frac{1}{2\beta} \iint e^{\beta \langle x, y \rangle}\, d\mu(x)\, d\mu(y)$, which is "
        r"$e^\beta F / (\beta n^2)$ for $n$ tokens with $F = \tfrac12 \sum_{i,j} e^{-\beta \lvert x_i - x_j \rvert^2/2}$: it never falls.",
        "arXiv:2312.10794",
        "proved",
    ),
    "equiangular": Claim(
        "Orthonormal tokens keep a common cosine $g$, with "
        r"$g' = \frac{2 e^{\beta g} (1 - g) ((n-1) g + 1)}{e^\beta + (n-1) e^{\beta g}}$.",
        "arXiv:2312.10794",
        "proved",
    ),
    "blow-up": Claim(
        "Under softmax attention with $V = I$ a Gaussian has $S(t)^{-1} = S(0)^{-1} - (A + A^T) t$, and blows up when that loses "
        "positivity.",
        "arXiv:2501.18322",
        "proved",
    ),
    "gaussian": Claim(
        "Under Sinkhorn attention with $V = A = I$ a Gaussian stays one, with $S' = 2 W S$, $W + W S W = S$.", "arXiv:2501.18322", "proved"
    ),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """What to simulate."""

    n: Count = 256
    """how many tokens, uniform on the sphere at the start"""
    beta: Positive = 9.0
    """the inverse temperature of the attention"""
    t1: Positive = 1000.0
    """the final time"""
    seed: Seed = 0
    """the seed; the same one gives the same numbers"""
    frames: Annotated[int, Meta(ge=6)] = 720
    """how many frames, evenly spaced in log(1 + t)"""


@dataclasses.dataclass(frozen=True)
class Result:
    """The path of the tokens and its energy `2 beta e^{-beta} E` frame by frame; the paths for the checks."""

    spec: Spec
    path: af.Path
    energy: Float[np.ndarray, " t"]
    equiangular: af.Path
    gaussian: af.Path
    cloud: af.Path
    closure: af.Path


FAST = Spec(n=24, t1=50.0, seed=1, frames=40)


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """The simulation, then those for the checks."""
    spec = Spec() if spec is None else spec
    keys = jax.random.split(jax.random.key(spec.seed), 3)
    start = af.samplers.sphere(spec.n, 3, key=keys[0])
    times = np.append(np.expm1(np.linspace(0, np.log1p(spec.t1), spec.frames))[:-1], spec.t1)
    law = af.simple_attention(spec.beta, dim=3)
    # One part, in which the solver itself shows how far it is.
    like = Of(af.Path, measure=start)
    (path,) = parts(lambda mu: af.solve(law, mu, spec.t1, save_at=times.tolist(), progress=progress), [start], "tokens", like=like)

    def energy(points: Float[Array, "n 3"]) -> Float[Array, ""]:
        return 2 * spec.beta * af.energy(af.Particles(points, space=af.Sphere()), spec.beta, log_scale=-spec.beta)

    gaussian, sinkhorn = af.Gaussian(_MEAN, _COV), af.simple_attention(1.0, 2, af.Sinkhorn())
    cloud = gaussian.sample(_TOKENS, key=keys[1])
    known = {
        "equiangular": (af.simple_attention(_BETA, 32), af.samplers.orthonormal(32, 32, key=keys[2]), 20.0),
        "gaussian": (af.simple_attention(1.0, 2), gaussian, 1.0),
        "cloud": (sinkhorn, cloud, 0.5),
        "closure": (sinkhorn, af.Gaussian.matching(cloud), 0.5),
    }
    paths = {
        name: parts(lambda given: af.solve(*given), [problem], name, progress, like=Of(af.Path, measure=problem[1]))[0]
        for name, problem in known.items()
    }
    return Result(spec, path, np.asarray(jax.lax.map(energy, path.states)), **paths)


def checks(result: Result) -> list[Check]:
    """What must hold, each known from elsewhere than the code that it checks."""
    spec, path = result.spec, result.path
    eps = float(jnp.finfo(path.measure.dtype).eps)
    accuracy = 1e-6 if eps < 1e-10 else 1e-3  # ten times the default tolerance of the solver

    fall = max(0.0, *(-np.diff(result.energy) / result.energy[1:]))
    radii = np.linalg.norm(np.asarray(path.states, dtype=np.float64), axis=2)

    states = np.asarray(result.equiangular.states)
    cosines = np.einsum("tid,tjd->tij", states, states)[:, ~np.eye(states.shape[1], dtype=bool)]
    common = np.asarray(af.theory.equiangular(states.shape[1], _BETA, result.equiangular.ts))
    spread = np.abs(cosines - common[:, None]).max()

    status = result.gaussian.status
    time = float(status.time) if status.kind == "blow-up" else math.nan
    blow_up = float(af.theory.softmax_blow_up_time(_COV, [[1.0, 0.0], [0.0, 1.0]]))

    cov, closed = np.asarray(result.cloud.final.cov), np.asarray(result.closure.final.cov)
    gap = np.linalg.norm(cov - closed) / np.linalg.norm(closed)
    return [
        Check("final time", float(path.status.time), spec.t1, eps * spec.t1),
        Check("energy: largest relative fall", float(fall), 0.0, 1e3 * (1 + spec.beta) * eps, "energy"),
        Check("tokens: largest distance to the sphere", float(np.abs(radii - 1).max()), 0.0, 8 * eps),
        Check("32 orthonormal tokens: cosines against the scalar equation", float(spread), 0.0, accuracy, "equiangular"),
        Check("Gaussian, softmax: time of blow-up", time, blow_up, accuracy * blow_up, "blow-up"),
        Check(
            f"Gaussian, Sinkhorn: covariance of {_TOKENS} tokens against the Gaussian picture",
            float(gap),
            0.0,
            _TOKENS**-0.5,
            "gaussian",
        ),
    ]


def measured(result: Result) -> dict[str, Any]:
    """How the simulation ended, and the work of the solver."""
    return {"status": str(result.path.status), "solver": result.path.stats}


def figure(result: Result) -> "matplotlib.figure.Figure":
    """The tokens at four times, with their trails, and the energy along time."""
    path, drawn, last = result.path, style(result), len(result.path) - 1
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.53 * af.plot.PAGE)
        axes = page.subplot_mosaic([list("abcd"), ["e"] * 4], height_ratios=[1, 0.8])
        _staircase(axes["e"], np.asarray(path.ts), result.energy)
        for name, i in {"a": 0, "b": round(0.2 * last), "c": round(0.4 * last), "d": last}.items():
            mu, title = path[i], f"$t = {_short(path.ts[i])}$"
            if name in "cd":
                count = int(_clusters(np.asarray(mu.state)).max()) + 1
                title += f", {count} cluster{'s' * (count > 1)}"
            af.plot.tokens(mu, axes[name], trail=path.states[: i + 1], size=11.0 if name in "ab" else 24.0, **drawn)
            axes[name].set_title(f"({name})  {title}")
            at = (float(path.ts[i]), float(result.energy[i]))
            axes["e"].plot(*at, "o", color=af.plot.COLORS[4], markersize=4, zorder=3)
            axes["e"].annotate(f"({name})", at, (0, 6), textcoords="offset points", ha="center")
    return page


def movie(result: Result, file: str | pathlib.Path) -> pathlib.Path:
    """The tokens with their trails."""
    every = max(1, result.spec.frames // _MOVIE_FRAMES)
    return af.plot.movie(result.path, file, every=every, tail=20 * every, size=36.0, progress=True, **style(result))


def style(result: Result) -> dict[str, Any]:
    """How to draw the tokens: colored by cluster, once these have formed, with most clusters in front."""
    states = np.asarray(result.path.states)
    middle = states[round(0.4 * (len(states) - 1))]
    formed, final = _clusters(middle), _clusters(states[-1])
    centers = np.stack([middle[formed == k].mean(axis=0) for k in range(formed.max() + 1)])
    ends = np.stack([states[-1][final == k].mean(axis=0) for k in range(final.max() + 1)])
    angles = np.array([(e, a) for e in range(10, 50, 10) for a in range(0, 360, 10)], dtype=float)
    e, a = np.deg2rad(angles).T
    eyes = np.stack([np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)], axis=1)
    in_front = np.minimum(eyes @ np.concatenate([centers, ends]).T, 0.3).sum(axis=1)
    elevation, azimuth = angles[in_front.argmax()]
    colors = np.array(af.plot.COLORS)[formed % len(af.plot.COLORS)]
    return {"color": colors.tolist(), "view": (float(elevation), float(azimuth))}


def _clusters(points: Float[np.ndarray, "n d"], radius: float = 0.2) -> Int[np.ndarray, " n"]:
    """The cluster of each token, 0 for the largest: all tokens within `radius` of the first that is still free."""
    labels = np.full(len(points), -1)
    while (labels < 0).any():
        near = (labels < 0) & (points @ points[labels.argmin()] > math.cos(radius))
        near[labels.argmin()] = True
        labels[near] = labels.max() + 1
    return np.argsort(np.argsort(-np.bincount(labels), kind="stable"), kind="stable")[labels]


def _staircase(ax: Any, ts: np.ndarray, energy: np.ndarray) -> None:
    """The energy along time, on a scale of log(1 + t)."""
    ax.plot(ts, energy, color=af.plot.COLORS[0])
    ax.set_xscale("function", functions=(np.log1p, np.expm1))
    decades = [0.0] + [10.0**k for k in range(16) if 10.0**k <= ts[-1]]
    ticks = decades if len(decades) > 2 else np.linspace(0, ts[-1], 5).tolist()
    ax.set_xticks(ticks, [_short(tick) for tick in ticks])
    # At least 0.02 high, so that round-off does not fill the panel when the energy stands still.
    margin = max(0.05 * np.ptp(energy), 0.01)
    ax.set(xlim=np.expm1(np.log1p(ts[-1]) * np.array([-0.02, 1.02])), ylim=(energy.min() - margin, energy.max() + margin))
    ax.set(xlabel="time $t$", ylabel=r"energy  $2\beta e^{-\beta}\,E(\mu_t)$")


def _short(t: Any) -> str:
    t = float(t)
    return f"{t:.3g}" if t < 100 else f"{t:.0f}"
