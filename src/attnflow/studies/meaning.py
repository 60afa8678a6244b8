r"""The senses of a word part, layer by layer, in a trained MiniLM: a bank of money and the bank of a river (arXiv:2002.10957).

At the embedding the word is one vector but for its position, which may differ between the senses a little. Its states after each layer,
over sentences that use it in two senses, are compared by the margin: the mean cosine of two occurrences of one sense less that of two of
different senses. Whether it is more than chance is answered by permuting the senses among the sentences: the share of permutations with a
margin at least as large.
"""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from jaxtyping import Float, Int

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import Checked, Meta, Seed
from attnflow.studies.tools.parts import parts
from attnflow.studies.tools.sentences import BANK
from attnflow.studies.tools.trained import minilm

if TYPE_CHECKING:
    import matplotlib.figure

_WORD = "bank"
_MOST = min(len(sentences) for sentences in BANK.values())
CLAIMS = {
    "part": Claim(
        "In all-MiniLM-L6-v2 the two senses of a word part: after the last layer the margin is beyond chance and several times that at the "
        "embedding, where the position alone tells occurrences apart.",
        "measured here, after the picture of words that gather by sense; arXiv:2002.10957 (the model)",
        "numerics",
    ),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """How many sentences and permutations."""

    sentences: Annotated[int, Meta(ge=4, le=_MOST)] = _MOST
    """how many sentences of each sense"""
    permutations: Annotated[int, Meta(ge=100)] = 10_000
    """how many permutations of the senses"""
    seed: Seed = 0
    """of the permutations"""


@dataclasses.dataclass(frozen=True)
class Result:
    """The states of the word, the number of its sense, the margin after each layer, and the share of permutations with one as large."""

    spec: Spec
    states: Float[np.ndarray, "layer sentence d"]
    senses: Int[np.ndarray, " sentence"]
    margins: Float[np.ndarray, " layer"]
    chance: Float[np.ndarray, " layer"]


FAST = Spec(sentences=8, permutations=1000)


def run(spec: Spec, progress: bool = False) -> Result:
    """The word in every sentence, then the permutations."""
    model = minilm()
    sentences = [text for texts in BANK.values() for text in texts[: spec.sentences]]

    def follow(text: str) -> Float[np.ndarray, "layer d"]:
        mu = model.measure(text)
        return np.asarray(model.path(af.Particles(mu.points)).states)[::2, mu.names.index(_WORD)]

    states = np.stack(parts(follow, sentences, "sentences", progress), axis=1)
    senses = np.repeat(np.arange(len(BANK)), spec.sentences)
    cosines = _cosines(states)
    rng = np.random.default_rng(spec.seed)
    drawn = np.array([margin(cosines, rng.permutation(senses)) for _ in range(spec.permutations)])
    margins = margin(cosines, senses)
    # The sense as it is counts as one permutation, so that no share is zero.
    chance = (1 + (drawn >= margins[None] - 1e-12).sum(axis=0)) / (1 + spec.permutations)
    return Result(spec, states, senses, margins, chance)


def _cosines(states: Float[np.ndarray, "layer sentence d"]) -> Float[np.ndarray, "layer sentence sentence"]:
    unit = states / np.linalg.norm(states, axis=2, keepdims=True)
    return unit @ unit.transpose(0, 2, 1)


def margin(cosines: Float[np.ndarray, "layer s s"], senses: Int[np.ndarray, " s"]) -> Float[np.ndarray, " layer"]:
    """The mean cosine of two different occurrences of one sense less that of two of different senses."""
    same = senses[:, None] == senses[None]
    other = same & ~np.eye(len(senses), dtype=bool)
    return cosines[:, other].mean(axis=1) - cosines[:, ~same].mean(axis=1)


def checks(result: Result) -> list[Check]:
    """Next to nothing at the embedding, beyond chance at the end."""
    return [
        Check("share of permutations with as large a margin, after the last layer", float(result.chance[-1]), 0.0, 0.01, "part"),
        Check("margin at the embedding", float(result.margins[0]), 0.0, 0.03, "part"),
        Check("margin at the embedding over that after the last layer", float(result.margins[0] / result.margins[-1]), 0.0, 0.3, "part"),
    ]


def measured(result: Result) -> dict[str, Any]:
    """Margins and chances, layer by layer."""
    return {"margin": result.margins, "share of permutations": result.chance}


def figure(result: Result) -> "matplotlib.figure.Figure":
    """The margin along the layers, and the word in two principal components at the start and at the end."""
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.36 * af.plot.PAGE)
        left, *clouds = page.subplots(1, 3)
        left.plot(result.margins, "o-", markersize=3)
        left.axhline(0, color="0.7", linewidth=0.6)
        left.set(xlabel="layer", ylabel="margin of cosines")
        for ax, layer, title in zip(clouds, (0, -1), ("embedding", "last layer")):
            x = result.states[layer] - result.states[layer].mean(axis=0)
            shown = x @ np.linalg.svd(x, full_matrices=False)[2][:2].T
            for k, sense in enumerate(BANK):
                ax.plot(*shown[result.senses == k].T, "o", color=af.plot.COLORS[k], markersize=3.5, label=sense)
            ax.set(title=title, xlabel="first component", ylabel="second")
        clouds[1].legend()
    return page
