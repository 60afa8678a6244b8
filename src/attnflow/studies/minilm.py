r"""Through the layers of a trained MiniLM the tokens of a sentence come together, less than chance would have them (arXiv:2002.10957).

The theory of simple attention says that tokens cluster (arXiv:2312.10794). Here it is measured in one trained model, all-MiniLM-L6-v2, by
the mean cosine over pairs of different tokens of a sentence, after every layer. Beside it stands what three nulls give: the entries of
every matrix shuffled, independent normal tokens at the start, the words of the sentence in another order. This is about this model and
these sentences; other models were seen to behave otherwise.
"""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from jaxtyping import Float

import attnflow as af
from attnflow.models.lens import CASES, random_start, shuffled_order, shuffled_weights
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import Checked, Meta, Seed
from attnflow.studies.tools.parts import parts
from attnflow.studies.tools.sentences import PLAIN
from attnflow.studies.tools.trained import minilm

if TYPE_CHECKING:
    import matplotlib.figure

_MODEL = "all-MiniLM-L6-v2 (arXiv:2002.10957)"
CLAIMS = {
    "clusters": Claim(
        f"In {_MODEL} the tokens of every sentence come together from the embedding to the last layer, by the mean cosine of different "
        "tokens.",
        "measured here, after arXiv:2312.10794 (simple attention)",
        "numerics",
    ),
    "rank": Claim(
        f"In {_MODEL} the effective rank of the tokens of every sentence falls from the embedding to the last layer.",
        "measured here, after arXiv:2312.10794 (simple attention)",
        "numerics",
    ),
    "trained": Claim(
        f"The layers of {_MODEL} with the entries of every matrix shuffled bring every sentence closer together than as trained.",
        "measured here",
        "numerics",
    ),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """How many sentences."""

    sentences: Annotated[int, Meta(ge=2, le=len(PLAIN))] = len(PLAIN)
    """how many sentences"""
    seed: Seed = 0
    """of the nulls"""


@dataclasses.dataclass(frozen=True)
class Result:
    """For the model and each null, of each sentence after each layer: the mean cosine of different tokens, and the effective rank."""

    spec: Spec
    cosines: dict[str, Float[np.ndarray, "sentence layer"]]
    ranks: dict[str, Float[np.ndarray, "sentence layer"]]


FAST = Spec(sentences=3)


def run(spec: Spec, progress: bool = False) -> Result:
    """Every sentence through the model and the nulls."""
    model, rng = minilm(), np.random.default_rng(spec.seed)
    shuffled = shuffled_weights(model, rng)

    def follow(i: int) -> Float[np.ndarray, "case 2 layer"]:
        draw = np.random.default_rng([spec.seed, i])
        mu, text = model.measure(PLAIN[i]), PLAIN[i]
        other = model.measure(shuffled_order(model, text, draw))
        runs = ((model, mu), (shuffled, mu), (model, random_start(mu, draw)), (model, other))
        return np.array([_curves(*one) for one in runs])

    found = np.array(parts(follow, range(spec.sentences), "sentences", progress))
    cosines, ranks = ({case: found[:, k, j] for k, case in enumerate(CASES)} for j in range(2))
    return Result(spec, cosines, ranks)


def _curves(model: Any, mu: af.Particles) -> Float[np.ndarray, "2 layer"]:
    frames = list(model.path(af.Particles(mu.points)))[::2]
    return np.array([[float(af.pair_cosine(nu)) for nu in frames], [float(af.effective_rank(nu)) for nu in frames]])


def checks(result: Result) -> list[Check]:
    """The shares of sentences that behave as said, and the curve that a first measurement on one sentence gave."""
    cosines, ranks = result.cosines, result.ranks
    trained = cosines["trained"]
    return [
        Check("share of sentences whose cosine grows", float((trained[:, -1] > trained[:, 0]).mean()), 1.0, 0.0, "clusters"),
        Check("mean cosine after the last layer", float(trained[:, -1].mean()), 0.35, 0.1, "clusters"),
        Check(
            "share of sentences whose effective rank falls",
            float((ranks["trained"][:, -1] < ranks["trained"][:, 0]).mean()),
            1.0,
            0.0,
            "rank",
        ),
        Check(
            "share of sentences that shuffled weights bring closer",
            float((cosines["shuffled weights"][:, -1] > trained[:, -1]).mean()),
            1.0,
            0.0,
            "trained",
        ),
        # Words and positions are what the model learned them to be, and nearly orthogonal.
        Check("mean cosine of the embedding", float(trained[:, 0].mean()), 0.07, 0.05),
    ]


def measured(result: Result) -> dict[str, Any]:
    """The curves, as means over sentences."""
    return {"cosine": {case: values.mean(axis=0) for case, values in result.cosines.items()}} | {
        "effective rank": {case: values.mean(axis=0) for case, values in result.ranks.items()}
    }


def figure(result: Result) -> "matplotlib.figure.Figure":
    """Cosine and rank along the layers, every sentence faint, means strong."""
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.4 * af.plot.PAGE)
        for ax, (title, curves) in zip(page.subplots(1, 2), (("mean cosine", result.cosines), ("effective rank", result.ranks))):
            for color, (case, values) in zip(af.plot.COLORS, curves.items()):
                ax.plot(values.T, color=color, alpha=0.15, linewidth=0.6)
                ax.plot(values.mean(axis=0), "o-" if case == "trained" else "--", color=color, markersize=3, label=case)
            ax.set(xlabel="layer", title=title)
        ax.legend(loc="lower left")
    return page
