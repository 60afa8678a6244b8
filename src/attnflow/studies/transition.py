r"""With growing $\beta$ the transition of noisy attention from uniform to ordered turns from continuous to a jump (arXiv:2606.05140).

Unnormalized attention with noise, $\partial_t \mu + \operatorname{div}(\mu\,\Gamma_\mu) = \frac12 \sigma^2 \Delta\mu$ on $S^{d-1}$, keeps
the uniform law. As $\sigma$ falls the first mode of it becomes unstable at $\sigma_c(\beta)$. The paper proves that the transition is
continuous up to the $\beta$ with $I_{d/2+1}(\beta) / I_{d/2}(\beta) = 1/d$, and discontinuous beyond. Measured here:

- the branch of ordered states, by continuation from the bifurcation, with the stability of each;
- the curvature of the branch at the bifurcation, which is negative for a continuous transition, and the $\beta$ at which it changes sign;
- where the free energy $\frac12 \sigma^2 \int \log\rho \,d\rho - E(\rho)$ of ordered and uniform law agree, which is where the transition
  jumps;
- a stationary state against a run of the density and one of noisy tokens, and that beyond the critical $\beta$ both laws can be stable.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Annotated, Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import Checked, Meta, Rule, Seed
from attnflow.studies.tools.noisy import NOISE, Runs, law, runs
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

# The diagrams are drawn at these multiples of the critical beta, up to this dimension.
_MULTIPLES, _DRAWN = (0.5, 1.0, 2.0), 3
# The least noise, over the critical one, of the branches.
_LEAST = 0.8
# Quadrature nodes around a band: enough for a kernel e^{beta s} with beta up to 5.
_NODES = 12

_PAPER = "arXiv:2606.05140"
CLAIMS = {
    "noise": Claim(r"As noise falls the uniform law loses stability at $\sigma_c(\beta)$, in its first mode alone.", _PAPER, "proved"),
    "critical": Claim(
        r"Noisy attention goes from continuous to a jump at the $\beta$ with $I_{d/2+1}(\beta) / I_{d/2}(\beta) = 1/d$.", _PAPER, "proved"
    ),
    "continuous": Claim(r"Up to the critical $\beta$ ordered states are stable, and there are none above $\sigma_c$.", _PAPER, "proved"),
    "jump": Claim(r"Beyond the critical $\beta$ the branch folds; ordered and uniform law are stable above $\sigma_c$.", _PAPER, "proved"),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """How fine the grids are."""

    cells: Annotated[int, Meta(ge=32, multiple_of=4)] = 128
    """the cells of the circle, and twice the bands of a sphere; half of them in the coarser grid of an extrapolation"""
    step: Annotated[float, Meta(gt=0, le=0.5)] = 0.05
    """the longest step along a branch"""
    tokens: Annotated[int, Rule("0 or at least 100", lambda tokens: tokens == 0 or tokens >= 100)] = 10_000
    """the tokens of the noisy run; 0 leaves out the runs, of tokens and of densities"""
    betas: Annotated[int, Meta(ge=2)] = 9
    """at how many inverse temperatures the curvature is drawn"""
    dims: Annotated[tuple[Annotated[int, Meta(ge=2)], ...], Rule("2 among them", lambda dims: 2 in dims)] = (2, 3, 4)
    """the dimensions, 2 among them; states are followed in those up to 3"""
    seed: Seed = 0
    """the seed of the tokens and of their noise"""


@dataclasses.dataclass(frozen=True)
class Diagram:
    """The ordered states for one dimension and beta, with the noise over the critical one of the grid.

    `excess` is their free energy less that of the uniform law at the same noise; `jump` has noise and order where it vanishes on the stable
    part, `None` if the transition is continuous.
    """

    dim: int
    beta: float
    noise: Float[np.ndarray, " k"]
    order: Float[np.ndarray, " k"]
    growth: Float[np.ndarray, " k"]
    excess: Float[np.ndarray, " k"]
    folds: Float[np.ndarray, "f 2"]
    critical: float
    error: float

    @property
    def jump(self) -> tuple[float, float] | None:
        i = next((i for i in range(2, len(self.noise)) if self.excess[i - 1] > 0 >= self.excess[i]), None)
        if i is None or not len(self.folds):
            return None
        part = self.excess[i - 1] / (self.excess[i - 1] - self.excess[i])
        return tuple(float(values[i - 1] + part * (values[i] - values[i - 1])) for values in (self.noise, self.order))  # pyright: ignore


@dataclasses.dataclass(frozen=True)
class Curvature:
    """The curvature of the branch at its bifurcation by beta, and the beta at which it vanishes, extrapolated from two grids."""

    dim: int
    betas: Float[np.ndarray, " k"]
    values: Float[np.ndarray, " k"]
    critical: float
    growing: int
    """modes other than the first that grow at the critical noise"""


@dataclasses.dataclass(frozen=True)
class Result:
    spec: Spec
    diagrams: list[Diagram]
    curvatures: list[Curvature]
    runs: Runs | None


FAST = Spec(cells=96, step=0.2, tokens=0, betas=3, dims=(2,))


def _beyond(diagrams: list[Diagram]) -> Diagram:
    """The one on the circle with the largest beta."""
    return max((d for d in diagrams if d.dim == 2), key=lambda d: d.beta)


def grid(dim: int, cells: int) -> af.Grid:
    return af.Grid.uniform([af.Circle(cells)] if dim == 2 else [af.Zonal(dim, cells // 2, nodes=_NODES)])


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """The diagrams, the curvatures, and the runs."""
    spec = Spec() if spec is None else spec
    wanted = [(dim, multiple * af.theory.critical_beta(dim)) for dim in spec.dims if dim <= _DRAWN for multiple in _MULTIPLES]
    diagrams = parts(lambda pair: diagram(spec, *pair), wanted, "branches", progress, like=Diagram)
    curvatures = parts(lambda dim: curvature(spec, dim), spec.dims, "curvatures", progress, like=Curvature)
    below, uniform = _MULTIPLES[0] * af.theory.critical_beta(2), grid(2, spec.cells)
    noisy = filter(None, [spec.tokens])
    found = parts(lambda tokens: runs(uniform, below, _beyond(diagrams), tokens, spec.seed), noisy, "runs", progress, like=Runs)
    return Result(spec, diagrams, curvatures, found[0] if found else None)


def diagram(spec: Spec, dim: int, beta: float) -> Diagram:
    """The branch of ordered states, down to the least noise."""
    field, uniform = law(beta, dim), grid(dim, spec.cells)
    start = af.bifurcation(field, uniform)
    states = af.branch(field, start, between=(_LEAST * start.noise, 2 * start.noise), step=spec.step, points=400)
    inverse = jnp.asarray(beta)
    base = np.array([free_energy(start.measure, inverse, jnp.asarray(sigma)) for sigma in states.parameter])
    excess = np.array([free_energy(state.measure, inverse, jnp.asarray(state.noise)) for state in states.states]) - base
    return Diagram(
        dim,
        beta,
        states.parameter / start.noise,
        states.order,
        states.growth,
        excess,
        states.folds / np.array([[start.noise, 1.0]]),
        start.noise,
        float(states.error.max()),
    )


@eqx.filter_jit
def free_energy(mu: af.Grid, beta: Float[Array, ""], sigma: Float[Array, ""]) -> Float[Array, ""]:
    """`sigma^2/2 integral log rho drho - E`, which noisy USA decreases."""
    return sigma**2 / 2 * jnp.sum(mu.mass * jnp.log(mu.density)) - af.energy(mu, beta)


def curvature(spec: Spec, dim: int) -> Curvature:
    """The sign change by the secant method on two grids, whose errors are of second order in the cell."""
    expected = af.theory.critical_beta(dim)
    fine, coarse = grid(dim, spec.cells), grid(dim, spec.cells // 2)

    def value(beta: float, on: af.Grid) -> float:
        return af.bifurcation(law(beta, dim), on).curvature

    betas = np.linspace(0.3, 2.0, spec.betas) * expected
    values = np.array([value(float(beta), fine) for beta in betas])
    # The measured values alone say where to begin.
    i = int(np.flatnonzero(np.diff(np.sign(values)))[0])
    zeros = [_zero(lambda beta, on=on: value(beta, on), float(betas[i]), float(betas[i + 1])) for on in (fine, coarse)]
    growing = 0
    for beta in betas:
        critical = float(af.theory.critical_noise(float(beta), dim))
        rates = np.asarray(af.growth_rates(law(float(beta), dim), dim, 12, noise=critical))
        growing += int((rates[1:] >= 0).sum())
    return Curvature(dim, betas, values, zeros[0] + (zeros[0] - zeros[1]) / 3, growing)


def _zero(f: Any, a: float, b: float) -> float:
    fa, fb = f(a), f(b)
    for _ in range(20):
        a, fa, b = b, fb, b - fb * (b - a) / (fb - fa)
        if abs(b - a) < 1e-9:
            return b
        fb = f(b)
    raise ValueError(f"the zero of the curvature was not found, the last step was {b - a:.2g}")


def checks(result: Result) -> list[Check]:
    """The critical beta, the critical noise and the curvature against closed forms; the shape of the branches; the runs."""
    found = []
    for c in result.curvatures:
        name, expected, closed = (
            f"$S^{{{c.dim - 1}}}$",
            af.theory.critical_beta(c.dim),
            np.asarray(af.theory.branch_curvature(c.betas, c.dim)),
        )
        off = float(np.abs(c.values - closed).max() / np.abs(closed).max())
        found += [
            Check(rf"{name}: $\beta$ where the curvature changes sign", c.critical, expected, 1e-3 * expected, "critical"),
            Check(f"{name}: curvature against closed form, over its largest", off, 0.0, 0.01, "critical"),
            Check(f"{name}: other modes that grow at the critical noise", float(c.growing), 0.0, 0.0, "noise"),
        ]
    for d in result.diagrams:
        name, multiple = rf"$S^{{{d.dim - 1}}}$, $\beta = {d.beta:.4g}$", d.beta / af.theory.critical_beta(d.dim)
        sigma = float(af.theory.critical_noise(d.beta, d.dim))
        found.append(Check(f"{name}: critical noise", d.critical, sigma, 2e-3 * sigma, "noise"))
        if abs(multiple - 1) < 1e-6:
            continue
        kind = "jump" if multiple > 1 else "continuous"
        found.append(Check(f"{name}: folds", float(len(d.folds)), float(multiple > 1), 0.0, kind))
        if multiple < 1:
            found.append(Check(f"{name}: states above the critical noise", float((d.noise[1:] > 1).sum()), 0.0, 0.0, kind))
            found.append(Check(f"{name}: unstable states", float((d.growth[1:] > 0).sum()), 0.0, 0.0, kind))
        else:
            i = int(np.flatnonzero(d.growth[1:] < 0)[0])
            turn = float(np.interp(0, -d.growth[i : i + 2], d.order[i : i + 2]))
            found.append(Check(f"{name}: order where states become stable, and at the fold", turn, float(d.folds[0, 1]), 0.01))
            found.append(
                Check(
                    rf"{name}: sign of $\sigma_{{\text{{jump}}}}/\sigma_c - 1$", float(np.sign((d.jump or (0.0,))[0] - 1)), 1.0, 0.0, kind
                )
            )
    return found if result.runs is None else found + _of_the_runs(result.runs, 1 / math.sqrt(result.spec.tokens))


def _of_the_runs(r: Runs, scatter: float) -> list[Check]:
    """The orders of runs against those of states."""
    return [
        Check("order of a state, the density run", r.density, r.newton, 2e-3),
        Check("order of a state, noisy tokens", r.tokens, r.newton, scatter),
        Check(r"beyond critical $\beta$: order from an ordered start", r.ordered, r.stable, 5e-3, "jump"),
        Check(r"beyond critical $\beta$: order from an almost uniform start", r.uniform, 0.0, 1e-3, "jump"),
    ]


def measured(result: Result) -> dict[str, Any]:
    """Critical values, folds and jumps, curvatures, and the orders of the runs."""
    return {
        "critical beta": {c.dim: [c.critical, af.theory.critical_beta(c.dim)] for c in result.curvatures},
        "curvature": {c.dim: dataclasses.asdict(c) for c in result.curvatures},
        "branches": [dataclasses.asdict(d) | {"jump": d.jump} for d in result.diagrams],
        "runs": dataclasses.asdict(result.runs) if result.runs else None,
    }


def figure(result: Result) -> "matplotlib.figure.Figure":
    """The branches on the circle and on S^2, and the curvatures."""
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.37 * af.plot.PAGE)
        dims = sorted({d.dim for d in result.diagrams})
        *panels, right = page.subplots(1, len(dims) + 1)
        for ax, dim in zip(panels, dims):
            _diagram(ax, [d for d in result.diagrams if d.dim == dim])
        if r := result.runs:
            half = (1 + _beyond(result.diagrams).folds[0, 0]) / 2
            box: dict[str, Any] = {"color": "0.1", "markerfacecolor": "none", "clip_on": False, "zorder": 5}
            panels[0].plot([half, half, NOISE], [r.ordered, r.uniform, r.density], "s", markersize=4, label="density, run", **box)
            panels[0].plot([NOISE], [r.tokens], "x", markersize=5, label="noisy tokens", **box)
        for ax in panels:
            ax.legend(loc="lower left", fontsize=7, handlelength=1.4)
        _curvatures(right, result)
    return page


def _diagram(ax: Any, diagrams: list[Diagram]) -> None:
    for color, d in zip(af.plot.COLORS, diagrams):
        label = rf"$\beta = {d.beta:.3g}$"
        stable = d.growth <= 1e-9
        ax.plot(d.noise, np.where(stable, d.order, np.nan), color=color, label=label)
        # The unstable part goes on to the first stable state, so that there is no gap at the fold.
        wide = ~stable | np.append(~stable[1:], False) | np.append(False, ~stable[:-1])
        if (~stable[1:]).any():
            ax.plot(d.noise, np.where(wide, d.order, np.nan), "--", color=color, linewidth=1.0)
        if d.jump is not None:
            ax.plot([d.jump[0]] * 2, [0, d.jump[1]], ":", color=color, linewidth=0.9)
    end = float(np.ceil(100 * max(d.noise.max() for d in diagrams) + 1) / 100)
    ax.plot([1, end], [0, 0], color="0.4", clip_on=False)
    ax.plot([_LEAST, 1], [0, 0], "--", color="0.4", linewidth=1.0, clip_on=False)
    ax.set(xlabel=r"$\sigma\,/\,\sigma_c$", ylabel=r"order $|\mathrm{mean}|$", xlim=(_LEAST, end), ylim=(0, 1))
    ax.set_title(f"$S^{{{diagrams[0].dim - 1}}}$")


def _curvatures(ax: Any, result: Result) -> None:
    for color, c in zip(af.plot.COLORS, result.curvatures):
        across = np.linspace(c.betas[0], c.betas[-1], 200)
        ax.plot(across, np.asarray(af.theory.branch_curvature(across, c.dim)), color=color, linewidth=0.9, label=f"$S^{{{c.dim - 1}}}$")
        ax.plot(c.betas, c.values, "o", color=color, markersize=3)
        ax.plot(c.critical, 0, "o", color=color, markersize=7, markerfacecolor="none")
    ax.axhline(0, color="0.6", linewidth=0.6, zorder=0)
    ax.set(xlabel=r"$\beta$", ylabel="curvature at the bifurcation")
    ax.legend(title="lines: closed form")
