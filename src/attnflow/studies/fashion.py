r"""Heat flow of FashionMNIST by Sinkhorn attention at $\varepsilon = 100$, forward and reverse (by the authors of arXiv:2406.10823).

Images are tokens in $\mathbb{R}^{784}$. Forward, $x \leftarrow 2x - B(x)$, an image leaves the average $B$ of those that it sees; reverse,
$x \leftarrow B(x)$, it goes there. The source does not say how pixels are scaled, and that decides everything: what an image sees depends
on $\varepsilon$ over the squared distance of images. `measured` has the figures. For 2000 images, by the perplexity of the first bridge
(how many images one sees):

- pixels in $[0, 255]$: 1.0, an image sees itself alone, and nothing moves;
- pixels in $[0, 1]$: 1940, $B$ is nearly the mean of all, and a step nearly doubles the distance to it;
- pixels in $[0, 5]$, the default: 17; the squared distance to the nearest image is $5.4\,\varepsilon$, the total variance
  $17\,\varepsilon$.

What one sees is not the heat flow of a density on $\mathbb{R}^{784}$, under which the total variance would grow by $784\,\varepsilon$ a
step and images would drown in noise. Tokens stay in the affine hull of the data; forward, each moves away from its neighbors, gains
contrast to them, and all but stops when it sees none: the variance gains 0.16 % of $784\,\varepsilon$ a step, most of it in the first.
Reverse, images melt into those they resemble, of their own class or not. The way back from the forward flow leads towards the data, as
slowly.
"""

import dataclasses
import math
import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from jaxtyping import Float

import attnflow as af
from attnflow.studies.tools import idx
from attnflow.studies.tools.check import BadInput, Check, Claim
from attnflow.studies.tools.constraints import Checked, Count, Meta, Positive, Seed
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

_TOLERANCE = 1e-8
# At most so many steps of a flow are drawn.
_DRAWN = 5

