r"""One law, three pictures: tokens tend to the density like $n^{-1/2}$, cells of width $h$ to their limit like $h^2$ (arXiv:2501.18322).

The mean-field limit $\partial_t \rho + \operatorname{div}(\rho\,\Gamma_\rho) = 0$ of an attention law is what $n$ tokens of $\rho$ tend
to. Measured, for softmax, L2 and Sinkhorn attention on the line and for simple attention on the circle and on $S^2$, at a time when
clusters are still wider than a few cells:

- cells: the distance between the densities on grids of $h$ and $h/2$, which falls as $h^2$;
- tokens: the distance between $n$ tokens drawn from the start, moved, and the finest grid, which falls as $n^{-1/2}$;
- Gaussians: $W_2$ between the density on a grid that began as $\mathcal{N}(0, 1)$ and the Gaussian of the covariance equation, which falls
  as $h^2$.

On the line and the circle the distance is $W_2$, exact on the line. On $S^2$, where $W_2$ of tokens is of order $n^{-1/2}$ up to a
logarithm and costs $n^3$, it is the Euclidean distance of the first and second moments.
"""

import dataclasses
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import DOUBLING, Checked, Count, Meta, Seed, each_of
from attnflow.studies.tools.fit import PowerLaw, power_law
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

# Draws that are repeated when there are this many tokens or fewer.
_REPEATED = 100_000
_CASES = ("softmax on the line", "L2 on the line", "Sinkhorn on the line", "simple attention on the circle", "simple attention on S^2")

