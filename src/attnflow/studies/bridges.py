r"""What the bridge of a law to itself says of its score, and how fast its steps run (arXiv:2406.10823, arXiv:2110.11773).

Cost $\frac12 |x - y|^2$ and temperature $\varepsilon$: the kernel $e^{-|x-y|^2 / (2\varepsilon)}$, which Sinkhorn cannot tell from
$e^{\langle x, y\rangle / \varepsilon}$. With the barycentric map $B$ of the bridge of $\rho$ to itself,

- for $\mathcal{N}(0, S)$ $B(x) = S^{-1} ((S^2 + \varepsilon^2/4)^{1/2} - \varepsilon/2)\, x$: matrices by eigenvalues;
- $(B(x) - x) / \varepsilon = \frac12 \nabla\log\rho + \varepsilon \nabla(\frac18 \Delta\log\rho + \frac1{16} |\nabla\log\rho|^2) +
  O(\varepsilon^3)$: twice this is the score. The rows alone of the kernel, which are softmax attention and the kernel density, give
  $1 \cdot \nabla\log\rho$;
- $x \leftarrow 2x - B(x)$, which is one layer of Sinkhorn attention with $V = -I$, $A = I/\varepsilon$ in the normalized form
  $z + \Gamma(z) - V z$, moves by the heat flow $\partial_t \rho = \frac12 \Delta\rho$ for a time $\varepsilon$. With the kernel
  $e^{-|x-y|^2 / \varepsilon}$ it runs at half that speed.

How fast the steps tend to the heat flow, and how far from Euler's they are, is in the study `heat`; `scores` has estimates from samples.
"""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import FALLING, Checked, Count, Meta, Positive
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

_PAPER = "arXiv:2406.10823"
CLAIMS = {
    "gaussian": Claim(
        r"The self-bridge of $N(0, S)$ has $B(x) = S^{-1} \bigl((S^2 + \varepsilon^2/4)^{1/2} - \varepsilon/2\bigr) x$.", _PAPER, "proved"
    ),
    "score": Claim(r"$(B - x)/\varepsilon$ tends to $\tfrac12 \nabla \log \rho$ as $\varepsilon$ tends to $0$.", _PAPER, "proved"),
    "next": Claim(
        r"$(B - x)/\varepsilon = \tfrac12 \nabla \log \rho + \varepsilon \nabla \bigl(\tfrac18 \Delta \log \rho "
        r"+ \tfrac{1}{16} \lvert \nabla \log \rho \rvert^2\bigr) + \dots$; for $N(0, s^2)$, $-x/(2 s^2) + \varepsilon x/(8 s^4) + \dots$",
        _PAPER,
        "numerics",
    ),
    "kernel density": Claim(
        r"With the same kernel softmax, that is the kernel density, gives $(E[y \mid x] - x)/\varepsilon \to \nabla \log \rho$, twice what "
        "the bridge gives.",
        "arXiv:2110.11773",
        "proved",
    ),
    "layer": Claim(
        r"Sinkhorn attention with $V = -I$, $A = I/\varepsilon$ makes the step $x \leftarrow 2x - B(x)$ in the normalized form.",
        _PAPER,
        "proved",
    ),
    "speed": Claim(
        r"With the cost $\lvert x - y \rvert^2$, kernel $e^{-\lvert x - y \rvert^2/\varepsilon}$, $x \leftarrow 2x - B$ runs "
        r"$\partial_t \rho = \tfrac14 \Delta \rho$: half as fast as with $\tfrac12 \lvert x - y \rvert^2$.",
        f"slides on {_PAPER}",
        "misprint",
        r"with the cost $\lvert x - y \rvert^2 + \varepsilon H$ the scheme tends to $\partial_t \rho = \Delta \rho$",
        r"Dividing by 2, the cost $\lvert x - y \rvert^2 + \varepsilon H$ is $\tfrac12 \lvert x - y \rvert^2 + "
        r"\tfrac{\varepsilon}{2} H$, the "
        r"bridge at half the temperature, so that $B - x = \tfrac{\varepsilon}{4} \nabla \log \rho$ to first order and a step of time "
        r"$\varepsilon$ runs $\partial_t \rho = \tfrac14 \Delta \rho$. With the factor $\tfrac12$ in front of the cost, as the "
        r"poster has it, "
        r"the flow is $\partial_t \rho = \tfrac12 \Delta \rho$.",
        "We are sure of the factors: the poster on the same paper has both halves, and so has the velocity on another slide.",
    ),
}
COSTS: tuple[str, ...] = ("half", "whole")
KINDS = ("bridge", "kernel density")


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """Which Gaussians and temperatures, how many tokens."""

    deviations: Annotated[tuple[Positive, ...], Meta(min_length=1)] = (0.5, 1.0, 2.0)
    r"""the $s$ of $\mathcal{N}(0, s^2)$ on the line"""
    eps: Annotated[tuple[Annotated[float, Meta(gt=0, le=1)], ...], Meta(min_length=3), FALLING] = (0.32, 0.16, 0.08, 0.04, 0.02)
    r"""the temperatures, falling, for $s = 1$ and the mixture; for $\mathcal{N}(0, s^2)$ they are $s^2$ times these"""
    nodes: Annotated[int, Meta(ge=100)] = 400
    """how many tokens on the line"""
    step: Annotated[float, Meta(gt=0, le=0.5)] = 0.05
    """the temperature of the steps, and the time of one"""
    steps: Count = 20
    """how many steps"""


