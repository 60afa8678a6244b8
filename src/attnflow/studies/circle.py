r"""The uniform law on the circle breaks up into as many clusters as its fastest mode has waves, three at $\beta = 5$ (arXiv:2410.23228).

Around the uniform law mode $k$ grows at the rate $k^2 I_k(\beta) / (\beta I_0(\beta))$ under softmax attention, and on $S^{d-1}$ at
$k(k+d-2) I_{k+d/2-1}(\beta) / (\beta I_{d/2-1}(\beta))$. Measured here, each against the others:

- the rates in closed form, from the law by automatic differentiation, and those of a density on a grid, on the circle and on spheres;
- the number of clusters that white noise on the uniform law leads to, over many draws and inverse temperatures, and the fastest mode.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Annotated, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

import attnflow as af
from attnflow.numerics.special import zonal_harmonic
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import Checked, Count, Meta, Positive, Seed
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

# Modes that are measured, and their largest amplitude while they grow on their own: products of two modes must not matter.
_MODES, _LINEAR = 6, 1e-5
# A density more than this many times the uniform one belongs to a cluster.
_CLUSTER = 2.0
# The longest step in units of the fastest growth: Heun's method is then right to 1e-4.
_STEP = 0.02

_PAPER = "arXiv:2410.23228"
CLAIMS = {
    "rates": Claim(
        r"Around the uniform law on $S^{d-1}$ mode $k$ grows at the rate "
        r"$\frac{k (k + d - 2)\, I_{k+d/2-1}(\beta)}{\beta\, I_{d/2-1}(\beta)}$ under softmax, "
        r"$\frac{k^2\, I_k(\beta)}{\beta\, I_0(\beta)}$ on the circle.",
        _PAPER,
        "proved",
    ),
    "three": Claim(r"At $\beta = 5$ white noise on the uniform law of the circle leads to three clusters.", _PAPER, "numerics"),
    "clusters": Claim("The number of clusters of the metastable state is that of waves of the fastest mode.", _PAPER, "proved"),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """One run to look at closely, and many of which only the clusters are counted."""

    beta: Positive = 5.0
    """the inverse temperature of the run that is looked at"""
    amplitude: Annotated[float, Meta(gt=0, le=_LINEAR / 10, description="so that there is a linear phase")] = 1e-6
    """the white noise on its uniform density, cell by cell, relative"""
    cells: Annotated[int, Meta(ge=64)] = 512
    """the cells of the circle"""
    betas: Annotated[tuple[Positive, ...], Meta(min_length=1)] = (
        1.0,
        2.0,
        3.0,
        4.0,
        5.0,
        6.5,
        8.0,
        10.0,
        12.0,
        15.0,
        18.0,
        22.0,
        26.0,
        30.0,
    )
    """the inverse temperatures at which clusters are counted"""
    rough: Annotated[float, Meta(gt=0, le=0.1)] = 0.01
    """the white noise of those runs, as in the paper"""
    draws: Count = 8
    """the runs for each of them"""
    dims: tuple[Annotated[int, Meta(ge=3)], ...] = (3, 5)
    """the dimensions around the spheres on which rates are measured too"""
    seed: Seed = 0
    """the seed of the white noise"""


@dataclasses.dataclass(frozen=True)
class Sphere:
    """Rates of modes 1, 2, ... on S^{d-1}: in closed form, from the law, and on a grid."""

    dim: int
    theory: Float[np.ndarray, " k"]
    law: Float[np.ndarray, " k"]
    grid: Float[np.ndarray, " k"]


@dataclasses.dataclass(frozen=True)
class Result:
    """`density [t, n]` over the uniform one at the times `ts`; `counts [b, draws]` the clusters for each inverse temperature."""

    spec: Spec
    ts: Float[np.ndarray, " t"]
    density: Float[np.ndarray, "t n"]
    spheres: list[Sphere]
    clusters: int
    counts: np.ndarray

    @property
    def amplitudes(self) -> Float[np.ndarray, "t k"]:
        """`|a_k|` of the density `1 + sum a_k cos(k x - phase_k)`, for k = 1, 2, ..."""
        return 2 * np.abs(np.fft.rfft(self.density, axis=1))[:, 1 : _MODES + 1] / self.density.shape[1]

    @property
    def linear(self) -> np.ndarray:
        """The frames of the linear phase."""
        return np.flatnonzero(self.amplitudes.max(axis=1) < _LINEAR)


FAST = Spec(cells=256, betas=(1.0, 5.0), draws=2, dims=())


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """The run, the rates on spheres, and the counts."""
    spec = Spec() if spec is None else spec
    ((ts, density),) = parts(lambda beta: _broken(beta, spec.amplitude, spec, spec.seed, frames=400), [spec.beta], "modes", progress)
    counts = parts(lambda beta: _counts_at(beta, spec), spec.betas, "white noise on the uniform law", progress)
    result = Result(spec, ts, density, [], clusters(density[-1]), np.array(counts))
    law = np.asarray(af.growth_rates(af.simple_attention(spec.beta, 2), 2, _MODES))
    circle = Sphere(2, _theory(spec.beta, 2), law, _slopes(ts[result.linear], result.amplitudes[result.linear]))
    return dataclasses.replace(
        result, spheres=[circle, *parts(lambda dim: _on_bands(spec, dim), spec.dims, "spheres", progress, like=Sphere)]
    )


def _counts_at(beta: float, spec: Spec) -> list[int]:
    """The clusters that the draws lead to."""
    return [clusters(_broken(beta, spec.rough, spec, spec.seed + draw, frames=2)[1][-1]) for draw in range(spec.draws)]


def _theory(beta: float, dim: int, modes: int = _MODES) -> np.ndarray:
    return np.asarray(af.theory.mode_growth(np.arange(1, modes + 1), beta, dim))


def predicted(beta: float) -> int:
    """The fastest mode on the circle. Modes beyond `2 (2 beta)^1/2 + 4` are slower: rates are about `k^2 e^{-k^2 / (2 beta)} / beta`."""
    return 1 + int(_theory(beta, 2, modes=int(2 * math.sqrt(2 * beta)) + 4).argmax())


def clusters(density: Float[np.ndarray, " n"]) -> int:
    """The number of arcs where the density is more than twice the uniform one."""
    dense = density > _CLUSTER
    return int((dense & ~np.roll(dense, 1)).sum())


def _broken(beta: float, amplitude: float, spec: Spec, seed: int, frames: int) -> tuple[np.ndarray, np.ndarray]:
    """White noise on the uniform law, until clusters have formed: times and densities over the uniform one.

    While all is small next to nothing flows out of a cell, and a grid would take steps too long for the growth: they are bounded.
    """
    n, fastest = spec.cells, float(_theory(beta, 2, modes=predicted(beta)).max())
    noise = np.random.default_rng(seed).normal(size=n)
    start = np.maximum(1 + amplitude * (noise - noise.mean()), 0)
    mu = af.Grid(start / (start.sum() * af.Circle(n).width), [af.Circle(n)])
    # Until the fastest mode would be about 0.02; then ten times longer than it takes to grow by e.
    time = (math.log(0.02 / (2 * amplitude * math.sqrt(2 / n))) + 10) / fastest
    path = af.solve(af.simple_attention(beta, 2), mu, time, save_at=frames, step=_STEP / fastest)
    return np.asarray(path.ts), np.asarray(path.states) * n


def _slopes(ts: np.ndarray, amplitudes: np.ndarray) -> np.ndarray:
    """Growth rates by least squares in the logarithms."""
    return np.polyfit(ts, np.log(amplitudes), 1)[0]


def _on_bands(spec: Spec, dim: int, size: float = 1e-3) -> Sphere:
    """The rates on S^{dim-1} from runs that start at `1 + size Y_k` and `1 - size Y_k`: their difference has only odd orders of the size,
    and is rid of what the grid makes of the uniform law itself."""
    axes = [af.Zonal(dim, spec.cells // 4)]
    law, uniform = af.simple_attention(spec.beta, dim), af.Grid.uniform(axes)
    theory, s, w = _theory(spec.beta, dim), np.asarray(uniform.points[:, 0]), np.asarray(uniform.weights)
    # Not longer than the fastest mode takes to grow by e: slower ones leak into it.
    found, time = [], float(1 / theory.max())
    for k in range(1, _MODES + 1):
        Y = zonal_harmonic(k, dim, s)
        ends = []
        for sign in (1, -1):
            mu = uniform.with_state(uniform.mass * jnp.asarray(1 + sign * size * Y))
            ends.append(np.asarray(af.solve(law, mu, time, save_at=[time], step=_STEP * time).final.mass))
        found.append(math.log((ends[0] - ends[1]) @ Y / (2 * size * (w @ Y**2))) / time)
    return Sphere(dim, theory, np.asarray(af.growth_rates(law, dim, _MODES)), np.array(found))


def checks(result: Result) -> list[Check]:
    """Rates three ways, the number of clusters of the run, and how often the fastest mode is right."""
    found = []
    for sphere in result.spheres:
        name = f"$S^{{{sphere.dim - 1}}}$"
        found.append(
            Check(
                f"{name}: rates from the law against closed form", float(np.abs(sphere.law / sphere.theory - 1).max()), 0.0, 1e-8, "rates"
            )
        )
        for k in range(1, _MODES + 1):
            rate = float(sphere.theory[k - 1])
            found.append(Check(f"{name}: rate of mode {k} on the grid", float(sphere.grid[k - 1]), rate, 0.01 * rate, "rates"))
    expected = np.array([predicted(beta) for beta in result.spec.betas])
    found.append(
        Check(
            rf"clusters at $\beta = {result.spec.beta:g}$, and the fastest mode",
            float(result.clusters),
            float(predicted(result.spec.beta)),
            0.0,
            "three" if result.spec.beta == 5 else "clusters",
        )
    )
    off = np.abs(result.counts - expected[:, None])
    found.append(Check("largest distance of the clusters from the fastest mode", float(off.max()), 0.0, 1.0, "clusters"))
    found.append(Check("share of runs with as many clusters", float((off == 0).mean()), 1.0, 0.3, "clusters"))
    return found


def measured(result: Result) -> dict[str, Any]:
    """The rates, and the counts by inverse temperature."""
    return {f"S^{sphere.dim - 1}": dataclasses.asdict(sphere) for sphere in result.spheres} | {
        "clusters": {f"{beta:g}": {"fastest mode": predicted(beta), "counts": row} for beta, row in zip(result.spec.betas, result.counts)}
    }


def figure(result: Result) -> "matplotlib.figure.Figure":
    """Modes and density over time; the rates; the number of clusters."""
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.66 * af.plot.PAGE)
        (modes, rates), (density, counts) = page.subplots(2, 2)
        _modes(modes, result)
        _density(page, density, modes, result)
        _rates(rates, result)
        _counts(counts, result)
    return page


def _modes(ax: Any, result: Result) -> None:
    ts, sizes, linear = result.ts, result.amplitudes, result.linear
    for k, color in enumerate(af.plot.COLORS[:_MODES], start=1):
        ax.semilogy(ts, sizes[:, k - 1], color=color, label=f"$k = {k}$")
        # On to where the fastest mode would be about 1.
        early, rate = ts[ts <= 0.75 * ts[-1]], result.spheres[0].theory[k - 1]
        line = np.exp(rate * (early - ts[linear].mean()) + np.log(sizes[linear, k - 1]).mean())
        ax.semilogy(early, line, "--", color="0.1", linewidth=0.6, dashes=(5, 4))
    ax.set(ylabel="amplitude of mode $k$", xlim=(0, ts[-1]), ylim=(sizes[0].min() / 3, 4), xlabel="$t$")
    ax.legend(ncols=2, loc="upper left", title="dashed: predicted growth", title_fontsize=8, columnspacing=1.0, handlelength=1.4)


def _density(page: Any, ax: Any, above: Any, result: Result) -> None:
    from matplotlib.colors import LogNorm

    n = result.density.shape[1]
    angle = np.arange(n + 1) * 2 / n
    edges = np.concatenate([result.ts[:1], (result.ts[1:] + result.ts[:-1]) / 2, result.ts[-1:]])
    picture = ax.pcolormesh(
        edges, angle, np.clip(result.density.T, 1e-2, None), norm=LogNorm(0.05, 50), cmap="magma", rasterized=True, shading="flat"
    )
    ax.set(xlabel="$t$", ylabel=r"angle$\,/\,\pi$", xlim=above.get_xlim(), yticks=[0, 1, 2])
    page.colorbar(picture, ax=ax, label="density over uniform", extend="both", pad=0.02)


def _rates(ax: Any, result: Result) -> None:
    k = np.arange(1, _MODES + 1)
    for color, sphere in zip(af.plot.COLORS, result.spheres):
        ax.plot(k, sphere.theory, color=color, linewidth=0.9, label=f"$S^{{{sphere.dim - 1}}}$")
        ax.plot(k, sphere.law, "o", color=color, markersize=6, markerfacecolor="none", markeredgewidth=0.8)
        ax.plot(k, sphere.grid, "+", color="0.1", markersize=6, markeredgewidth=0.9)
    ax.plot([], [], "o", color="0.3", markersize=6, markerfacecolor="none", markeredgewidth=0.8, label="from the law")
    ax.plot([], [], "+", color="0.1", markersize=6, markeredgewidth=0.9, label="on a grid")
    ax.set(xlabel="mode $k$", ylabel="growth rate", xticks=k, ylim=(0, None), title=rf"$\beta = {result.spec.beta:g}$; lines: closed form")
    ax.legend(ncols=2, columnspacing=1.0)


def _counts(ax: Any, result: Result) -> None:
    betas = np.linspace(min(result.spec.betas) / 2, max(result.spec.betas) * 1.03, 800)
    ax.plot(betas, [predicted(float(beta)) for beta in betas], color=af.plot.COLORS[0], label="fastest mode", drawstyle="steps-mid")
    for beta, row in zip(result.spec.betas, result.counts):
        values, times = np.unique(row, return_counts=True)
        ax.scatter(np.full(len(values), beta), values, s=36 * times / len(row), color="0.1", zorder=3)
    ax.scatter([], [], s=36, color="0.1", label=f"clusters, {result.spec.draws} draws (area: share)")
    ax.set(xlabel=r"$\beta$", ylabel="number of clusters", xlim=(0, betas[-1]), ylim=(0, None))
    ax.legend(loc="lower right")