CLAIMS = {
    "heat": Claim(
        r"Images under $x \leftarrow 2x - B$ at $\varepsilon = 100$ stay in the affine hull of the data, and their variance gains a few "
        r"per cent at most of the $784\, \varepsilon$ a step of the heat flow of a density on $R^{784}$: it is not that flow.",
        "poster of arXiv:2406.10823",
        "differs",
        r"heat flow with $\varepsilon = 10^2$ and $\rho_0 \sim \text{FashionMNIST}$",
        r"Our setting: images drawn at random, a white pixel has the value 5, a black one 0, $\varepsilon = 100$ in the cost "
        r"$\tfrac12 \lvert x - y \rvert^2$, bridges solved to $10^{-8}$. Images move to affine combinations of images, while "
        r"under the heat flow "
        r"a density on $R^{784}$ gains the variance $784\, \varepsilon$ a step: theirs is another flow.",
        "The caption names a picture and not a theorem, whose assumption, a smooth density, images do not have. It does not say how many "
        "images there are nor how pixels are scaled; with other values the numbers change, but not that images stay in their affine hull.",
    ),
    "spread": Claim(
        "The self-bridge of tokens is a doubly stochastic matrix with its spectrum in $[0, 1]$: $2x - B$ spreads tokens, $B$ gathers them, "
        "and both keep the mean.",
        "arXiv:2110.11773, arXiv:2406.10823",
        "proved",
    ),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """Which images, how hot, how long."""

    n: Annotated[int, Meta(ge=2)] = 2000
    """how many images, drawn at random"""
    eps: Positive = 100.0
    """the temperature, and the time of a step"""
    pixels: Positive = 5.0
    """the value of a white pixel; a black one is 0"""
    steps: Count = 5
    """how many steps of each flow"""
    seed: Seed = 0
    """the seed of the draw"""
    data: pathlib.Path | None = None
    """a folder with train-images-idx3-ubyte and train-labels-idx1-ubyte, plain or .gz; by default that of Debian's dataset-fashion-mnist"""


@dataclasses.dataclass(frozen=True)
class Flow:
    """The images of one flow: those that are drawn, `[steps + 1, rows, h, w]`, and figures.

    After each step: `variance`, the total one; `distance`, root mean square to the data; `drift` of the mean; all in units of the data,
    whose total variance is 1. Of each bridge: `perplexity`, `error` and `iterations`.
    """

    pictures: Float[np.ndarray, "t rows h w"]
    variance: Float[np.ndarray, " t"]
    distance: Float[np.ndarray, " t"]
    drift: Float[np.ndarray, " t"]
    perplexity: list[float]
    error: list[float]
    iterations: list[int]


@dataclasses.dataclass(frozen=True)
class Result:
    """Forward from the data, back from where that ends, reverse from the data; squared distances in units of eps, and the perplexity of the
    first bridge for other values of a white pixel."""

    spec: Spec
    forward: Flow
    back: Flow
    reverse: Flow
    variance: float
    nearest: float
    perplexity: dict[float, float]


FAST = Spec(n=30, steps=2)


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """Three flows of the same images."""
    spec = Spec() if spec is None else spec
    images, labels = idx.labeled(spec.data)
    if spec.n > len(images):
        raise BadInput(f"n must be at most {len(images)}, the number of images there are, got {spec.n}")
    chosen = np.random.default_rng(spec.seed).permutation(len(images))[: spec.n]
    unit = images[chosen].reshape(spec.n, -1) / 255.0
    _, rows = np.unique(labels[chosen], return_index=True)
    data = spec.pixels * unit
    variance = float(data.var(axis=0).sum())
    if variance == 0:
        raise BadInput("the images must not all be the same")
    others = [white for white in (1.0, 255.0) if white != spec.pixels]

    def flow(plan: tuple[np.ndarray, bool]) -> tuple[Flow, np.ndarray]:
        return _flow(*plan, data, spec, rows, images.shape[1:])

    def first(white: float) -> float:
        cloud = af.Particles(white * unit)
        bridge = af.self_bridge(cloud, spec.eps, tolerance=_TOLERANCE)
        return perplexity(bridge, np.asarray(bridge.barycentric()))

    (forward, end), (reverse, _) = parts(flow, [(data, True), (data, False)], "flows from the data", progress, like=(Flow, None))
    ((back, _),) = parts(flow, [(end, False)], "flow back", progress, like=(Flow, None))
    seen = {spec.pixels: forward.perplexity[0]} | dict(zip(others, parts(first, others, "other pixels", progress)))
    return Result(spec, forward, back, reverse, variance / spec.eps, _nearest(data) / spec.eps, seen)


def _flow(x: np.ndarray, forward: bool, data: np.ndarray, spec: Spec, rows: np.ndarray, shape: tuple[int, int]) -> tuple[Flow, np.ndarray]:
    """The flow from x, and where it ends."""
    states, seen, errors, iterations, bridge = [x], [], [], [], None
    scheme = af.Heat() if forward else af.ReverseHeat()
    for _ in range(spec.steps):
        step = scheme.step(af.Particles(x), spec.eps, tolerance=_TOLERANCE, start=bridge)
        bridge, later = step.bridge, np.asarray(step.measure.state)
        seen.append(perplexity(bridge, 2 * x - later if forward else later))
        errors.append(float(bridge.error))
        iterations.append(int(bridge.iterations))
        x = later
        states.append(x)
    size = data.var(axis=0).sum()
    return Flow(
        np.stack([state[rows].reshape(-1, *shape) for state in states]),
        np.array([state.var(axis=0).sum() for state in states]) / size,
        np.sqrt([((state - data) ** 2).sum(axis=1).mean() / size for state in states]),
        np.array([np.linalg.norm(state.mean(axis=0) - data.mean(axis=0)) for state in states]) / math.sqrt(size),
        seen,
        errors,
        iterations,
    ), x


def perplexity(bridge: Any, mean: Float[np.ndarray, "n d"]) -> float:
    """How many tokens a token sees: the exponential of the entropy of y given x, on average over x, from `B(x)` at the tokens.

    The entropy is `log n - KL(pi | mu x mu)`, and the cost of the bridge is `E 1/2 |x-y|^2 + eps KL` with
    `E 1/2 |x-y|^2 = E <x - m, x - B(x)>`.
    """
    x = np.asarray(bridge.measure.points)
    work = np.sum((x - x.mean(axis=0)) * (x - mean), axis=1).mean()
    return len(x) * math.exp(-(float(bridge.cost) - work) / float(bridge.eps))


def _nearest(x: Float[np.ndarray, "n d"]) -> float:
    """The squared distance to the nearest other row, on average."""
    squares, found = (x**2).sum(axis=1), []
    for i in range(0, len(x), 1000):
        distances = squares[i : i + 1000, None] + squares[None] - 2 * x[i : i + 1000] @ x.T
        distances[np.arange(len(distances)), np.arange(i, i + len(distances))] = np.inf
        found.append(distances.min(axis=1))
    return float(np.maximum(np.concatenate(found), 0).mean())


def checks(result: Result) -> list[Check]:
    """A bridge has both marginals, so that its map keeps the mean; as a matrix it has its spectrum in [0, 1], so that `2x - B` spreads the
    images and B gathers them. The way back leads towards the data."""
    flows = _flows(result).values()
    worst = max(error for flow in flows for error in flow.error)
    # Every bridge may move the mean by its error times the mean distance to it.
    drift = max(float((flow.drift / np.maximum(1, np.sqrt(flow.variance))).max()) for flow in flows)
    return [
        Check("bridges: largest violation of a marginal", worst, 0.0, _TOLERANCE),
        Check("mean of the images: largest drift, in deviations", drift, 0.0, 2 * result.spec.steps * _TOLERANCE, "spread"),
        Check("forward: steps at which the variance falls", _rises(-result.forward.variance), 0.0, 0.0, "spread"),
        Check("reverse: steps at which the variance grows", _rises(result.reverse.variance), 0.0, 0.0, "spread"),
        Check("back: steps at which the variance grows", _rises(result.back.variance), 0.0, 0.0, "spread"),
        Check("back: steps away from the data", _rises(result.back.distance), 0.0, 0.0),
        Check("forward: variance gained over that of the heat flow of a density", _gained(result), 0.0, 0.05, "heat"),
    ]


def _gained(result: Result) -> float:
    """The variance gained forward, over that of the heat flow of a density."""
    d = result.forward.pictures[0, 0].size
    return float((result.forward.variance[-1] - 1) * result.variance / (d * result.spec.steps))


def _rises(values: np.ndarray) -> float:
    """How often they rise by more than round-off: images that have melted into one do not move."""
    return float(np.sum(np.diff(values) > 1e-12))


def measured(result: Result) -> dict[str, Any]:
    """What gives eps a meaning, and the figures of every step."""
    return {
        "white pixel": result.spec.pixels,
        "total variance / eps": result.variance,
        "mean squared distance to the nearest image / eps": result.nearest,
        "perplexity of the first bridge, by white pixel": result.perplexity,
        "variance gained forward / that of the heat flow of a density": _gained(result),
        **{
            name: {part.name: getattr(flow, part.name) for part in dataclasses.fields(flow) if part.name != "pictures"}
            for name, flow in _flows(result).items()
        },
    }


def figure(result: Result) -> "matplotlib.figure.Figure":
    """One image a class and row: the data, forward from them, back from there, and reverse from the data."""
    spec = result.spec
    drawn = np.unique(np.linspace(1, spec.steps, min(_DRAWN, spec.steps)).round().astype(int))
    blocks = {"data": {"": result.forward.pictures[0]}}
    blocks |= {name: {str(k): flow.pictures[k] for k in drawn} for name, flow in _flows(result).items()}
    rows, height, width = result.forward.pictures.shape[1:]
    # One array for all pictures, NaN between them: axes for each would take a minute to lay out.
    gap, columns = width // 7, sum(map(len, blocks.values()))
    canvas = np.full((rows * (height + gap) - gap, columns * (width + gap) + 2 * gap * len(blocks) - 3 * gap), np.nan)
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, af.plot.PAGE * canvas.shape[0] / canvas.shape[1] + 0.4)
        ax, left = page.add_subplot(), 0
        for name, block in blocks.items():
            ax.text(left + (len(block) * (width + gap) - gap) / 2, -0.45 * height, name, ha="center", va="bottom")
            for label, pictures in block.items():
                for i, picture in enumerate(pictures):
                    canvas[i * (height + gap) :, left:][:height, :width] = picture
                ax.text(left + width / 2, -0.1 * height, label, ha="center", va="bottom", fontsize=8)
                left += width + gap
            left += 2 * gap
        ax.imshow(canvas, cmap="gray_r", vmin=-0.25 * spec.pixels, vmax=1.25 * spec.pixels, interpolation="nearest")
        ax.set_axis_off()
    return page


def _flows(result: Result) -> dict[str, Flow]:
    return {"forward": result.forward, "back": result.back, "reverse": result.reverse}