@dataclasses.dataclass(frozen=True)
class Result:
    """`slopes` `[s, k]`: B(x)/x of tokens, by deviation and temperature; `spread`: the largest error from a line; `plane`: the error of the
    matrix of the plane's bridge. Of the mixture, at `x`: `pulls[kind]` `[k, m]`, `(B - x)/eps` or `(E[y|x] - x)/eps`, with `score` and
    `second` (the term in eps), exact. `layer`: how far attention is from plain iterations. `variances[cost]`:
    after each step, for the costs 1/2 |x-y|^2 and |x-y|^2."""

    spec: Spec
    slopes: Float[np.ndarray, "s k"]
    spread: float
    plane: float
    x: Float[np.ndarray, " m"]
    pulls: dict[str, Float[np.ndarray, "k m"]]
    score: Float[np.ndarray, " m"]
    second: Float[np.ndarray, " m"]
    layer: float
    variances: dict[str, Float[np.ndarray, " t"]]

    def share(self, kind: str) -> float:
        """The coefficient of the score as eps tends to 0: projections on it, extrapolated from the two smallest temperatures."""
        b, a = (self.pulls[kind] @ self.score / (self.score @ self.score))[-2:]
        fine, coarse = self.spec.eps[-1], self.spec.eps[-2]
        return float((coarse * a - fine * b) / (coarse - fine))


FAST = Spec(deviations=(1.0, 2.0), eps=(0.16, 0.08, 0.04), nodes=200, steps=4)


def mixture() -> af.GaussianMixture:
    """`1/2 N(-2, 1) + 1/2 N(2, 1)`, the law of the authors' experiments."""
    return af.GaussianMixture([0.5, 0.5], [[-2.0], [2.0]], [[[1.0]], [[1.0]]])


def exact(x: Float[np.ndarray, " m"]) -> tuple[np.ndarray, np.ndarray]:
    """The score of the mixture and the term in eps, by hand: `U' = -x + 2 h`, h = tanh(2x), so that `U'' = -1 + 4 (1 - h^2)`."""
    h = np.tanh(2 * x)
    first, third = -x + 2 * h, -16 * h * (1 - h**2)
    return first, third / 8 + first * (-1 + 4 * (1 - h**2)) / 8


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """Gaussians, the mixture, a layer, and steps with both costs."""
    spec = Spec() if spec is None else spec
    jobs = [(s, e) for s in spec.deviations for e in spec.eps]
    found = np.array(parts(lambda job: on_line(*job, spec), jobs, "Gaussians", progress)).reshape(len(spec.deviations), len(spec.eps), 2)
    x = np.linspace(-4, 4, 41)
    tokens = af.quadrature(mixture(), spec.nodes)
    pulls = {kind: np.array(parts(lambda e, kind=kind: pull(kind, e, x, tokens), spec.eps, kind, progress)) for kind in KINDS}
    variances = dict(zip(COSTS, parts(lambda cost: march(cost, spec), COSTS, "steps", progress)))
    return Result(spec, found[..., 0], float(found[..., 1].max()), in_plane(spec), x, pulls, *exact(x), layer(spec), variances)


