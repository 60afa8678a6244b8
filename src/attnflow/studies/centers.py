r"""Under causal attention tokens gather around Renyi centers, and in the end around the first token (arXiv:2411.04990).

Tokens come one after the other, and each sees those before it. A token farther than $\delta$ from all before it is a strong Renyi center:
it is not drawn anywhere for a long time, and gathers those that come later. Shown here:

- uniform tokens have $1/p$ strong centers on average, $p$ the mass of a cap of radius $\delta$: $\pi/\delta$ on the circle,
  $1/\sin^2(\delta/2)$ on $S^2$;
- for $V = I$ everybody ends at the first token, which never moves.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Annotated, Any

import jax
import numpy as np
from jaxtyping import Float, Int

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import RISING, Checked, Meta, Positive, Rule, Seed
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

# Draws that are counted together.
_BLOCK = 50

_PAPER = "arXiv:2411.04990"
CLAIMS = {
    "count": Claim(
        r"Uniform tokens have $1/p$ strong Renyi centers on average, $p$ the mass of a cap: $\pi/\delta$ on $S^1$, $1/\sin^2(\delta/2)$ on "
        "$S^2$.",
        _PAPER,
        "proved",
    ),
    "centers": Claim("Renyi centers hardly move for a long time, in which other tokens do.", _PAPER, "proved"),
    "first": Claim("Under causal attention with $V = I$ every token tends to the first one, which never moves.", _PAPER, "proved"),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """How many tokens and draws, which distances, how sharp."""

    tokens: Annotated[int, Meta(ge=10)] = 4000
    """how many tokens are drawn for a count"""
    draws: Annotated[int, Meta(ge=20)] = 400
    """how often"""
    deltas: Annotated[tuple[Annotated[float, Meta(gt=0, lt=math.pi)], ...], Meta(min_length=1)] = (0.3, 0.5, 0.8)
    """the distances of the count"""
    n: Annotated[int, Meta(ge=5)] = 200
    """how many tokens are moved"""
    beta: Positive = 64.0
    """their inverse temperature"""
    times: Annotated[tuple[float, ...], Meta(min_length=2), RISING, Rule("the first 0", lambda times: times[0] == 0)] = (0.0, 1.0, 20.0)
    """when the moving tokens on the circle are shown"""
    collapse: Positive = 400.0
    r"""the end of time of the run to one point, at $\beta = 1$ in $\mathbb{R}^3$"""
    seed: Seed = 0
    """of the draws"""


@dataclasses.dataclass(frozen=True)
class Result:
    """`counts[dim] [draws, deltas]`: strong centers of uniform tokens. `angles [s, n]` of the moving tokens, `centers [n]` the centers at
    distance `reach`. `farthest [t]` is the largest angle to the first token in the run to one point, at `ts`; `first` how far it moved."""

    spec: Spec
    counts: dict[int, Int[np.ndarray, "r k"]]
    angles: Float[np.ndarray, "s n"]
    centers: np.ndarray
    ts: Float[np.ndarray, " t"]
    farthest: Float[np.ndarray, " t"]
    first: float


FAST = Spec(tokens=300, draws=40, deltas=(0.5, 0.8), n=40, times=(0.0, 1.0), collapse=100.0)


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """The counts, the gathering, and the collapse."""
    spec = Spec() if spec is None else spec
    key = jax.random.key(spec.seed)
    blocks = [range(i, min(i + _BLOCK, spec.draws)) for i in range(0, spec.draws, _BLOCK)]
    counts = np.concatenate(parts(lambda draws: _counts(key, draws, spec), blocks, "centers", progress))
    ring = af.samplers.sphere(spec.n, 2, key=jax.random.fold_in(key, 10**6))
    ball = af.samplers.sphere(40, 3, key=jax.random.fold_in(key, 10**6 + 1))
    ts = np.concatenate([[0.0], np.geomspace(0.1, spec.collapse, 60)])
    jobs = [(spec.beta, ring, spec.times, {"rtol": 1e-6, "atol": 1e-8}), (1.0, ball, ts, {})]
    states, x = parts(lambda job: _moved(*job), jobs, "causal tokens", progress)
    apart = 2 * np.arcsin(np.clip(np.linalg.norm(x - x[:, :1], axis=2) / 2, 0, 1))
    first = float(np.linalg.norm(x[-1, 0] - x[0, 0]))
    found = af.renyi_centers(ring, reach(spec))
    angles = np.arctan2(states[..., 1], states[..., 0])
    return Result(spec, {2: counts[:, 0], 3: counts[:, 1]}, angles, found, ts, apart.max(axis=1), first)


def _counts(key: Any, draws: range, spec: Spec) -> Int[np.ndarray, "r 2 k"]:
    """Strong centers on the circle and on S^2, draw by draw."""
    found = []
    for draw in draws:
        clouds = [af.samplers.sphere(spec.tokens, dim, key=jax.random.fold_in(key, 2 * draw + dim)) for dim in (2, 3)]
        found.append([[int(af.renyi_centers(mu, delta, strong=True).sum()) for delta in spec.deltas] for mu in clouds])
    return np.array(found)


def _moved(beta: float, mu: af.Particles, times: Any, accuracy: dict[str, Any]) -> Float[np.ndarray, "t n d"]:
    """Tokens under causal attention, at the times."""
    law = af.simple_attention(beta, mu.dim, mask=af.Causal())
    return np.asarray(af.solve(law, mu, float(times[-1]), save_at=list(times), **accuracy).states)


def reach(spec: Spec) -> float:
    """The distance at which tokens hardly see each other: some widths of the kernel."""
    return 4 * spec.beta**-0.5


def checks(result: Result) -> list[Check]:
    """The mean counts within four standard errors, and the collapse."""
    spec, found = result.spec, []
    for dim, rows in result.counts.items():
        for delta, column in zip(spec.deltas, rows.T, strict=True):
            expected = af.theory.strong_centers(dim, delta, spec.tokens)
            error = column.std(ddof=1) / np.sqrt(len(column))
            name = rf"$S^{{{dim - 1}}}$: mean strong centers at $\delta = {delta:g}$"
            found.append(Check(name, float(column.mean()), expected, float(4 * error), "count"))
    found.append(Check("the first token moved by", result.first, 0.0, 1e-12, "first"))
    found.append(Check("largest angle to the first token at the end", float(result.farthest[-1]), 0.0, 0.05, "first"))
    kept = result.centers & (np.arange(len(result.centers)) < len(result.centers) // 4)
    turned = np.abs(np.angle(np.exp(1j * (result.angles[1] - result.angles[0]))))
    ratio = float(np.median(turned[kept]) / np.median(turned))
    found.append(Check("early centers move less than other tokens: ratio of medians", ratio, 0.0, 0.05, "centers"))
    return found


def measured(result: Result) -> dict[str, Any]:
    """Mean counts and predictions."""
    return {
        f"S^{dim - 1}": {
            f"{delta:g}": {"mean": float(column.mean()), "theory": af.theory.strong_centers(dim, delta, result.spec.tokens)}
            for delta, column in zip(result.spec.deltas, rows.T, strict=True)
        }
        for dim, rows in result.counts.items()
    }


def figure(result: Result) -> "matplotlib.figure.Figure":
    """Counts against theory; tokens on the circle in their order; the collapse."""
    spec = result.spec
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.36 * af.plot.PAGE)
        counts, ring, collapse = page.subplots(1, 3)
        delta = np.linspace(0.8 * min(spec.deltas), 1.15 * max(spec.deltas), 100)
        for color, (dim, rows) in zip(af.plot.COLORS, result.counts.items()):
            line = [af.theory.strong_centers(dim, float(d), spec.tokens) for d in delta]
            counts.semilogy(delta, line, color=color, label=f"$S^{dim - 1}$")
            counts.errorbar(spec.deltas, rows.mean(axis=0), 2 * rows.std(axis=0) / np.sqrt(len(rows)), fmt="o", color=color, markersize=3.5)
        counts.set(xlabel=r"$\delta$", ylabel="strong centers")
        counts.legend()
        order = np.arange(spec.n)
        ring.plot(result.angles[0] / np.pi, order, ".", color="0.75", markersize=3)
        ring.plot(result.angles[-1] / np.pi, order, ".", color=af.plot.COLORS[0], markersize=3)
        for angle in result.angles[0][result.centers]:
            ring.axvline(angle / np.pi, color=af.plot.COLORS[1], linewidth=0.7, zorder=0)
        ring.set(
            xlabel=r"angle$\,/\,\pi$", ylabel="order of the token", title=f"gray: start; blue: $t = {spec.times[-1]:g}$; lines: centers"
        )
        collapse.loglog(result.ts[1:], result.farthest[1:], color=af.plot.COLORS[0])
        collapse.set(xlabel="$t$", ylabel="largest angle to the first token")
    return page
