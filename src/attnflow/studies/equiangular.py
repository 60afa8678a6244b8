r"""Orthonormal tokens stay equiangular, and their cosine solves a scalar equation; the energy climbs (arXiv:2312.10794, arXiv:2512.01868).

Simple attention on the sphere ($V = I$, $A = \beta I$), softmax (SA) and unnormalized (USA), from $n$ orthonormal tokens: all pairs keep
one common cosine $g$, with

- SA: $g' = 2 e^{\beta g} (1 - g) ((n-1) g + 1) / (e^\beta + (n-1) e^{\beta g})$, so that $1 - g$ falls like $e^{-2t}$ in the end, for every
  $\beta$;
- USA: $g' = \frac2n e^{\beta g} (1 - g) ((n-1) g + 1)$, and $1 - g$ falls like $\exp(-2 e^\beta t)$;
- the simplex $g = -1/(n-1)$ stands still under both.

The equation separates: the time at which the gap $1 - g$ has a given size is an integral, and tokens are looked at then. From random
tokens of the same sphere the energy $E = \frac{1}{2\beta} \iint e^{\beta\langle x, y\rangle} \,d\mu\,d\mu$ never decreases; USA is its
gradient ascent, $x_i' = n \nabla_i E$ ($n$, as a token has mass $1/n$).
"""

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, Annotated, Any

import jax
import numpy as np
from jaxtyping import Array, Float

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import Checked, Meta, Positive, Seed
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

_PAPER = "arXiv:2312.10794"
CLAIMS = {
    "equation": Claim(
        r"$n$ orthonormal tokens stay equiangular; SA: $g' = \frac{2 e^{\beta g} (1 - g) ((n-1) g + 1)}{e^\beta + (n-1) e^{\beta g}}$, "
        r"USA: $g' = \frac{2 e^{\beta g} (1 - g) ((n-1) g + 1)}{n}$.",
        _PAPER,
        "proved",
    ),
    "free": Claim(r"At $\beta = 0$ the common cosine of orthonormal tokens is $g = \frac{e^{2t} - 1}{e^{2t} + n - 1}$.", _PAPER, "proved"),
    "rates": Claim(
        r"The last approach is $1 - g \sim e^{-2t}$ under SA for every $\beta$, and $1 - g \sim e^{-2 e^\beta t}$ under USA.",
        "arXiv:2512.01868",
        "proved",
    ),
    "simplex": Claim("The simplex, $g = -1/(n-1)$, is stationary under SA and USA.", "arXiv:2512.01868", "proved"),
    "energy": Claim(
        r"$E = \frac{1}{2\beta} \iint e^{\beta \langle x, y \rangle}\, d\mu(x)\, d\mu(y)$ never decreases along SA and USA on the sphere.",
        _PAPER,
        "proved",
    ),
    "ascent": Claim(r"USA is the gradient ascent of the energy: $x_i' = n \nabla_i E$.", _PAPER, "proved"),
    "attraction": Claim(
        r"$F = \tfrac12 \sum_{i,j} e^{-\beta \lvert x_i - x_j \rvert^2/2}$ equals $\beta e^{-\beta} n^2 E$ on the sphere; the flow climbs "
        "it, to $n^2/2$, where all tokens are one.",
        f"lecture notes on {_PAPER}",
        "misprint",
        "the flow is a gradient flow of the repulsive interaction energy $F$, and ends in a layout that maximizes spacing on the sphere",
        r"It is a sign. On the sphere $\lvert x - y \rvert^2 = 2 - 2 \langle x, y \rangle$, so that $F = \tfrac12 e^{-\beta} \sum_{i,j} "
        r"e^{\beta \langle x_i, x_j \rangle}$, whose gradient points from each token towards the others, and the flow goes "
        r"along it: it climbs "
        "$F$. $F$ is largest where all tokens are one.",
        "We are sure: the paper proves that the energy never decreases, and these are notes of a lecture.",
    ),
}
KINDS = ("SA", "USA")


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """How many tokens, how sharp."""

    n: Annotated[int, Meta(ge=2)] = 32
    """how many tokens"""
    betas: Annotated[tuple[Annotated[float, Meta(ge=0, le=6)], ...], Meta(min_length=1)] = (0.0, 1.0, 2.0, 4.0)
    """the inverse temperatures of the orthonormal tokens"""
    frames: Annotated[int, Meta(ge=20)] = 60
    """at how many times they are looked at"""
    gap: Annotated[float, Meta(ge=1e-10, le=1e-4, description="above round-off and small enough for the asymptotic rates")] = 1e-7
    """the 1 - g at which they are left"""
    beta: Positive = 1.0
    """the inverse temperature of the random tokens"""
    t1: Positive = 12.0
    """the end of time of the random tokens"""
    seed: Seed = 0
    """of the random tokens"""


