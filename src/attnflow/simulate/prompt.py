"""A prompt through a trained model as an experiment: it is run, checked, drawn and reported like a study."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from jaxtyping import Float, Int
from msgspec import Meta

import attnflow as af
from attnflow.models.lens import look
from attnflow.studies import BadInput, Check, Claim
from attnflow.studies.tools.constraints import Checked, Seed

if TYPE_CHECKING:
    import matplotlib.figure
    import xarray

    from attnflow.models import Transformer

_TOP = 10


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """The model and the prompt."""

    model: str
    """its folder, or an installed package that has one inside"""
    text: str = ""
    """the prompt; for ViT the file of an image"""
    heads: tuple[str, ...] = ()
    """whose attention is drawn, as layer.head; by default the heads of least and of largest mean entropy"""
    angle: Annotated[float, Meta(gt=0, lt=180)] = 45.0
    """tokens whose directions are within this angle, in degrees, directly or through others, are one cluster"""
    seed: Seed = 0
    """of the nulls"""


@dataclasses.dataclass(frozen=True)
class Result:
    """What `model.look` found, the attention of the chosen heads, the clusters of each frame, and the most likely next tokens."""

    spec: Spec
    names: tuple[str, ...]
    found: "xarray.Dataset"
    attention: dict[str, Float[np.ndarray, "n n"]]
    clusters: Int[np.ndarray, " frame"]
    probabilities: Float[np.ndarray, " v"] | None
    likely: tuple[str, ...]


class Prompt:
    """A trained model, and what it is asked; `x` is the prompt as the model takes it."""

    def __init__(self, model: "Transformer", x: Any, title: str):
        self.model, self.x, self.__doc__ = model, x, title
        self.CLAIMS: dict[str, Claim] = {}

    def run(self, spec: Spec, progress: bool = False) -> Result:
        model = self.model
        chosen = [self._head(name) for name in spec.heads]
        try:
            found, path = look(model, self.x, seed=spec.seed), model.path(self.x)
        except ValueError as error:
            raise BadInput(error) from error
        if not chosen:
            entropy = found["entropy"].sel(case="trained").values
            chosen = [np.unravel_index(at, entropy.shape) for at in (entropy.argmin(), entropy.argmax())]
        matrices = {f"layer {layer}, head {head}": self._matrix(path, int(layer), int(head)) for layer, head in chosen}
        counts = [af.clusters(_directions(path[i]), np.deg2rad(spec.angle)).count for i in range(0, len(path), 2)]
        said = self._said()
        likely = () if said is None else tuple(name for name, _ in said.top(_TOP))
        weights = None if said is None else np.asarray(said.weights)
        return Result(spec, model.measure(self.x).names, found, matrices, np.array(counts), weights, likely)

    def checks(self, result: Result) -> list[Check]:
        """What holds for every model: rows of attention sum to one, and so do probabilities."""
        rows = max(float(np.abs(matrix.sum(axis=1) - 1).max()) for matrix in result.attention.values())
        found = [Check("attention: rows sum to one, the largest error", rows, 0.0, 1e-5)]
        if result.probabilities is not None:
            found.append(Check("probabilities of the next token: their sum", float(result.probabilities.sum()), 1.0, 1e-5))
        return found

    def measured(self, result: Result) -> dict[str, Any]:
        """What the model is, the prompt in numbers, and what comes next."""
        trained = result.found.sel(case="trained")
        curves = {name: trained[name].values[[0, -1]].tolist() for name in ("cosine", "effective_rank", "rank_one_residual")}
        next_ones = {}
        if result.probabilities is not None:
            best = np.sort(result.probabilities)[::-1][: len(result.likely)]
            next_ones = {"next token": {name: float(p) for name, p in zip(result.likely, best)}}
        return {"model": dict(self.model.describe()), "tokens": len(result.names)} | curves | {"clusters": result.clusters} | next_ones

    def figure(self, result: Result) -> "dict[str, matplotlib.figure.Figure]":
        drawn = {"tokens": af.plot.tokenization(self.model, self.x), "layers": af.plot.layers(result.found)}
        with af.plot.look():
            page = af.plot.new_figure(af.plot.PAGE, 0.42 * af.plot.PAGE * -(-len(result.attention) // 2))
            axes = page.subplots(-(-len(result.attention) // 2), 2, squeeze=False).ravel()
            for ax, (name, matrix) in zip(axes, result.attention.items()):
                af.plot.attention(matrix, ax=ax)
                ax.set_title(name)
            for ax in axes[len(result.attention) :]:
                ax.axis("off")
        drawn["attention"] = page
        with af.plot.look():
            page = af.plot.new_figure(af.plot.PAGE, 0.3 * af.plot.PAGE)
            ax = page.add_subplot()
            ax.plot(np.arange(len(result.clusters)), result.clusters, "o-", markersize=3)
            ax.set(xlabel="layer", ylabel="clusters", title=f"directions within {result.spec.angle:g} degrees")
            ax.locator_params(integer=True)
        drawn["clusters"] = page
        return drawn

    def _head(self, name: str) -> tuple[int, int]:
        """The layer and the head of "layer.head"."""
        layer, _, head = name.partition(".")
        if not (layer.isdigit() and head.isdigit() and int(layer) < self.model.depth and int(head) < self.model.shape.heads):
            sizes = f"layers 0 to {self.model.depth - 1}, heads 0 to {self.model.shape.heads - 1}"
            raise BadInput(f"heads must be layer.head of {sizes}, got {name!r}")
        return int(layer), int(head)

    def _matrix(self, path: af.Path, layer: int, head: int) -> Float[np.ndarray, "n n"]:
        seen = self.model.block(layer).seen(0, path[2 * layer])
        return np.asarray(self.model.law(layer, head).weights(seen.points, seen))

    def _said(self) -> Any:
        """The next token, or the masked one, as a measure; `None` where the model says neither."""
        model = self.model
        if model.head is None or not model.shape.vocabulary:
            return None
        if model.shape.causal:
            return model.next(self.x)
        ids, _ = model.tokens(self.x)
        mask = None if model.tokenizer is None else model.tokenizer.number("[MASK]")
        return model.fill(self.x) if (ids == mask).sum() == 1 else None


def _directions(mu: af.Particles) -> af.Particles:
    """The tokens on the unit sphere."""
    points = np.asarray(mu.points, np.float64)
    return af.Particles(points / np.linalg.norm(points, axis=1, keepdims=True), space=af.Sphere())
