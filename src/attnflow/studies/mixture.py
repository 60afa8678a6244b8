r"""Sinkhorn attention carries a mixture along the heat flow; the bridge of a normal law to itself hugs the diagonal (arXiv:2406.10823).

The experiments of the authors, at $\varepsilon = 0.01$: tokens of $\frac12 \mathcal{N}(-2, 1) + \frac12 \mathcal{N}(2, 1)$ moved by
$x \leftarrow 2x - B(x)$, each step a time $\varepsilon$ of the heat flow $\partial_t \rho = \frac12 \Delta\rho$, whose exact law is
$\frac12 \mathcal{N}(-2, 1 + t) + \frac12 \mathcal{N}(2, 1 + t)$; and the bridge of $\mathcal{N}(0, 1)$ to itself drawn as a coupling,
where $y$ given $x$ is $\mathcal{N}(M x, \varepsilon M)$ with $M = (1 + \varepsilon^2/4)^{1/2} - \varepsilon/2$.

The tokens are run twice: sampled, which shows what $n$ tokens do, and as a quadrature, whose error is that of the scheme alone.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import Checked, Meta, Positive, Seed
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

# Kolmogorov's distance of n independent tokens from their law is below this over sqrt(n) in 999 of 1000 draws.
_KOLMOGOROV = 1.95
# How much of the coupling is looked at; to what the bridges are solved.
_INSIDE, _TOLERANCE = 3.0, 1e-8

CLAIMS = {
    "heat": Claim(
        r"Under $x \leftarrow 2x - B$ with $-W_V = W_Q^T W_K = I$ and the kernel $e^{\langle x, y \rangle/\varepsilon}$ the law of "
        r"infinitely many tokens follows $\partial_t \rho = \tfrac12 \Delta \rho$, a time $\varepsilon$ a step.",
        "slides on arXiv:2406.10823",
        "misprint",
        r"$\partial_t \rho = \Delta \rho$",
        r"It is a factor. To first order $2x - B = x - \tfrac{\varepsilon}{2} \nabla \log \rho$, and tokens with the velocity "
        r"$-\tfrac12 \nabla \log \rho$ "
        r"have $\partial_t \rho = \tfrac12 \operatorname{div}(\rho \nabla \log \rho) = \tfrac12 \Delta \rho$.",
        "We are sure: the same slides have this velocity for the particles, and the poster has the half.",
    ),
    "tokens": Claim(
        r"$n$ tokens of $\tfrac12 N(-2, 1) + \tfrac12 N(2, 1)$ at $\varepsilon = 0.01$ follow the heat flow, up to $n^{-1/2}$.",
        "poster of arXiv:2406.10823",
        "numerics",
    ),
    "bridge": Claim(
        r"In the bridge of $N(0, 1)$ to itself $y$ given $x$ is $N(M x, \varepsilon M)$, "
        r"$M = (1 + \varepsilon^2/4)^{1/2} - \varepsilon/2$.",
        "arXiv:2406.10823",
        "proved",
    ),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """How hot, how long, how many."""

    eps: Positive = 0.01
    """the temperature, and the time of a step"""
    t1: Positive = 3.0
    """the final time, rounded to whole steps"""
    n: Annotated[int, Meta(ge=10)] = 1000
    """how many sampled tokens"""
    nodes: Annotated[int, Meta(ge=16)] = 800
    """how many quadrature tokens, of the mixture and of the coupling"""
    seed: Seed = 0
    """the seed of the sampled tokens"""

    def check(self) -> None:
        if self.steps < 4:
            raise ValueError(f"t1 must be at least 4 eps, got t1 = {self.t1} with eps = {self.eps}")

    @property
    def steps(self) -> int:
        return round(self.t1 / self.eps)

    @property
    def times(self) -> Float[np.ndarray, " t"]:
        return self.eps * np.arange(self.steps + 1)


@dataclasses.dataclass(frozen=True)
class Result:
    """The tokens step by step, `[steps + 1, n]`, with the weights of the quadrature; its W2 to the exact law and the largest difference of
    the distribution functions of the sampled tokens and the exact law; the bridge of N(0, 1)."""

    spec: Spec
    sampled: Float[np.ndarray, "t n"]
    grid: Float[np.ndarray, "t m"]
    weights: Float[np.ndarray, " m"]
    w2: Float[np.ndarray, " t"]
    kolmogorov: Float[np.ndarray, " t"]
    bridge: Any


FAST = Spec(eps=0.05, t1=0.5, n=200, nodes=200, seed=1)


def law(t: float = 0.0) -> af.GaussianMixture:
    """The exact law at time t."""
    start = af.GaussianMixture([0.5, 0.5], [[-2.0], [2.0]], [[[1.0]], [[1.0]]])
    return af.heat_flow(start, t)  # pyright: ignore[reportReturnType]


def below(x: Any, t: float) -> np.ndarray:
    """The exact distribution function at time t."""
    s, cdf = math.sqrt(1 + t), jax.scipy.stats.norm.cdf
    return np.asarray(cdf(jnp.asarray(x), -2.0, s) + cdf(jnp.asarray(x), 2.0, s)) / 2


def quantile(level: Any, t: float) -> np.ndarray:
    """Its inverse; beyond 1e-15 of either end there is no mass to speak of, and no precision."""
    return np.asarray(_quantiles(law(t), jnp.clip(level, 1e-15, 1 - 1e-15)))


@eqx.filter_jit
def _quantiles(mu: af.GaussianMixture, level: Float[Array, " m"]) -> Float[Array, " m"]:
    return af.quantiles(mu, level)


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """Both clouds, their distances to the exact law, and the coupling."""
    spec = Spec() if spec is None else spec
    clouds = law().sample(spec.n, key=jax.random.key(spec.seed)), af.quadrature(law(), spec.nodes)

    def flow(cloud: af.Particles) -> np.ndarray:
        return np.asarray(af.gradient_flow(cloud, spec.eps, spec.steps, tolerance=_TOLERANCE, progress=progress).states)[:, :, 0]

    # Each flow shows itself how far it is.
    sampled, grid = parts(flow, clouds, "flows")
    # The tokens of the quadrature stay in order, so each stays at its quantile.
    weights, level = np.asarray(clouds[1].weights), below(grid[0], 0.0)
    w2 = [math.sqrt(weights @ (x - quantile(level, t)) ** 2) for x, t in zip(grid, spec.times)]
    kolmogorov = [_kolmogorov(x, t) for x, t in zip(sampled, spec.times)]
    bridge = af.self_bridge(af.quadrature(af.Gaussian([0.0], [[1.0]]), spec.nodes), spec.eps, tolerance=_TOLERANCE)
    return Result(spec, sampled, grid, weights, np.array(w2), np.array(kolmogorov), bridge)


def _kolmogorov(x: Float[np.ndarray, " n"], t: float) -> float:
    """`sup |F_n - F|`: the distribution function of the tokens steps at each of them."""
    exact, n = below(np.sort(x), t), len(x)
    return float(np.maximum(np.arange(1, n + 1) / n - exact, exact - np.arange(n) / n).max())


def conditional(result: Result) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """x within reach, with the mean and the standard deviation of y given x under the plan."""
    x, plan = np.asarray(result.bridge.measure.points)[:, 0], np.asarray(result.bridge.plan())
    rows = np.abs(x) <= _INSIDE
    given = plan[rows] / plan[rows].sum(axis=1, keepdims=True)
    mean = given @ x
    return x[rows], mean, np.sqrt(np.sum(given * (x[None] - mean[:, None]) ** 2, axis=1))


def checks(result: Result) -> list[Check]:
    """The laws at every step, and the coupling, against closed forms."""
    spec, (x, mean, deviation) = result.spec, conditional(result)
    slope = math.sqrt(1 + spec.eps**2 / 4) - spec.eps / 2
    cost = (1 - slope) - spec.eps / 2 * math.log(1 - slope**2)
    return [
        Check("quadrature tokens: largest $W_2$ to the exact law", float(result.w2.max()), 0.0, spec.eps**2 / 5, "heat"),
        Check(
            "sampled tokens: largest distance of distribution functions",
            float(result.kolmogorov.max()),
            0.0,
            _KOLMOGOROV / math.sqrt(spec.n),
            "tokens",
        ),
        Check("bridge of $N(0, 1)$: mean of $y$ given $x$", float(np.abs(mean - slope * x).max()), 0.0, 1e-8, "bridge"),
        Check(
            "bridge of $N(0, 1)$: deviation of $y$ given $x$",
            float(np.abs(deviation - math.sqrt(spec.eps * slope)).max()),
            0.0,
            1e-8,
            "bridge",
        ),
        Check("bridge of $N(0, 1)$: cost", float(result.bridge.cost), cost, 1e-8, "bridge"),
    ]


def measured(result: Result) -> dict[str, Any]:
    """The distances to the exact law along time."""
    return {
        "time": result.spec.times,
        "W2 of the quadrature tokens": result.w2,
        "distance of distribution functions, sampled": result.kolmogorov,
    }


def figure(result: Result) -> "dict[str, matplotlib.figure.Figure]":
    """The heat flow of the mixture: density and tokens at four times, trajectories, distances; and the coupling."""
    with af.plot.look():
        return {"mixture": _flow(result), "coupling": _coupling(result)}


def _flow(result: Result) -> "matplotlib.figure.Figure":
    spec = result.spec
    page = af.plot.new_figure(af.plot.PAGE, 0.6 * af.plot.PAGE)
    axes = page.subplot_mosaic("abcd;eeff", height_ratios=[1, 1.1])
    reach = 2 + 3.2 * math.sqrt(1 + spec.t1)
    line = np.linspace(-reach, reach, spec.nodes)
    for name, k in zip("abcd", [0, spec.steps // 6, spec.steps // 3, spec.steps]):
        ax, t = axes[name], k * spec.eps
        ax.hist(result.sampled[k], bins=40, range=(-reach, reach), density=True, color=af.plot.COLORS[6], alpha=0.55)
        ax.plot(result.sampled[k], np.full(spec.n, -0.007), "|", color=af.plot.COLORS[0], markersize=4, alpha=0.15)
        ax.plot(line, law(t).density(jnp.asarray(line)[:, None]), color=af.plot.COLORS[4])
        ax.set(title=f"$t = {t:.3g}$", xlim=(-reach, reach), ylim=(-0.015, 0.235), xlabel="$x$", yticks=[0, 0.1, 0.2])
        ax.set_ylabel("density" if name == "a" else "")
        ax.tick_params(labelleft=name == "a")
    _trajectories(axes["e"], result)
    times = spec.times
    axes["f"].semilogy(times, result.kolmogorov, label=f"{spec.n} sampled tokens: $\\sup |F_n - F|$")
    axes["f"].semilogy(times[1:], result.w2[1:], label="quadrature tokens: $W_2$")
    axes["f"].axhline(spec.eps**2, color="0.6", linewidth=0.8, linestyle="--")
    axes["f"].text(0, spec.eps**2, r"$\varepsilon^2$", va="bottom")
    axes["f"].set(xlabel="time $t$", ylabel="distance to the exact law")
    axes["f"].legend(loc="center right", bbox_to_anchor=(1, 0.7))
    return page


def _trajectories(ax: Any, result: Result) -> None:
    """Sampled tokens, evenly spaced in rank, and where the exact flow takes them."""
    spec, times = result.spec, result.spec.times
    ranked = np.argsort(result.sampled[0])[np.linspace(0.02 * spec.n, 0.98 * spec.n, 15).astype(int)]
    level = below(result.sampled[0], 0.0)
    some = np.unique(np.linspace(0, spec.steps, 31).astype(int))
    exact = np.stack([quantile(level, float(times[k]))[ranked] for k in some])
    ax.plot(times, result.sampled[:, ranked], color=af.plot.COLORS[0], linewidth=1.0)
    ax.plot(times[some], exact, color=af.plot.COLORS[4], linewidth=1.0, linestyle=(0, (3, 3)))
    ax.set(xlabel="time $t$", ylabel="$x$", ylim=(exact.min() - 0.5, exact.max() + 2))
    ax.legend(ax.lines[:: len(ranked)], ["tokens", "exact characteristics"], loc="upper left", ncols=2)


def _coupling(result: Result) -> "matplotlib.figure.Figure":
    """The density of the plan, in the plane of x and y and along the diagonal, with the mean and one deviation of y given x."""
    eps, points = result.spec.eps, np.asarray(result.bridge.measure.points)[:, 0]
    inside, spacing = np.flatnonzero(np.abs(points) <= _INSIDE), points[1] - points[0]
    density = np.asarray(result.bridge.plan()) / spacing**2
    # Rows shifted to the diagonal: entry (i, k) is the density at y = x_i + k spacing, four deviations either side.
    reach = min(math.ceil(4 * math.sqrt(eps) / spacing), inside[0])
    shifts = np.arange(-reach, reach + 1)
    sheared = density[inside[:, None], inside[:, None] + shifts[None]]
    page = af.plot.new_figure(af.plot.PAGE, 0.5 * af.plot.PAGE)
    left, right = page.subplots(1, 2)
    box = (points[inside[0]], points[inside[-1]])
    left.imshow(density[np.ix_(inside, inside)].T, origin="lower", extent=(*box, *box), cmap="Blues", interpolation="bilinear")
    left.set(xlabel="$x$", ylabel="$y$", title=rf"plan $\pi(x, y)$ of $N(0, 1)$ to itself, $\varepsilon = {eps:g}$")
    right.imshow(
        sheared.T, origin="lower", extent=(*box, *(shifts[[0, -1]] * spacing)), cmap="Blues", aspect="auto", interpolation="bilinear"
    )
    _given(right, result)
    right.set(xlabel="$x$", ylabel="$y - x$", title="along the diagonal")
    return page


def _given(ax: Any, result: Result) -> None:
    """The mean and one deviation of y - x given x: of the tokens, and in closed form."""
    eps, (x, mean, deviation) = result.spec.eps, conditional(result)
    slope = math.sqrt(1 + eps**2 / 4) - eps / 2
    for i, sign in enumerate((0, -1, 1)):
        label = {} if i > 1 else {"label": ("$B(x) - x$", "$\\pm$ one deviation of $y$ given $x$")[i]}
        ax.plot(x, mean - x + sign * deviation, color=af.plot.COLORS[1 if sign else 4], linewidth=1.6, **label)
        ax.plot(x, (slope - 1) * x + sign * math.sqrt(eps * slope), "k:", linewidth=0.9, **({} if i else {"label": "closed form"}))
    ax.legend(loc="upper right", fontsize=7)