def on_line(s: float, eps: float, spec: Spec) -> tuple[float, float]:
    """B on tokens of N(0, s^2) at s^2 eps within three deviations: its slope, and how far it is from a line, over s."""
    bridge = af.self_bridge(af.quadrature(af.Gaussian([0.0], [[s**2]]), spec.nodes), s**2 * eps)
    x = s * np.linspace(-3, 3, 31)
    B = np.asarray(bridge.barycentric(jnp.asarray(x)[:, None]))[:, 0]
    slope = float(x @ B / (x @ x))
    return slope, float(np.abs(B - slope * x).max() / s)


def in_plane(spec: Spec) -> float:
    """The Gaussian bridge in R^2 against eigenvalues, relative."""
    S, eps = np.array([[1.0, 0.6], [0.6, 2.0]]), spec.eps[0]
    values, vectors = np.linalg.eigh(S)
    known = vectors @ np.diag((np.sqrt(values**2 + eps**2 / 4) - eps / 2) / values) @ vectors.T
    found = np.asarray(af.self_bridge(af.Gaussian(np.zeros(2), S), eps).barycentric(jnp.eye(2))).T
    return float(np.abs(found - known).max() / np.abs(known).max())


def pull(kind: str, eps: float, x: Float[np.ndarray, " m"], tokens: af.Particles) -> Float[np.ndarray, " m"]:
    """`(B(x) - x) / eps` of doubly stochastic attention, or the same with the average of squared-distance softmax attention."""
    points = jnp.asarray(x)[:, None]
    if kind == "bridge":
        average = af.self_bridge(tokens, eps).barycentric(points)
    else:
        law: Any = af.Attention(af.squared_distance(np.eye(1), np.eye(1), temperature=2 * eps), np.eye(1))
        average = law.at(tokens)(points)
    return (np.asarray(average)[:, 0] - x) / eps


def layer(spec: Spec) -> float:
    """One layer of attention on random tokens of the line against x <- 2x - B(x) by plain iterations, at most."""
    x, eps = np.random.default_rng(0).normal(size=(spec.nodes, 1)), 0.5
    law = af.Attention(af.dot_product(np.eye(1), np.eye(1), temperature=eps), -np.eye(1), af.Sinkhorn())
    attended = np.asarray(af.layers(af.normalized_update(law), af.Particles(x), depth=1).final.points)
    kernel, scale = np.exp(-((x - x.T) ** 2) / (2 * eps)), np.ones(len(x))
    for _ in range(1000):
        # Of a symmetric kernel one scaling makes rows and columns sum to one; its mean with the new one settles.
        scale = np.sqrt(scale / (kernel @ scale))
    return float(np.abs(2 * x - (scale[:, None] * kernel * scale[None]) @ x - attended).max())


def march(cost: str, spec: Spec) -> Float[np.ndarray, " t"]:
    """The variance after each step from N(0, 1), by layers of attention with the kernel of the cost."""
    temperature = 2 * spec.step if cost == "half" else spec.step
    law = af.Attention(af.squared_distance(np.eye(1), np.eye(1), temperature=temperature), -np.eye(1), af.Sinkhorn())
    path = af.layers(af.normalized_update(law), af.quadrature(af.Gaussian([0.0], [[1.0]]), spec.nodes), depth=spec.steps)
    return np.array([float(mu.cov[0, 0]) for mu in path])


def speed(result: Result, cost: str) -> float:
    """The growth of the variance over that of `d_t rho = 1/2 Laplace rho`, which is 1 in unit time."""
    variances = result.variances[cost]
    return float((variances[-1] - variances[0]) / (result.spec.steps * result.spec.step))


