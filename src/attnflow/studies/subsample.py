r"""What attention makes of a token needs few others: with $n$ drawn from its context the error falls like $n^{-1/2}$ (arXiv:2512.10656).

A prompt is a measure, and attention an integral over it, so a sample of the context gives it up to the error of a sample mean. Three
measurements: one softmax layer over a Gaussian context, whose exact velocity is a closed form; a trained MiniLM, one token of a longer
text, with its context subsampled after the embedding (the tokens that begin and end the text, on which much attention rests, keep their
weight); and the other side of the same coin, that repeating every token changes nothing at all.
"""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import RISING, Checked, Count, Meta, Seed
from attnflow.studies.tools.parts import parts
from attnflow.studies.tools.sentences import PLAIN
from attnflow.studies.tools.trained import minilm

if TYPE_CHECKING:
    import matplotlib.figure

_DIM = 4
CLAIMS = {
    "layer": Claim(
        r"The output of one softmax attention layer at a token, over $n$ tokens drawn from its context, has an error of order $n^{-1/2}$.",
        "arXiv:2512.10656 (abstract); the central limit theorem for a Gaussian context",
        "proved",
    ),
    "depth": Claim(
        r"Through all layers of all-MiniLM-L6-v2 the error of the state of a token under a subsampled context falls with its size, at a "
        r"power between $n^{-1/4}$ and $n^{-3/4}$.",
        "measured here, after arXiv:2512.10656",
        "numerics",
    ),
    "repeated": Claim(
        "Repeating every token of a prompt, at its position, changes no state of all-MiniLM-L6-v2: it acts on measures.",
        "derived here: attention is an integral",
        "proved",
    ),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """Sizes of samples, and how many draws."""

    sizes: Annotated[tuple[Count, ...], Meta(min_length=3), RISING] = (64, 256, 1024, 4096)
    """how many tokens of the Gaussian context"""
    kept: Annotated[tuple[Count, ...], Meta(min_length=3), RISING] = (8, 16, 32, 64)
    """how many tokens of the text"""
    draws: Annotated[int, Meta(ge=8)] = 64
    """how many samples of each size"""
    seed: Seed = 0
    """of the samples"""


@dataclasses.dataclass(frozen=True)
class Result:
    """Root mean square errors over draws: of one layer over a Gaussian context, of a token of the text at the last layer, in units of the
    length of states; and the largest change when every token is repeated."""

    spec: Spec
    layer: Float[np.ndarray, " size"]
    depth: Float[np.ndarray, " kept"]
    repeated: float


FAST = Spec(sizes=(64, 256, 1024), kept=(8, 16, 32), draws=24)


def run(spec: Spec, progress: bool = False) -> Result:
    """The Gaussian context, then the text."""
    law = af.simple_attention(0.5, _DIM)
    query = jnp.ones((1, _DIM)) / np.sqrt(_DIM)
    exact = np.asarray(law.at(af.Gaussian(np.zeros(_DIM), np.eye(_DIM)))(query))

    def gaussian(n: int) -> float:
        keys = jax.random.split(jax.random.key(spec.seed + n), spec.draws)
        return float(np.sqrt(np.mean([np.sum((np.asarray(_at(law, query, jax.random.normal(k, (n, _DIM)))) - exact) ** 2) for k in keys])))

    layer = parts(gaussian, spec.sizes, "Gaussian contexts", progress)
    model, rng = minilm(), np.random.default_rng(spec.seed)
    mu = model.measure(" ".join(PLAIN[:6]))
    n, points = len(mu.points), np.asarray(mu.points)
    token = n // 2
    always = np.array([token, 0, n - 1])
    states = np.asarray(model.path(af.Particles(points)).final.points)
    whole, length = states[token], np.sqrt((states**2).sum(axis=1).mean())

    def text(kept: int) -> float:
        errors = []
        for _ in range(spec.draws):
            others = rng.choice(np.delete(np.arange(n), always), kept, replace=False)
            weights = np.append(np.full(len(always), 1 / n), np.full(kept, (1 - len(always) / n) / kept))
            end = model.path(af.Particles(points[np.append(always, others)], weights)).final.points[0]
            errors.append(np.sum((np.asarray(end) - whole) ** 2))
        return float(np.sqrt(np.mean(errors)) / length)

    depth = parts(text, spec.kept, "contexts of the text", progress)
    short = points[: n // 4]
    once, twice = (model.path(af.Particles(np.repeat(short, count, axis=0))).final.points for count in (1, 2))
    return Result(spec, np.array(layer), np.array(depth), float(np.abs(np.asarray(twice)[::2] - np.asarray(once)).max()))


@eqx.filter_jit
def _at(law: af.Attention, query: Float[Array, "1 d"], points: Float[Array, "n d"]) -> Float[Array, "1 d"]:
    return law.at(af.Particles(points))(query)


def _slope(sizes: tuple[int, ...], errors: Float[np.ndarray, " s"]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])


def checks(result: Result) -> list[Check]:
    """The slopes, and that nothing changes."""
    spec = result.spec
    # A slope over draws is known to about the relative error of a root mean square at each end.
    known = 4 / np.sqrt(2 * spec.draws) / np.log(spec.sizes[-1] / spec.sizes[0])
    return [
        Check("one layer: slope of the error in the size of the sample", _slope(spec.sizes, result.layer), -0.5, float(known), "layer"),
        Check("MiniLM: slope of the error in the size of the sample", _slope(spec.kept, result.depth), -0.5, 0.25, "depth"),
        Check("every token repeated: the largest change of a state", result.repeated, 0.0, 1e-10, "repeated"),
    ]


def measured(result: Result) -> dict[str, Any]:
    """The errors and their slopes."""
    return {"one layer": result.layer, "MiniLM": result.depth, "slope in MiniLM": _slope(result.spec.kept, result.depth)}


def figure(result: Result) -> "matplotlib.figure.Figure":
    """Both errors against the size of the sample."""
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.36 * af.plot.PAGE)
        found = (
            (result.spec.sizes, result.layer, "one layer, Gaussian context"),
            (result.spec.kept, result.depth, "MiniLM, a token of a text"),
        )
        for ax, (sizes, errors, title) in zip(page.subplots(1, 2), found):
            ax.loglog(sizes, errors, "o-", markersize=3)
            ax.loglog(sizes, 0.7 * errors[0] * (np.array(sizes) / sizes[0]) ** -0.5, ":", color="0.5", label="$n^{-1/2}$")
            ax.set(xlabel="tokens $n$ of the context", ylabel="error", title=title)
            ax.legend()
    return page