@dataclasses.dataclass(frozen=True)
class Result:
    """`gaps` `[f]` are the 1 - g that the equation has at `times[kind]` `[b, f]`, by integration; `found[kind]` `[b, f, p]` those of all
    pairs of tokens then. `simplex`: the largest speed there, by kind. Of the random tokens: `ts`, `energy[kind]` and `repulsion[kind]` (F),
    `ascent`: the largest |x_i' - n grad_i E| over |x_i'|."""

    spec: Spec
    gaps: Float[np.ndarray, " f"]
    times: dict[str, Float[np.ndarray, "b f"]]
    found: dict[str, Float[np.ndarray, "b f p"]]
    simplex: dict[str, float]
    ts: Float[np.ndarray, " t"]
    energy: dict[str, Float[np.ndarray, " t"]]
    repulsion: dict[str, Float[np.ndarray, " t"]]
    ascent: float

    def slope(self, kind: str, i: int) -> float:
        """`d log(1 - g) / dt` over the last decades."""
        last = self.gaps <= 1e3 * self.gaps[-1]
        return float(np.polyfit(self.times[kind][i, last], np.log(self.found[kind][i, last].mean(axis=1)), 1)[0])


FAST = Spec(n=6, betas=(0.0, 1.0, 2.0), frames=30)


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """Orthonormal tokens for every kind and beta, the simplex, and random tokens."""
    spec = Spec() if spec is None else spec
    gaps = np.geomspace(0.98, spec.gap, spec.frames)
    jobs = [(kind, beta) for kind in KINDS for beta in spec.betas]
    done = dict(zip(jobs, parts(lambda job: approach(*job, gaps, spec.n), jobs, "equiangular tokens", progress)))
    times, found = ({kind: np.stack([done[kind, beta][k] for beta in spec.betas]) for kind in KINDS} for k in range(2))
    climbs = dict(zip(KINDS, parts(lambda kind: climb(kind, spec), KINDS, "energy", progress)))
    simplex = {kind: at_simplex(kind, spec.n, max(spec.betas)) for kind in KINDS}
    return Result(
        spec,
        gaps,
        times,
        found,
        simplex,
        climbs["SA"][0],
        {kind: climbs[kind][1] for kind in KINDS},
        {kind: climbs[kind][2] for kind in KINDS},
        gradient_error(spec),
    )


def law(kind: str, beta: float, dim: int) -> af.Attention:
    return af.simple_attention(beta, dim, af.Softmax() if kind == "SA" else af.Unnormalized())


def approach(kind: str, beta: float, gaps: Float[np.ndarray, " f"], n: int) -> tuple[np.ndarray, np.ndarray]:
    """When the scalar equation has these gaps, and the gaps of all pairs of tokens then."""
    times = when(kind, beta, gaps, n)
    path = af.solve(law(kind, beta, n), af.Particles(np.eye(n), space=af.Sphere()), float(times[-1]), save_at=times, rtol=1e-10, atol=1e-13)
    x, (i, j) = np.asarray(path.states), np.triu_indices(n, 1)
    # Half the squared distance: 1 - <x, y> itself would lose all digits.
    return times, ((x[:, i] - x[:, j]) ** 2).sum(axis=2) / 2


def when(kind: str, beta: float, gaps: Float[np.ndarray, " f"], n: int) -> Float[np.ndarray, " f"]:
    """`t = integral dg / g'`, in u = -log(1 - g), where the integrand tends to the inverse of the last rate."""
    from scipy.integrate import quad

    def inverse(u: float) -> float:
        g = -math.expm1(-u)
        pull = math.exp(beta * g) / (math.exp(beta) + (n - 1) * math.exp(beta * g)) if kind == "SA" else math.exp(beta * g) / n
        return 1 / (2 * pull * ((n - 1) * g + 1))

    ends = np.append(0.0, -np.log(gaps))
    return np.cumsum([quad(inverse, a, b, epsabs=1e-14, epsrel=1e-12)[0] for a, b in itertools.pairwise(ends)])


def at_simplex(kind: str, n: int, beta: float) -> float:
    """The largest speed of the vertices of a regular simplex."""
    x = np.eye(n) - 1 / n
    mu = af.Particles(x / np.linalg.norm(x, axis=1, keepdims=True), space=af.Sphere())
    return float(np.abs(speed(kind, beta, mu)).max())


def speed(kind: str, beta: float, mu: af.Particles) -> Array:
    """The tangent part of the velocity, token by token."""
    return mu.space.project(mu.points, law(kind, beta, mu.dim).at(mu)(mu.points))


