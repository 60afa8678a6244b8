r"""Attention moves nearby laws to nearby laws and does not let a support outgrow $e^{t \lvert V \rvert}$ (arXiv:2501.18322).

For initial laws in a ball of radius $R$ and softmax, L2 or Sinkhorn attention, $W_p(\mu_t, \nu_t) \le C(T, R)\, W_p(\mu_0, \nu_0)$, and
the radius of the support stays below $e^{t |V|} R(0)$. Measured here on densities on the line:

- stability: from a law and the same law moved and stretched a little, $W_1$ and $W_2$ at the end are proportional to those at the start:
  $C$ does not depend on how little. For Gaussians $C$ is known from the Gaussian picture, where the flow is an equation for mean and
  variance;
- the support: cells where the density is above $10^{-8}$ of its largest value. The scheme spreads a little mass by a cell a step, so that
  even this is too wide, by a number of cells that hardly grows as they shrink; taken to cells of width 0 it is the radius of tokens, which
  is exact. Unnormalized attention breaks the bound. (Hardmax keeps it, but sees the last cell with any mass: it is for tokens.)
"""

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, Annotated, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import DIFFERENT, DOUBLING, Checked, Meta, Positive, each_of
from attnflow.studies.tools.fit import PowerLaw, power_law
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

# The compact start: a bump around a center; the Gaussian one.
_CENTER, _HALF = 0.6, 0.9
_MEAN, _DEVIATION = 0.3, 0.5
# Densities below this part of the largest do not count as support.
_THRESHOLD = 1e-8
_FRAMES = 11
# The laws; the theorem on nearby laws is about the first three.
_LAWS = ("softmax", "L2", "Sinkhorn", "sharp softmax", "unnormalized")

