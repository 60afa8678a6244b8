r"""Causal tokens have a mean field on $[0, 1] \times \mathbb{R}$, where order is a coordinate that never moves (arXiv:2501.18322).

A token at order $s$ sees those at $\tau \le s$. A law of pairs (order, point) moves by

$$\Gamma(s, x) = \left(0,\; V \frac{\int_{\tau \le s} e^{\langle A x, y\rangle}\, y \,d\mu(\tau, y)}
{\int_{\tau \le s} e^{\langle A x, y\rangle} \,d\mu(\tau, y)}\right).$$

Shown here, from one smooth law on a compact set, as a density on a grid and as tokens drawn from it:

- tokens tend to the grid like $n^{-1/2}$. The distance is $W_2$ of the laws of $x$ given that the order lies in a quarter of $[0, 1]$: on
  the line $W_2$ of $n$ independent tokens to their law is of order $n^{-1/2}$, in the plane it is not; and the mask treats each quarter
  differently. The first is shown and not fitted: a token at $s$ sees $n s$ others, so that the rate is $(n s)^{-1/2}$, whose square is not
  integrable at $s = 0$;
- the grid converges with order two along the line and along the order. The second needs a token to see half of its own cell of order;
  with the whole of it, as for tokens at the middles of the cells, it is order one;
- the marginal in $s$ is kept to round-off;
- the first token sees itself alone, $x' = V x$. A density has no first token: what comes first is the law of $x$ given $s = 0$, and it
  moves as if there were no mask. So does the first cell of order.
"""

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import DIFFERENT, DOUBLING, Checked, Count, Meta, Positive, Seed
from attnflow.studies.tools.fit import PowerLaw, power_law
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

# The law and the start: A, V, and the half-width and the reach of the center of the law of x given s.
_A, _V = 1.5, 1.0
_WIDTH, _REACH = 1.0, 0.8
_BANDS = ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))