def climb(kind: str, spec: Spec) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, energy and F along the flow from random tokens of the same sphere."""
    start = af.samplers.sphere(spec.n, spec.n, key=jax.random.key(spec.seed))
    path = af.solve(law(kind, spec.beta, spec.n), start, spec.t1, save_at=spec.frames)
    x = np.asarray(path.states)
    apart = ((x[:, :, None] - x[:, None]) ** 2).sum(axis=3)
    repulsion = np.exp(-spec.beta / 2 * apart).sum(axis=(1, 2)) / 2
    energy = jax.lax.map(lambda points: af.energy(start.with_state(points), spec.beta), path.states)
    return np.asarray(path.ts), np.asarray(energy), repulsion


def gradient_error(spec: Spec) -> float:
    """USA against the automatic derivative of the energy, at the random start."""
    mu = af.samplers.sphere(spec.n, spec.n, key=jax.random.key(spec.seed))
    gradient = jax.grad(lambda x: af.energy(mu.with_state(x), spec.beta))(mu.points)
    velocity = np.asarray(speed("USA", spec.beta, mu))
    away = np.abs(velocity - spec.n * np.asarray(mu.space.project(mu.points, gradient)))
    return float(away.max() / np.abs(velocity).max())


def checks(result: Result) -> list[Check]:
    """The equation, the rates, the simplex, the energy and F."""
    spec, found = result.spec, []
    for kind in KINDS:
        for i, beta in enumerate(spec.betas):
            where, rate = rf"{kind}, $\beta = {beta:g}$", 2.0 if kind == "SA" else 2 * math.exp(beta)
            worst = np.abs(result.found[kind][i] / result.gaps[:, None] - 1).max()
            found.append(Check(f"{where}: gaps of all pairs against the equation, relative", float(worst), 0.0, 1e-5, "equation"))
            found.append(Check(rf"{where}: last rate of $\log(1 - g)$", result.slope(kind, i), -rate, 1e-3 * rate, "rates"))
            if beta == 0:
                growth = np.exp(2 * result.times[kind][i])
                off = np.abs(1 - result.found[kind][i] - ((growth - 1) / (growth + spec.n - 1))[:, None]).max()
                found.append(Check(f"{where}: cosines against the closed form", float(off), 0.0, 1e-8, "free"))
        found.append(Check(f"{kind}: speed at the simplex", result.simplex[kind], 0.0, 1e-11, "simplex"))
        energy, repulsion = result.energy[kind], result.repulsion[kind]
        fall = max(0.0, float((-np.diff(energy) / energy[1:]).max()))
        found.append(Check(f"{kind}: largest fall of the energy, relative", fall, 0.0, 1e-12, "energy"))
        same = np.abs(repulsion / (spec.beta * math.exp(-spec.beta) * spec.n**2 * energy) - 1).max()
        found.append(Check(rf"{kind}: $F$ over $\beta e^{{-\beta}} n^2 E$, less 1", float(same), 0.0, 1e-12, "attraction"))
        found.append(Check(f"{kind}: $F$ at the end over $n^2/2$", float(2 * repulsion[-1] / spec.n**2), 1.0, 1e-3, "attraction"))
    found.append(Check(r"USA: velocity less $n \nabla E$, relative", result.ascent, 0.0, 1e-12, "ascent"))
    return found


def measured(result: Result) -> dict[str, Any]:
    """The rates, and F at the start and at the end over its largest value."""
    spec = result.spec
    return {
        "last rates": {kind: {f"beta = {b:g}": result.slope(kind, i) for i, b in enumerate(spec.betas)} for kind in KINDS},
        "2 F / n^2, start and end": {kind: (2 * F[[0, -1]] / spec.n**2).tolist() for kind, F in result.repulsion.items()},
    }


def figure(result: Result) -> "matplotlib.figure.Figure":
    """The gap along time under SA and USA, with the equation as dots, and F along time."""
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.36 * af.plot.PAGE)
        axes = page.subplots(1, 3)
        for ax, kind in zip(axes, KINDS):
            for color, beta, t, gap in zip(af.plot.COLORS, result.spec.betas, result.times[kind], result.found[kind].mean(axis=2)):
                ax.semilogy(t, gap, color=color, label=rf"$\beta = {beta:g}$")
                ax.semilogy(t[::6], result.gaps[::6], "o", color=color, markersize=3)
            ax.set(title=f"{kind}, {result.spec.n} orthonormal tokens", xlabel="$t$", ylabel="$1 - g$")
        axes[0].plot([], [], "o", color="0.4", markersize=3, label="equation")
        axes[0].legend(loc="lower left")
        for color, (kind, F) in zip(af.plot.COLORS, result.repulsion.items()):
            axes[2].plot(result.ts, 2 * F / result.spec.n**2, color=color, label=kind)
        axes[2].set(title=rf"{result.spec.n} random tokens, $\beta = {result.spec.beta:g}$", xlabel="$t$", ylabel="$2F/n^2$")
        axes[2].legend(loc="lower right")
    return page