CLAIMS = {
    "tokens": Claim(
        r"$n$ tokens of $\rho$ tend to the solution of $\partial_t \rho + \operatorname{div}(\rho\, \Gamma_\rho) = 0$ for softmax, L2 and "
        "Sinkhorn attention, like $n^{-1/2}$.",
        "arXiv:2501.18322",
        "proved",
    ),
    "gaussian": Claim(
        "A Gaussian stays one under softmax, L2 and Sinkhorn attention, and its covariance solves an ODE.", "arXiv:2501.18322", "proved"
    ),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """On which grids, with how many tokens."""

    cells: Annotated[tuple[Annotated[int, Meta(ge=32)], ...], Meta(min_length=3), DOUBLING] = (50, 100, 200, 400)
    """how many cells the line and the circle have, each number twice the one before"""
    frequencies: Annotated[tuple[Annotated[int, Meta(ge=2)], ...], Meta(min_length=3), DOUBLING] = (6, 12, 24, 48)
    """how finely $S^2$ is divided, each number twice the one before"""
    tokens: Annotated[tuple[Annotated[int, Meta(ge=100)], ...], Meta(min_length=3)] = (1_000, 10_000, 100_000, 1_000_000)
    """how many tokens are drawn"""
    costly_tokens: int = 100_000
    """the most tokens of the Sinkhorn law and on $S^2$"""
    repeats: Count = 4
    """how often each number of tokens up to 100,000 is drawn"""
    cases: Annotated[tuple[str, ...], Meta(min_length=1), each_of(*_CASES)] = _CASES
    """which laws and spaces"""
    seed: Seed = 0
    """of the draws"""

    def check(self) -> None:
        if sum(n <= self.costly_tokens for n in self.tokens) < 3:
            raise ValueError(f"tokens must be at least three numbers from 100 to costly_tokens, got {list(self.tokens)}")


@dataclasses.dataclass(frozen=True)
class Case:
    """A law and a start."""

    law: Any
    axes: Any
    density: Any
    t1: float
    costly: bool = False


@dataclasses.dataclass(frozen=True)
class Rates:
    """The distances of one case. `by_cells[k]` is that of grids with `widths[k]` and half of it; `by_tokens[i]` the root mean square over
    draws of that of `counts[i]` tokens to the finest grid; `drift` the worst |mass - 1|, `lowest` the least mass of a cell."""

    name: str
    widths: Float[np.ndarray, " k"]
    by_cells: Float[np.ndarray, " k"]
    counts: Float[np.ndarray, " n"]
    by_tokens: Float[np.ndarray, " n"]
    drift: float
    lowest: float

    @property
    def cell_order(self) -> float:
        """Between the two finest pairs of grids."""
        return float(np.log(self.by_cells[-2] / self.by_cells[-1]) / np.log(self.widths[-2] / self.widths[-1]))

    @property
    def token_rate(self) -> PowerLaw:
        return power_law(self.counts, self.by_tokens)


@dataclasses.dataclass(frozen=True)
class Result:
    """`gaussian[name]` is W2 to the Gaussian picture on each of the grids of the line."""

    spec: Spec
    rates: list[Rates]
    gaussian: dict[str, Float[np.ndarray, " k"]]
    ends: dict[str, tuple[af.Grid, af.Grid, af.Particles]]


FAST = Spec(cells=(64, 128, 256), frequencies=(3, 6, 12), tokens=(200, 800, 3200), repeats=6, cases=("L2 on the line",))


def laws() -> dict[str, af.Attention]:
    """On the line."""
    one = np.eye(1)
    return {
        "softmax": af.Attention(af.dot_product(one, one, temperature=2.0), one),
        "L2": af.Attention(af.squared_distance(one, one), one),
        "Sinkhorn": af.Attention(af.dot_product(one, one), one, af.Sinkhorn(tolerance=1e-9)),
    }


def cases() -> dict[str, Case]:
    """Every law with its start."""
    bumps = af.GaussianMixture([0.4, 0.6], [[-1.0], [0.8]], [[[0.16]], [[0.25]]])
    on_line = {
        f"{name} on the line": Case(law, lambda n: [af.Interval(-7, 7, n)], bumps.density, 0.5, name == "Sinkhorn")
        for name, law in laws().items()
    }

    def round(x: Any) -> Any:
        return (1 + 0.5 * x[:, 0] + 0.3 * x[:, 0] * x[:, 1]) / (2 * np.pi)

    def ball(x: Any) -> Any:
        return (1 + 0.5 * x[:, 0] + 0.5 * x[:, 1] * x[:, 2]) / (4 * np.pi)

    return on_line | {
        "simple attention on the circle": Case(af.simple_attention(4.0, 2), lambda n: [af.Circle(n)], round, 1.0),
        "simple attention on S^2": Case(af.simple_attention(3.0, 3), lambda f: [af.Icosphere(f)], ball, 0.8, True),
    }


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """Every case, and the laws on the line once more on a Gaussian."""
    spec = Spec() if spec is None else spec
    chosen = {name: case for name, case in cases().items() if name in spec.cases}
    found = [_compared(name, case, spec, progress) for name, case in chosen.items()]
    on_line = {name: law for name, law in laws().items() if f"{name} on the line" in chosen}
    gaussian = parts(lambda law: against_gaussian(law, spec.cells), on_line.values(), "Gaussians", progress)
    return Result(spec, [rates for rates, _ in found], dict(zip(on_line, gaussian)), dict(zip(chosen, (ends for _, ends in found))))


def _compared(name: str, case: Case, spec: Spec, progress: bool) -> tuple[Rates, tuple[af.Grid, af.Grid, af.Particles]]:
    """One case, a part; its grids and tokens are like the finest grid, and like a token of its space."""
    start = _starts(name, case, spec)[-1]
    like = Rates, (start, start, af.Particles(start.points[:1], space=start.space))
    return parts(lambda given: compare(*given, spec), [(name, case)], name, progress, like=like)[0]


def _starts(name: str, case: Case, spec: Spec) -> list[af.Grid]:
    """The start on grids of all sizes."""
    sizes = spec.frequencies if "S^2" in name else spec.cells
    return [af.Grid.from_density(case.density, case.axes(size)) for size in sizes]


def compare(name: str, case: Case, spec: Spec) -> tuple[Rates, tuple[af.Grid, af.Grid, af.Particles]]:
    """Grids of all sizes, then tokens of all numbers against the finest."""
    starts = _starts(name, case, spec)
    grids = [af.solve(case.law, start, t1=case.t1, save_at=1).final for start in starts]
    by_cells = np.array([_distance(coarse, fine) for coarse, fine in pairwise(grids)])
    counts = [n for n in spec.tokens if not case.costly or n <= spec.costly_tokens]
    by_tokens, cloud = [], None
    for i, n in enumerate(counts):
        squares = []
        for draw in range(spec.repeats if n <= _REPEATED else 1):
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(spec.seed), i), draw)
            cloud = af.solve(case.law, starts[-1].sample(n, key=key), t1=case.t1, save_at=1, rtol=1e-5, atol=1e-7).final
            squares.append(_distance(cloud, grids[-1]) ** 2)
        by_tokens.append(math.sqrt(np.mean(squares)))
    widths = np.array([grid.axes[0].width for grid in grids[:-1]])
    drift = max(abs(float(grid.mass.sum()) - 1) for grid in grids)
    lowest = min(float(grid.mass.min()) for grid in grids)
    assert cloud is not None
    return Rates(name, widths, by_cells, np.array(counts, float), np.array(by_tokens), drift, lowest), (starts[-1], grids[-1], cloud)


def _distance(mu: Any, nu: Any) -> float:
    """W2; on S^2 the distance of the first two moments."""
    if mu.dim == 3:
        gaps = mu.mean - nu.mean, (mu.cov + jnp.outer(mu.mean, mu.mean)) - (nu.cov + jnp.outer(nu.mean, nu.mean))
        return float(jnp.sqrt(sum(jnp.sum(gap**2) for gap in gaps)))
    return float(af.wasserstein2(mu, nu))