_PAPER = "arXiv:2501.18322"
CLAIMS = {
    "stability": Claim(
        r"From laws in a ball of radius $R$, $W_p(\mu_t, \nu_t) \le C(T, R)\, W_p(\mu_0, \nu_0)$ for $t \le T$.", _PAPER, "proved"
    ),
    "gaussian": Claim("Gaussians stay Gaussian, so that $C$ of two nearby ones is that of an ODE for mean and variance.", _PAPER, "proved"),
    "support": Claim(
        r"The radius of the support has $R(t) \le \exp\bigl(\int_0^t \lvert V \rvert\bigr) R(0)$ for laws with normalized weights.",
        _PAPER,
        "proved",
    ),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """Until when, how fine, and how near."""

    t1: Positive = 1.0
    """the final time"""
    cells: Annotated[tuple[Annotated[int, Meta(ge=50)], ...], Meta(min_length=2), DOUBLING] = (100, 200, 400)
    """how many cells the line has; the last is used for stability"""
    shifts: Annotated[tuple[Annotated[float, Meta(gt=0, lt=0.5)], ...], Meta(min_length=3), DIFFERENT] = (0.2, 0.1, 0.05, 0.025)
    """by how much the second law is moved, and stretched in proportion"""
    tokens: Annotated[int, Meta(ge=100)] = 1000
    """how many tokens the radius is compared with"""
    laws: Annotated[tuple[str, ...], Meta(min_length=1), each_of(*_LAWS)] = _LAWS
    """which laws, of softmax, L2, Sinkhorn, sharp softmax and unnormalized"""
    t_unnormalized: Positive = 0.15
    """the final time of unnormalized attention, whose radius goes to infinity soon"""


@dataclasses.dataclass(frozen=True)
class Stability:
    """One law from one kind of start: `distances[k, t, p-1]` is W_p of the two densities for the k-th shift at the t-th frame; `gaussian`
    is W_2(end) / W_2(start) at the smallest shift in the Gaussian picture."""

    law: str
    start: str
    ts: Float[np.ndarray, " t"]
    distances: Float[np.ndarray, "k t 2"]
    gaussian: float | None

    def fit(self, p: int) -> PowerLaw:
        """The distance at the end against that at the start."""
        return power_law(self.distances[:, 0, p - 1], self.distances[:, -1, p - 1])

    @property
    def constant(self) -> Float[np.ndarray, " 2"]:
        """`sup over t and shifts of W_p(t) / W_p(0)`."""
        return (self.distances / self.distances[:, :1]).max(axis=(0, 1))


@dataclasses.dataclass(frozen=True)
class Support:
    """The radius under one law: `radius[c, t]` on a grid with the c-th number of cells, `tokens[t]` of tokens, `bound[t]`."""

    law: str
    ts: Float[np.ndarray, " t"]
    radius: Float[np.ndarray, "c t"]
    tokens: Float[np.ndarray, " t"]
    bound: Float[np.ndarray, " t"]

    @property
    def limit(self) -> float:
        """The radius at the end on cells of width 0, through the two finest grids, whose error is proportional to the width."""
        return float(2 * self.radius[-1, -1] - self.radius[-2, -1])


@dataclasses.dataclass(frozen=True)
class Result:
    spec: Spec
    stability: list[Stability]
    supports: list[Support]


FAST = Spec(t1=0.4, cells=(100, 200), shifts=(0.2, 0.1, 0.05), tokens=100, laws=("softmax",))


def laws() -> dict[str, af.Attention]:
    """On the line with V = 1."""
    one = [[1.0]]
    return {
        "softmax": af.Attention(af.dot_product([[0.5]], one), one),
        "L2": af.Attention(af.squared_distance(one, one), one),
        "Sinkhorn": af.Attention(af.dot_product([[0.5]], one), one, af.Sinkhorn(tolerance=1e-8)),
        "sharp softmax": af.Attention(af.dot_product([[4.0]], one), one),
        "unnormalized": af.Attention(af.dot_product(one, one), one, af.Unnormalized()),
    }


def bump(x: Any, shift: float = 0.0) -> Any:
    """A law of compact support, moved and stretched by a shift."""
    half = _HALF * (1 + shift)
    u = (x[:, 0] - _CENTER - shift) / half
    return jnp.where(jnp.abs(u) < 1, 1 - u**2, 0) ** 3 * 35 / (32 * half)


def normal(shift: float = 0.0) -> af.Gaussian:
    return af.Gaussian([_MEAN + shift], [[(_DEVIATION * (1 + shift)) ** 2]])


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """Stability under the three laws of the theorem, then supports."""
    spec = Spec() if spec is None else spec
    every = {name: law for name, law in laws().items() if name in spec.laws}
    pairs = itertools.product((name for name in every if name in _LAWS[:3]), ("bump", "Gaussian"))
    stability = parts(lambda pair: _stability(pair[0], every[pair[0]], pair[1], spec), pairs, "nearby laws", progress, like=Stability)
    return Result(spec, stability, parts(lambda item: _support(*item, spec), every.items(), "supports", progress, like=Support))


def _reach(spec: Spec) -> float:
    """A little more than the support of any of the compact starts can reach."""
    return 1.05 * float(af.theory.support_radius(_CENTER + _HALF + 2 * max(spec.shifts), [[1.0]], spec.t1))


def _stability(name: str, law: af.Attention, start: str, spec: Spec) -> Stability:
    # A Gaussian has no support: it needs room for its tail at the end.
    reach = _reach(spec) if start == "bump" else 3 * _reach(spec)
    axes = [af.Interval(-reach, reach, spec.cells[-1])]

    def path(shift: float) -> Any:
        def density(x: Any) -> Any:
            if start == "bump":
                return bump(x, shift)
            law = normal(shift)
            return jnp.exp(-((x[:, 0] - law.mean[0]) ** 2) / (2 * law.cov[0, 0])) / jnp.sqrt(2 * np.pi * law.cov[0, 0])

        return af.solve(law, af.Grid.from_density(density, axes), spec.t1, save_at=_FRAMES)

    base, distances = path(0.0), []
    for shift in spec.shifts:
        other = path(shift)
        distances.append([[wasserstein1(mu, nu), float(af.wasserstein2(mu, nu))] for mu, nu in zip(base, other)])
    exact = None
    if start == "Gaussian":
        pair = [normal(), normal(min(spec.shifts))]
        ends = [af.solve(law, mu, spec.t1, save_at=1).final for mu in pair]
        exact = float(af.wasserstein2(*ends) / af.wasserstein2(*pair))
    return Stability(name, start, np.asarray(base.ts), np.array(distances), exact)


def wasserstein1(mu: af.Grid, nu: af.Grid) -> float:
    """`integral |F - G|` for two grids over one interval, exact: the difference is linear in each cell."""
    gap = np.concatenate([[0.0], np.cumsum(np.asarray(mu.weights) - np.asarray(nu.weights))])
    a, b = gap[:-1], gap[1:]
    total = np.abs(a) + np.abs(b)
    crossed = (a**2 + b**2) / np.where(total > 0, 2 * total, 1)
    return float(np.where(a * b < 0, crossed, total / 2).sum() * mu.axes[0].width)  # pyright: ignore[reportAttributeAccessIssue]


def _support(name: str, law: af.Attention, spec: Spec) -> Support:
    t1 = spec.t_unnormalized if name == "unnormalized" else spec.t1
    found, reach = [], _reach(spec)
    for cells in spec.cells:
        mu = af.Grid.from_density(bump, [af.Interval(-reach, reach, cells)])
        path = af.solve(law, mu, t1, save_at=_FRAMES)
        found.append([radius(frame) for frame in path])
    # Tokens at equal distances with the masses of the start, so that the first and the last lie at the ends of the support.
    x = jnp.linspace(_CENTER - _HALF, _CENTER + _HALF, spec.tokens)[:, None]
    tokens = af.solve(law, af.Particles(x, weights=bump(x)), t1, save_at=_FRAMES)
    ts = np.asarray(tokens.ts)
    bound = np.asarray(af.theory.support_radius(_CENTER + _HALF, law.value, ts))
    return Support(name, ts, np.array(found), np.array([np.abs(np.asarray(frame.points)).max() for frame in tokens]), bound)


def radius(mu: af.Grid) -> float:
    """The largest |x| at the middle of a cell whose density counts."""
    density = np.asarray(mu.density)
    return float(np.abs(np.asarray(mu.points)[density > _THRESHOLD * density.max(), 0]).max())


def checks(result: Result) -> list[Check]:
    """Proportionality, the constant of Gaussians, the bound and who breaks it."""
    found = []
    for s in result.stability:
        for p in (1, 2):
            found.append(
                Check(f"{s.law}, {s.start}: power of $W_{p}$ at the end in $W_{p}$ at the start", s.fit(p).slope, 1.0, 0.05, "stability")
            )
        if s.gaussian is not None:
            nearest = s.distances[int(np.argmin(result.spec.shifts)), :, 1]
            ratio = float(nearest[-1] / nearest[0])
            found.append(
                Check(f"{s.law}: $W_2$ at the end over $W_2$ at the start, of Gaussians", ratio, s.gaussian, 0.01 * s.gaussian, "gaussian")
            )
    for s in result.supports:
        found.append(Check(f"{s.law}: radius at the end, grids in the limit over tokens", float(s.limit / s.tokens[-1]), 1.0, 0.03))
        if s.law == "unnormalized":
            found.append(Check("unnormalized: bound over radius of tokens at the end", float(s.bound[-1] / s.tokens[-1]), 0.0, 0.9))
        else:
            # After the start, where the two are one. A radius on a grid is that of a middle of a cell, so that 2 % are let pass.
            over = (s.radius[-1] / s.bound)[1:].max()
            found.append(Check(f"{s.law}: largest radius over the bound", float(over), 0.0, 1.02, "support"))
    return found


def measured(result: Result) -> dict[str, Any]:
    """Constants and powers of stability, radii and bounds."""
    stability = {
        f"{s.law}, {s.start}": {"C for W1 and W2": s.constant, "powers": [s.fit(p).slope for p in (1, 2)], "Gaussian picture": s.gaussian}
        for s in result.stability
    }
    return {"stability": stability, "support": [dataclasses.asdict(s) for s in result.supports]}


def figure(result: Result) -> "matplotlib.figure.Figure":
    """Distances at the end against those at the start; the radius against its bound."""
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.42 * af.plot.PAGE)
        left, right = page.subplots(1, 2)
        for i, s in enumerate(result.stability):
            style = {"color": af.plot.COLORS[i // 2], "markerfacecolor": "white" if i % 2 else None}
            label = f"{s.law}, {s.start}: ${s.fit(2).slope:.2f}$"
            left.loglog(s.distances[:, 0, 1], s.distances[:, -1, 1], "os"[i % 2] + "-", markersize=4, linewidth=0.9, label=label, **style)
        left.set(xlabel=r"$W_2(\mu_0, \nu_0)$", ylabel=rf"$W_2(\mu_t, \nu_t)$ at $t = {result.spec.t1:g}$")
        for axis, values in ((left.xaxis, (0.025, 0.05, 0.1, 0.2)), (left.yaxis, (0.1, 0.2, 0.4, 0.8))):
            axis.set_ticks(values, [f"{value:g}" for value in values])
            axis.set_ticks([], minor=True)
        left.legend(title="power", title_fontsize=8, fontsize=7)
        for color, s in zip(af.plot.COLORS, result.supports):
            right.semilogy(s.ts, s.tokens, color=color, label=s.law)
            for k, values in enumerate(s.radius):
                right.semilogy(s.ts, values, ".", color=color, markersize=2 + 1.5 * k, alpha=0.8)
        longest = max(result.supports, key=lambda s: s.ts[-1])
        right.semilogy(longest.ts, longest.bound, ":", color="0.3", linewidth=1.2, label=r"$e^{t|V|} R(0)$")
        ticks = np.arange(math.floor(2 * longest.bound[0]), 2 * longest.bound[-1] + 1) / 2
        right.set_yticks(ticks, [f"{value:g}" for value in ticks])
        right.set_yticks([], minor=True)
        right.set(xlabel="$t$", ylabel="radius of the support; dots: finer and finer grids")
        right.legend(fontsize=7)
    return page
