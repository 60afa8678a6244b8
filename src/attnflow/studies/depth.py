r"""Is a trained transformer near a flow? Layers split into $k$ steps of $1/k$ tend to one, at order one (arXiv:2312.10794).

The theory takes depth for time: a layer $x \leftarrow F(x)$ is one step of size one of $x' = F(x) - x$, half layer by half layer. Splitting
every half layer into $k$ steps $x \leftarrow x + (F(x) - x)/k$ is Euler's method for that flow, so that the end differs from the flow by
$O(1/k)$: differences of successive doublings halve. How far the trained network, $k = 1$, is from the flow that it is a step of is a number
that only the weights know; here it is measured in one trained model, relative to how far its layers move the tokens.
"""

import dataclasses
import itertools
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from jaxtyping import Float

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import DOUBLING, Checked, Count, Meta
from attnflow.studies.tools.parts import parts
from attnflow.studies.tools.sentences import PLAIN
from attnflow.studies.tools.trained import minilm

if TYPE_CHECKING:
    import matplotlib.figure

CLAIMS = {
    "order": Claim(
        "The layers of all-MiniLM-L6-v2, each split into $k$ steps of $1/k$ with its weights held, tend to a flow at order one in $1/k$.",
        "Euler's method; layers as time: arXiv:2312.10794",
        "proved",
    ),
    "far": Claim(
        "The trained all-MiniLM-L6-v2 is not near the flow that its layers are steps of: it ends farther from it than half of the way "
        "that the flow moves the tokens.",
        "measured here, for the picture of arXiv:2312.10794",
        "numerics",
    ),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """How many sentences, how fine."""

    sentences: Annotated[int, Meta(ge=1, le=len(PLAIN))] = 4
    """how many sentences"""
    steps: Annotated[tuple[Count, ...], Meta(min_length=4), DOUBLING] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    """into how many steps a layer is split"""


@dataclasses.dataclass(frozen=True)
class Result:
    """For each sentence and number of steps: the distance of the end from that with twice as many (all but the last), and from the finest;
    how far the finest moves the tokens. Root mean squares over tokens."""

    spec: Spec
    gaps: Float[np.ndarray, "sentence doubling"]
    distances: Float[np.ndarray, "sentence step"]
    moved: Float[np.ndarray, " sentence"]


FAST = Spec(sentences=1, steps=(1, 2, 4, 8, 16, 32, 64, 128))


def run(spec: Spec, progress: bool = False) -> Result:
    """Every sentence with every number of steps."""
    model = minilm()

    def follow(i: int) -> Float[np.ndarray, "step n d"]:
        mu = af.Particles(model.measure(PLAIN[i]).points)
        ends = [model.stack(step=1 / k).path(mu).final.points for k in spec.steps]
        return np.stack([np.asarray(mu.points), *map(np.asarray, ends)])

    found = parts(follow, range(spec.sentences), "sentences", progress)
    gaps = np.array([[_apart(a, b) for a, b in itertools.pairwise(states[1:])] for states in found])
    distances = np.array([[_apart(state, states[-1]) for state in states[1:]] for states in found])
    return Result(spec, gaps, distances, np.array([_apart(states[0], states[-1]) for states in found]))


def _apart(a: Float[np.ndarray, "n d"], b: Float[np.ndarray, "n d"]) -> float:
    return float(np.sqrt(((a - b) ** 2).sum(axis=1).mean()))


def checks(result: Result) -> list[Check]:
    """The ratio of the last two differences, and how far the trained network is from the flow."""
    ratio = float((result.gaps[:, -1] / result.gaps[:, -2]).mean())
    far = float((result.distances[:, 0] / result.moved).mean())
    return [
        Check("ratio of the differences of the last two doublings", ratio, 0.5, 0.1, "order"),
        Check("distance of the trained network from the flow, in units of the way of the flow", far, 1.0, 0.5, "far"),
    ]


def measured(result: Result) -> dict[str, Any]:
    """The differences and distances, as means over sentences."""
    return {
        "difference of successive doublings": result.gaps.mean(axis=0),
        "distance from the finest over the way": (result.distances / result.moved[:, None]).mean(axis=0),
    }


def figure(result: Result) -> "matplotlib.figure.Figure":
    """Distances from the finest steps, and differences of doublings, against the number of steps."""
    steps = np.array(result.spec.steps)
    with af.plot.look():
        page = af.plot.new_figure(af.plot.COLUMN, 0.8 * af.plot.COLUMN)
        ax = page.add_subplot()
        ax.loglog(steps[:-1], (result.distances[:, :-1] / result.moved[:, None]).T, "o-", color=af.plot.COLORS[0], markersize=3)
        ax.loglog(steps[:-1], (result.gaps / result.moved[:, None]).T, "s--", color=af.plot.COLORS[1], markersize=3)
        guide = 0.5 * result.gaps[:, -1].mean() / result.moved.mean() * steps[-2] / steps[:-1]
        ax.loglog(steps[:-1], guide, ":", color="0.5")
        ax.legend(ax.lines[:: len(result.moved)], ["from the finest", "from twice as many", "$1/k$"])
        ax.set(xlabel="steps $k$ per layer", ylabel="distance over the way of the flow")
    return page