def against_gaussian(law: af.Attention, cells: tuple[int, ...]) -> Float[np.ndarray, " k"]:
    """W2 between grid and Gaussian that both began as N(0, 1)."""
    exact = af.solve(law, af.Gaussian([0.0], [[1.0]]), t1=0.5, save_at=1, rtol=1e-10, atol=1e-12).final
    start = af.GaussianMixture([1.0], [[0.0]], [[[1.0]]])
    grids = [af.Grid.from_density(start.density, [af.Interval(-12, 12, n)]) for n in cells]
    return np.array([float(af.wasserstein2(af.solve(law, grid, t1=0.5, save_at=1).final, exact)) for grid in grids])


def checks(result: Result) -> list[Check]:
    """The rates, and what a density must keep."""
    found = []
    for rates in result.rates:
        name = rates.name.replace("S^2", "$S^2$")
        found += [
            Check(f"{name}: order in the cell", rates.cell_order, 2.0, 0.4),
            Check(f"{name}: rate in the tokens", rates.token_rate.slope, -0.5, 0.15, "tokens"),
            Check(f"{name}: mass - 1", rates.drift, 0.0, 1e-12),
            Check(f"{name}: mass below zero", min(rates.lowest, 0.0), 0.0, 0.0),
        ]
    for name, errors in result.gaussian.items():
        order = float(np.log2(errors[-2] / errors[-1]))
        # Exponential cells are better than second order on a Gaussian.
        found.append(
            Check(f"{name} on $N(0, 1)$: order in the cell of $W_2$ to the Gaussian, at least 2", min(order, 2.0), 2.0, 0.3, "gaussian")
        )
    return found


def measured(result: Result) -> dict[str, Any]:
    """All distances and rates."""
    numbers = {rates.name: dataclasses.asdict(rates) | {"cell order": rates.cell_order} for rates in result.rates}
    for rates in result.rates:
        numbers[rates.name]["token rate"] = [rates.token_rate.slope, rates.token_rate.half_width]
    return numbers | {"Gaussian": result.gaussian}


def figure(result: Result) -> "matplotlib.figure.Figure":
    """A density before and after with tokens as a histogram, the distances by cells, the distances by tokens."""
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.36 * af.plot.PAGE)
        shown, cells, tokens = page.subplots(1, 3)
        name = next(name for name, (start, _, _) in result.ends.items() if start.dim < 3)
        start, end, cloud = result.ends[name]
        where = np.asarray(start.axes[0].centers)  # pyright: ignore[reportAttributeAccessIssue]
        shown.fill_between(where, np.asarray(start.density), color="0.85", linewidth=0, label="start")
        points = np.asarray(cloud.points)
        values = points[:, 0] if start.dim == 1 else np.arctan2(points[:, 1], points[:, 0]) % (2 * np.pi)
        shown.hist(values, bins=60, density=True, histtype="step", color=af.plot.COLORS[1], linewidth=0.8, label=f"{len(points):,} tokens")
        shown.plot(where, np.asarray(end.density), color=af.plot.COLORS[0], linewidth=1.1, label="grid")
        some = where[np.asarray(end.density) > 1e-3 * float(end.density.max())]
        shown.set(xlim=(some.min(), some.max()), xlabel="$x$" if start.dim == 1 else "angle", ylabel="density", title=name)
        shown.set_ylim(top=1.75 * max(float(start.density.max()), float(end.density.max())))
        shown.legend(loc="upper left")
        for color, marker, rates in zip(af.plot.COLORS, "osD^v", result.rates):
            cells.loglog(
                rates.widths,
                rates.by_cells,
                marker + "-",
                color=color,
                markersize=4,
                linewidth=0.9,
                label=rates.name.replace("S^2", "$S^2$"),
            )
            tokens.loglog(
                rates.counts,
                rates.by_tokens,
                marker + "-",
                color=color,
                markersize=4,
                linewidth=0.9,
                label=rates.name.replace("S^2", "$S^2$"),
            )
        _guide(cells, result.rates[0].widths, min(r.by_cells.min() for r in result.rates), 2, "$h^2$")
        _guide(tokens, result.rates[0].counts, min(r.by_tokens.min() for r in result.rates), -0.5, "$n^{-1/2}$")
        cells.set(xlabel="width $h$ of a cell", ylabel="distance, $h$ to $h/2$")
        for ax in (cells, tokens):
            ax.xaxis.set_minor_formatter("")
        tokens.set(xlabel="tokens $n$", ylabel="distance to the finest grid")
        page.legend(*tokens.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return page


def _guide(ax: Any, x: np.ndarray, level: float, power: float | int, label: str) -> None:
    """A line of the slope that is expected, below the data."""
    line = 0.4 * level * (x / (x.min() if power > 0 else x.max())) ** power
    ax.loglog(x, line, "--", color="0.5", linewidth=0.8)
    ax.annotate(
        label,
        (x[len(x) // 2], line[len(x) // 2]),
        textcoords="offset points",
        xytext=(-2, -12),
        color="0.4",
        ha="right" if power < 0 else "left",
    )