_PAPER = "arXiv:2501.18322"
CLAIMS = {
    "limit": Claim(
        r"Causal tokens tend to the mean field $x' = V\, E[y \mid x, \tau \le s]$ on $[0, 1] \times R^d$, like $n^{-1/2}$.",
        _PAPER,
        "proved",
    ),
    "order": Claim("In the mean field of causal attention the order never moves: the marginal in $s$ is kept.", _PAPER, "proved"),
    "first": Claim(
        "The first causal token sees itself alone, $x' = V x$, and the law at $s = 0$ moves as without a mask.", _PAPER, "proved"
    ),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """Up to what time, on which grids, with how many tokens."""

    t1: Positive = 1.0
    """the final time"""
    cells: Annotated[tuple[Annotated[int, Meta(ge=4, multiple_of=2)], ...], Meta(min_length=4), DOUBLING] = (50, 100, 200, 400)
    """how many cells the line has, each number twice the one before"""
    order_cells: Annotated[tuple[Annotated[int, Meta(gt=0, multiple_of=len(_BANDS))], ...], Meta(min_length=4), DOUBLING] = (8, 16, 32, 64)
    """how many cells the order has, multiples of 4, each number twice the one before"""
    tokens: Annotated[tuple[Annotated[int, Meta(ge=100)], ...], Meta(min_length=3), DIFFERENT] = (500, 1000, 2000, 4000, 8000)
    """how many tokens are drawn"""
    repeats: Count = 32
    """how often each number of tokens is drawn"""
    refine: bool = True
    """whether grids of all sizes are compared, or just the finest is made"""
    seed: Seed = 0
    """of the draws"""


@dataclasses.dataclass(frozen=True)
class Refinement:
    """Grids whose cells are halved along one axis: `differences[k]` is the L1 distance of densities with `cells[k]` and `2 cells[k]`."""

    along: str
    cells: Float[np.ndarray, " k"]
    differences: Float[np.ndarray, " k"]

    @property
    def fit(self) -> PowerLaw:
        return power_law(1 / self.cells, self.differences)


@dataclasses.dataclass(frozen=True)
class Result:
    """`distances[i, r, b]` is W2 between tokens and the grid in band b for the r-th draw of `tokens[i]`. `start`, `end` are the finest
    grid, `cloud` tokens at the end. `drift` is the change of the marginal in s; `first_token` and `first_cell` say how far these are from
    moving alone."""

    spec: Spec
    refinements: list[Refinement]
    distances: Float[np.ndarray, "n r b"]
    start: af.Grid
    end: af.Grid
    cloud: af.Particles
    drift: float
    first_token: float
    first_cell: float

    @property
    def errors(self) -> Float[np.ndarray, "n b"]:
        """The root mean square over draws."""
        return np.sqrt((self.distances**2).mean(axis=1))

    @property
    def rate(self) -> PowerLaw:
        """In the number of tokens, for the bands after the first together."""
        return power_law(self.spec.tokens, np.sqrt((self.errors[:, 1:] ** 2).mean(axis=1)))


def density(x: Any, s: Any) -> Any:
    """Mass 1/2 + s at order s, in a bump around `0.8 cos(pi s)`."""
    u = (x[:, 0] - _REACH * jnp.cos(np.pi * s)) / _WIDTH
    return jnp.where(jnp.abs(u) < 1, 1 - u**2, 0) ** 3 * (35 / (32 * _WIDTH)) * (0.5 + s)


def law(mask: Any) -> af.Attention:
    return af.Attention(af.dot_product([[_A]], [[1.0]]), [[_V]], mask=mask)


class AsTokens(af.Field):
    """The law of tokens at the middles of the cells, which see the whole of their own cell of order."""

    law: af.Attention

    def at(self, mu: Any, t: Any = 0.0, sums: Any = None) -> Any:
        return self.law.at(mu.particles(), t, sums)


FAST = Spec(t1=0.3, cells=(10, 20, 40, 80), order_cells=(4, 8, 16, 32), tokens=(100, 400, 1600), repeats=8, refine=False)


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """Grids along both axes, then tokens against the finest."""
    spec, causal = Spec() if spec is None else spec, law(af.Causal())
    refinements = _refinements(causal, spec, progress) if spec.refine else []
    start = grid(spec.order_cells[-1], spec.cells[-1], spec)
    (end,) = parts(lambda mu: _flow(causal, mu, spec), [start], "finest grid", progress, like=start)
    distances, cloud, alone = _tokens(causal, start, end, spec, progress)
    drift = float(jnp.abs(end.mass.sum(axis=1) - start.mass.sum(axis=1)).max())
    return Result(spec, refinements, distances, start, end, cloud, drift, alone, _first_cell(start, end, spec))


def _refinements(causal: af.Attention, spec: Spec, progress: bool) -> list[Refinement]:
    """Along the line, along the order, and that again where a token sees its whole cell."""
    jobs = {(spec.order_cells[1], cells, False) for cells in spec.cells}
    jobs = sorted(jobs | {(cells, spec.cells[1], whole) for whole in (False, True) for cells in spec.order_cells})

    def density(orders: int, cells: int, whole: bool) -> np.ndarray:
        return np.asarray(_flow(AsTokens(causal) if whole else causal, grid(orders, cells, spec), spec).density)

    grids = dict(zip(jobs, parts(lambda job: density(*job), jobs, "masked grids", progress)))
    return [
        _refinement("line", spec.cells, [grids[spec.order_cells[1], n, False] for n in spec.cells], axis=1),
        _refinement("order", spec.order_cells, [grids[n, spec.cells[1], False] for n in spec.order_cells], axis=0),
        _refinement("order, whole cells", spec.order_cells, [grids[n, spec.cells[1], True] for n in spec.order_cells], axis=0),
    ]


def grid(orders: int, cells: int, spec: Spec) -> af.Grid:
    """The start on a grid, as wide as the support can become."""
    reach = float(af.theory.support_radius(_WIDTH + _REACH, [[_V]], spec.t1))
    return af.Grid.from_density(density, [af.Order(orders), af.Interval(-reach, reach, cells)])


def _flow(field: Any, mu: Any, spec: Spec) -> Any:
    # Tokens are compared within their sampling error, far above this tolerance; a grid takes none.
    return af.solve(field, mu, spec.t1, save_at=1, rtol=None if isinstance(mu, af.Grid) else 1e-6).final


def _refinement(along: str, cells: tuple[int, ...], densities: list[np.ndarray], axis: int) -> Refinement:
    """A fine density on coarse cells is the mean of pairs; the difference in L1 by the mean over cells, as all have the same volume."""
    found = []
    for coarse, fine in itertools.pairwise(densities):
        pairs = np.moveaxis(fine, axis, 0)
        found.append(np.abs(np.moveaxis((pairs[::2] + pairs[1::2]) / 2, 0, axis) - coarse).sum() / coarse.sum())
    return Refinement(along, np.array(cells[:-1], dtype=float), np.array(found))


def _tokens(causal: Any, start: af.Grid, end: af.Grid, spec: Spec, progress: bool = False) -> tuple[np.ndarray, af.Particles, float]:
    """W2 to the grid by number, draw and band; the last cloud; how far the first token of any is from `e^{tV} x`."""
    targets, some = [given_order(end, *band) for band in _BANDS], af.Particles(np.zeros((2, 1)), order=[0.0, 1.0])

    def drawn(n: int) -> tuple[np.ndarray, float, Any]:
        distances, alone, cloud = np.zeros((spec.repeats, len(_BANDS))), 0.0, None
        for r in range(spec.repeats):
            tokens = start.sample(n, key=jax.random.fold_in(jax.random.key(spec.seed), n * spec.repeats + r))
            cloud = _flow(causal, tokens, spec)
            distances[r] = [float(af.wasserstein2(given_order(cloud, *band), target)) for band, target in zip(_BANDS, targets)]
            first = int(jnp.argmin(tokens.sequence))
            alone = max(alone, abs(float(cloud.points[first, 0] - math.exp(_V * spec.t1) * tokens.points[first, 0])))
        return distances, alone, cloud

    distances, alone, clouds = zip(*parts(drawn, spec.tokens, "tokens", progress, like=(None, None, some)))
    return np.stack(distances), clouds[-1], max(alone)


def given_order(mu: Any, low: float, high: float) -> Any:
    """The law of x given that the order lies in [low, high]: as tokens, of which some have no mass, or on the grid of the line."""
    if isinstance(mu, af.Particles):
        af.Order(1).check(mu.sequence)
        return af.Particles(mu.points, weights=((mu.sequence >= low) & (mu.sequence <= high)).astype(mu.dtype))
    middles = np.asarray(mu.axes[0].centers)
    mass = np.asarray(mu.mass)[(middles > low) & (middles < high)].sum(axis=0)
    return af.Grid(mass / mass.sum() / mu.axes[1].width, [mu.axes[1]])


def _first_cell(start: af.Grid, end: af.Grid, spec: Spec) -> float:
    """W2 between the first cell of order and its own law moved without a mask, on the same line."""
    width = start.axes[0].width  # pyright: ignore[reportAttributeAccessIssue]
    alone = _flow(law(None), given_order(start, 0.0, width), spec)
    return float(af.wasserstein2(given_order(end, 0.0, width), alone))


def checks(result: Result) -> list[Check]:
    """The rates, and what is known exactly."""
    grids = {"order in the cells of the line": 2.0, "order in the cells of order": 2.0, "the same if a token sees its whole cell": 1.0}
    return [
        Check("tokens: rate in $n$ of $W_2$ given the order", result.rate.slope, -0.5, 0.1, "limit"),
        *(Check(f"grid: {name}", r.fit.slope, order, 0.3) for (name, order), r in zip(grids.items(), result.refinements)),
        Check("grid: largest change of the marginal in $s$", result.drift, 0.0, 1e-14, "order"),
        Check(r"tokens: the first one moves alone, $\lvert x(t) - e^{tV} x(0) \rvert$", result.first_token, 0.0, 1e-6, "first"),
        Check("grid: $W_2$ of the first cell of order to its law without a mask", result.first_cell, 0.0, 1e-3, "first"),
    ]


def measured(result: Result) -> dict[str, Any]:
    """Every error, with the fitted rates and the half-widths of their 95 % intervals."""
    rates = [power_law(result.spec.tokens, error) for error in result.errors.T]
    return {
        "rate": [result.rate.slope, result.rate.half_width],
        "tokens": {
            f"[{low:g}, {high:g}]": {"W2": result.errors[:, b], "rate": [rates[b].slope, rates[b].half_width]}
            for b, (low, high) in enumerate(_BANDS)
        },
        "grid": {
            r.along: {"cells": r.cells, "L1 of successive grids": r.differences, "order": [r.fit.slope, r.fit.half_width]}
            for r in result.refinements
        },
        "drift of the marginal": result.drift,
        "first token": result.first_token,
        "first cell": result.first_cell,
    }


def figure(result: Result) -> "matplotlib.figure.Figure":
    """The law at the start and at the end, with tokens; W2 against their number; the grids against the number of cells."""
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.78 * af.plot.PAGE)
        (first, last), (left, right) = page.subplots(2, 2)
        _image(first, result.start, "start: density of $x$ given the order $s$")
        _image(last, result.end, f"$t = {result.spec.t1:g}$, with tokens")
        shown = result.cloud.points[:1500, 0], result.cloud.sequence[:1500]
        last.plot(shown[1], shown[0], ".", color=af.plot.COLORS[4], markersize=1.6, markeredgewidth=0)
        first.set_ylim(last.get_ylim())
        n = np.array(result.spec.tokens, dtype=float)
        for color, (low, high), error in zip(af.plot.COLORS, _BANDS, result.errors.T):
            label = f"$s \\in [{low:g}, {high:g}]$: ${power_law(n, error).slope:.2f}$"
            left.loglog(n, error, "o-", color=color, markersize=4, linewidth=0.9, label=label)
        below = 0.7 * (result.errors.min(axis=1) * n**0.5).min() * n**-0.5
        left.loglog(n, below, ":", color="0.4", linewidth=1)
        left.annotate("$n^{-1/2}$", (n[-2], below[-2]), va="top", ha="right")
        left.set(xlabel="tokens $n$", ylabel="$W_2$ to the grid, given the order", ylim=(None, 3 * result.errors.max()))
        left.set_xticks(n, [f"{value:g}" for value in n])
        left.set_xticks([], minor=True)
        left.legend(title="rate in $n$", title_fontsize=8, loc="upper right")
        for color, marker, r in zip(af.plot.COLORS, "os^", result.refinements):
            right.loglog(r.cells, r.differences, marker + "-", color=color, markersize=4, label=f"{r.along}: {r.fit.slope:.2f}")
        right.set(xlabel="cells along the axis", ylabel="$L^1$ difference to twice as many")
        if result.refinements:
            ticks = sorted({*result.refinements[0].cells, *result.refinements[1].cells})
            right.set_xticks(ticks, [f"{value:g}" for value in ticks])
            right.set_xticks([], minor=True)
            right.set_ylim(bottom=0.1 * result.refinements[0].differences.min())
            right.legend(title="order in the cells along", title_fontsize=8, loc="lower left")
    return page


def _image(ax: Any, mu: af.Grid, title: str) -> None:
    """Columns of equal mass, so that the shape of each conditional law is seen."""
    line: Any = mu.axes[1]
    columns = np.asarray(mu.mass / mu.mass.sum(axis=1, keepdims=True)).T / line.width
    ax.imshow(columns, origin="lower", aspect="auto", extent=(0, 1, line.low, line.high), cmap="Blues", interpolation="nearest")
    some = np.flatnonzero(columns.max(axis=1) > 1e-3 * columns.max())
    reach = 1.15 * np.abs(line.centers[some]).max()
    ax.set(xlabel="order $s$", ylabel="$x$", title=title, ylim=(-reach, reach))