def checks(result: Result) -> list[Check]:
    """Closed forms, plain iterations, and the speeds."""
    spec, eps = result.spec, np.array(result.spec.eps)
    # In units of s the temperature is eps itself.
    off = np.abs(result.slopes - (np.sqrt(1 + eps**2 / 4) - eps / 2)).max()
    rest = np.linalg.norm((result.pulls["bridge"][-1] - result.score / 2) / eps[-1] - result.second) / np.linalg.norm(result.second)
    next = ((result.slopes[:, -1] - 1) / eps[-1] + 0.5) / eps[-1]
    # The extrapolation from two temperatures leaves their product, times a number of order one, or for the bridge far less.
    shares, left = {kind: result.share(kind) for kind in KINDS}, float(eps[-1] * eps[-2])
    return [
        Check("$N(0, s^2)$: slope of $B$ on tokens against the closed form", float(off), 0.0, 1e-7, "gaussian"),
        Check("$N(0, s^2)$: $B$ on tokens less a line, over $s$", result.spread, 0.0, 1e-6, "gaussian"),
        Check("$N(0, S)$ in the plane: matrix of $B$ against eigenvalues, relative", result.plane, 0.0, 1e-12, "gaussian"),
        Check(r"mixture: part of the score that $(B - x)/\varepsilon$ has", shares["bridge"], 0.5, left / 8, "score"),
        Check("mixture: part of the score that the kernel density has", shares["kernel density"], 1.0, 3 * left, "kernel density"),
        Check(r"mixture: term in $\varepsilon$ of $(B - x)/\varepsilon$, relative", float(rest), 0.0, eps[-1], "next"),
        Check(r"$N(0, s^2)$: $((B - x)/\varepsilon + x/(2 s^2))/\varepsilon$, in $x/s^4$", float(next.mean()), 1 / 8, 1e-3, "next"),
        Check(r"layer of attention less $x \leftarrow 2x - B(x)$ by plain iterations, at most", result.layer, 0.0, 1e-9, "layer"),
        Check(
            r"cost $\tfrac12 \lvert x - y \rvert^2$: speed over that of $\tfrac12 \Delta$",
            speed(result, "half"),
            1.0,
            spec.step**2,
            "speed",
        ),
        Check(r"cost $\lvert x - y \rvert^2$: speed over that of $\tfrac12 \Delta$", speed(result, "whole"), 0.5, spec.step**2, "speed"),
    ]


def measured(result: Result) -> dict[str, Any]:
    """The parts of the score, and the speeds."""
    return {
        "part of the score": {kind: result.share(kind) for kind in KINDS},
        "speed over that of 1/2 Laplace": {cost: speed(result, cost) for cost in result.variances},
    }


def figure(result: Result) -> "matplotlib.figure.Figure":
    """The pulls of bridge and kernel density over the score, the term in eps, and the variance along the steps."""
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.36 * af.plot.PAGE)
        left, middle, right = page.subplots(1, 3)
        x, eps = result.x, result.spec.eps[-1]
        for color, (kind, pulls), factor in zip(af.plot.COLORS, result.pulls.items(), (0.5, 1.0)):
            left.plot(x, pulls[-1], color=color, label=kind)
            left.plot(x[::2], factor * result.score[::2], "o", color=color, markersize=2.5)
        left.set(xlabel="$x$", ylabel=r"$(\mathrm{average} - x)/\varepsilon$", title=r"dots: $\frac{1}{2}$ and $1 \times$ score")
        left.legend(loc="upper right", fontsize=7)
        middle.plot(x, (result.pulls["bridge"][-1] - result.score / 2) / eps, color=af.plot.COLORS[0], label="bridge")
        middle.plot(x[::2], result.second[::2], "o", color=af.plot.COLORS[0], markersize=2.5, label="expansion")
        middle.set(xlabel="$x$", ylabel=r"term in $\varepsilon$", title=rf"$\varepsilon = {eps:g}$")
        middle.legend(loc="lower left", fontsize=7)
        t = result.spec.step * np.arange(result.spec.steps + 1)
        for color, rate, (cost, variances) in zip(af.plot.COLORS, (1.0, 0.5), result.variances.items()):
            label = r"$\frac{1}{2}|x-y|^2$" if cost == "half" else "$|x-y|^2$"
            right.plot(t, variances, color=color, label=label)
            right.plot(t[::2], 1 + rate * t[::2], "o", color=color, markersize=2.5)
        right.set(xlabel=r"$k\,\varepsilon$", ylabel="variance", title="dots: $1 + t$ and $1 + t/2$")
        right.legend(loc="upper left", title="cost", fontsize=7)
    return page
