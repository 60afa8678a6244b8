"""A trained transformer as a stack of laws: its prompt is a measure, its layers move it."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from attnflow import _check as check
from attnflow._types import ArrayLike, DType, PathLike
from attnflow.attention.law import Attention
from attnflow.attention.normalizations.base import Normalization
from attnflow.flow.path import Path, Status
from attnflow.flow.report import worst
from attnflow.measures import Particles
from attnflow.models.block import Block, Norm
from attnflow.models.embedding import Head, PatchEmbedding, WordEmbedding, probabilities
from attnflow.models.families import FAMILIES
from attnflow.models.families.base import Shape
from attnflow.models.read import Weights, find_folder, read_json
from attnflow.models.tokens import NamedTokens, Tokenizer
from attnflow.numerics.arrays import known
from attnflow.sums import Request


def load(folder: PathLike, *, dtype: DType = None) -> "Transformer":
    """A trained transformer from a folder as Hugging Face writes it, or from an installed package that has such a folder inside.

    **Arguments:**

    - `folder`: with `config.json`, `*.safetensors` (one, or shards with their index) and, for texts, `tokenizer.json`. Families are BERT
      (also MiniLM), ALBERT, GPT-2, Llama and ViT.
    - `dtype`: the precision of the weights, "float32" or "float64"; by default that of JAX's numbers.
    """
    place = find_folder(folder)
    config = read_json(place / "config.json")
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise ValueError(f"{str(place)!r} is a model of type {kind!r}; the families {', '.join(FAMILIES)} can be read")
    family, numbers = FAMILIES[kind], np.dtype(jnp.result_type(float) if dtype is None else check.real_type("dtype", dtype))
    try:
        shape = family.shape(config)
    except KeyError as error:
        raise ValueError(f"{str(place / 'config.json')!r} lacks {error.args[0]!r}, which a model of type {kind!r} has") from None
    weights = Weights(place, family.prefix)
    blocks, order = family.blocks(config, shape, weights, numbers)
    embedding, norm, head = family.ends(config, shape, weights, numbers)
    file = place / "tokenizer.json"
    return Transformer(embedding, blocks, norm, head, Tokenizer(file) if file.is_file() else None, order, kind, shape)


class Transformer(eqx.Module):
    r"""An embedding, blocks of attention and a perceptron, a final norm and a head: what `af.models.load` makes.

    The prompt is a measure, `model.measure(x)`, and the blocks move it, `model.path(x)`. Here `x` is a text, numbers of the vocabulary, an
    image (for ViT), or a measure in the space of the tokens. `blocks` are the distinct ones, `order` says which of them acts in each layer,
    and `step` is the size of a layer, 1 as trained.
    """

    embedding: WordEmbedding | PatchEmbedding
    blocks: tuple[Block, ...]
    norm: Norm | None
    head: Head | None
    tokenizer: Tokenizer | None = eqx.field(static=True)
    order: tuple[int, ...] = eqx.field(static=True)
    family: str = eqx.field(static=True)
    shape: Shape = eqx.field(static=True)
    step: float = eqx.field(static=True, default=1.0)

    @property
    def dim(self) -> int:
        """The dimension $d$ of the tokens."""
        return self.shape.dim

    @property
    def depth(self) -> int:
        """How many layers there are."""
        return len(self.order)

    @property
    def dtype(self) -> jnp.dtype:
        """The precision of the weights."""
        return jax.tree.leaves(self.blocks)[0].dtype

    def block(self, layer: int) -> Block:
        """The block that acts in a layer."""
        check.count("layer", layer, least=0)
        if layer >= self.depth:
            raise IndexError(f"layer must be below {self.depth}, the number of layers, got {layer}")
        return self.blocks[self.order[layer]]

    def law(self, layer: int, head: int) -> Attention:
        r"""One head as a law of its own, $\Gamma_\mu(x) = O_h \int k_h(x, y) (V_h y + b_h) \,d\mu(y)$, without what all heads of a layer
        share, the bias of the output. It acts on what the layer sees: `model.block(layer).seen(0, mu)`, the tokens after their norm in
        families whose norms come first."""
        return self.block(layer).attention.head(head)

    def measure(self, x: Any) -> NamedTokens:
        """The prompt as tokens of equal weight, with their names and positions."""
        if isinstance(self.embedding, PatchEmbedding):
            points = _patches(self.embedding, self.embedding.pixels(x, self.dtype))
            return NamedTokens(points, self.embedding.names)
        ids, names = self.tokens(x)
        return NamedTokens(_embedded(self.embedding, _padded(ids, _bucket(len(ids))))[: len(ids)], names)

    def tokens(self, x: str | ArrayLike) -> tuple[np.ndarray, list[str]]:
        """The numbers and the names of the tokens of a text, or of numbers of the vocabulary."""
        if isinstance(x, str):
            if self.tokenizer is None:
                raise ValueError("the model has no tokenizer.json, so that a text cannot be cut; give numbers of the vocabulary")
            numbers, names, _ = self.tokenizer.encode(x)
            ids = np.asarray(numbers, dtype=np.int64)
        else:
            ids = np.asarray(x)
            if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
                raise ValueError(f"x must be a text or whole numbers [n] of the vocabulary, got {check.shown(x)}")
            names = [str(i) if self.tokenizer is None else self.tokenizer.name(i) for i in ids]
        if len(ids) == 0:
            raise ValueError("x must have at least one token, got an empty text")
        if len(ids) > self.shape.positions:
            raise ValueError(f"x has {len(ids)} tokens, and the model has {self.shape.positions} positions; give a shorter text")
        if ids.min() < 0 or ids.max() >= self.shape.vocabulary:
            worst_id = ids.max() if ids.max() >= self.shape.vocabulary else ids.min()
            raise ValueError(f"x must be numbers of the vocabulary, 0 to {self.shape.vocabulary - 1}, got {worst_id}")
        return ids, list(names)

    def path(self, x: Any, *, sums: Request | None = None) -> Path:
        r"""The path of measures through the layers, in half layers: frames $0, \frac12, 1, \dots$ in units of trained layers, at whole
        numbers the residual stream between blocks (`resid_pre` and `resid_post` of other tools), at halves that after attention
        (`resid_mid`). The last frame is before the final norm: see `final`.

        A text is padded to a length that others share, with tokens of weight zero, so that a new text of like length compiles nothing.
        """
        mu = x if isinstance(x, Particles) else self.measure(x)
        if mu.dim != self.dim:
            raise ValueError(f"x must live in R^{self.dim} like the tokens of the model, got a measure on R^{mu.dim}")
        n, dtype = len(mu.points), self.dtype
        size = _bucket(n)
        weights = jnp.full(n, 1 / n, dtype) if mu.weights is None else mu.weights.astype(dtype)
        order = jnp.concatenate([mu.sequence, mu.sequence[-1:] + 1 + jnp.arange(size - n)]).astype(dtype)
        start = Particles(jnp.pad(mu.points.astype(dtype), ((0, size - n), (0, 0))), jnp.pad(weights, (0, size - n)), order=order)
        now, states, reports = start, [start.points], []
        for layer in self.order:
            for which in (0, 1):
                points, report = _half(self.blocks[layer], which, now, self.step, sums)
                now = now.with_state(points)
                states.append(points)
                reports += [report] if which == 0 else []
        ts = 0.5 * self.step * np.arange(len(states))
        frames = jnp.stack([points[:n] for points in states])
        figures = worst(reports) if known(reports) else {}
        return Path(ts, frames, Status("reached", ts[-1]), {"solver": "layers", "layers": self.depth} | figures, mu)

    def final(self, path: Path) -> Particles:
        """The tokens of the last frame after the final norm: `last_hidden_state` of other tools."""
        mu = path.final
        return mu if self.norm is None else mu.with_state(_normed(self.norm, mu.points))

    def logits(self, x: Any) -> Float[Array, "n v"]:
        """What the head says at every token, over the vocabulary or the classes."""
        if self.head is None:
            raise ValueError("the model has no head: its folder holds the embedding and the blocks only, so it predicts no token")
        return _logits(self.head, self.final(self.path(x)).points)

    def next(self, x: Any) -> NamedTokens:
        """The next token as a measure on the vocabulary: its points are the rows of the head, its `weights` the probabilities."""
        if not self.shape.causal:
            raise ValueError(f"a model of type {self.family!r} fills masked words and has no next one; use model.fill")
        return self._measure_of(self.logits(x)[-1])

    def fill(self, x: str | ArrayLike, *, at: int | None = None) -> NamedTokens:
        """The masked token of a text as a measure on the vocabulary; with several masks, that at the position `at`."""
        if self.shape.causal or not isinstance(self.embedding, WordEmbedding):
            raise ValueError(f"a model of type {self.family!r} has no masked words to fill; use model.next")
        logits, (ids, _) = self.logits(x), self.tokens(x)
        if at is None:
            mask = None if self.tokenizer is None else self.tokenizer.number("[MASK]")
            found = np.flatnonzero(ids == mask) if mask is not None else np.zeros(0, int)
            if len(found) != 1:
                raise ValueError(f"x must have one token [MASK], got {len(found)}; give at=, the position to fill")
            at = int(found[0])
        if not 0 <= at < len(ids):
            raise ValueError(f"at must be a position of x, 0 to {len(ids) - 1}, got {at}")
        return self._measure_of(logits[at])

    def with_normalization(self, normalize: Normalization) -> "Transformer":
        """The same weights with another normalization of all attention, such as `af.Sinkhorn()`."""
        check.instance("normalize", normalize, Normalization, "a normalization such as af.Sinkhorn()")
        return eqx.tree_at(lambda model: model.blocks, self, tuple(block.with_attention(normalize) for block in self.blocks))

    def stack(self, *, depth: int | None = None, step: float | None = None, layer: int | None = None) -> "Transformer":
        r"""Other depths of the same weights.

        - `depth`: how many layers; beyond the trained ones the last goes on, shared layers as they would.
        - `step`: the size $h = 1/k$ of a layer; each is then split into $k$ steps with its weights held.
        - `layer`: freeze this one: it acts in every layer.
        """
        order = list(self.order) if layer is None else [self.order[layer] if self.block(layer) else 0] * self.depth
        if depth is not None:
            order = [order[min(i, len(order) - 1)] for i in range(check.count("depth", depth))]
        if step is None:
            return _with(self, order=tuple(order))
        parts = round(1 / step) if isinstance(step, int | float) and 0 < step <= 1 else 0
        if not parts or abs(parts * step - 1) > 1e-9:
            raise ValueError(f"step must be 1/k for a whole number k, got {step}")
        return _with(self, order=tuple(i for i in order for _ in range(parts)), step=1 / parts)

    def _measure_of(self, logits: Float[Array, " v"]) -> NamedTokens:
        assert self.head is not None
        names = (self.tokenizer.name(i) for i in range(len(logits))) if self.tokenizer is not None else range(len(logits))
        return NamedTokens(self.head.matrix, names, probabilities(logits))

    def describe(self) -> Mapping[str, Any]:
        """What is in the model, in plain numbers."""
        count = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter((self.embedding, self.blocks, self.norm), eqx.is_array)))
        sizes = {name: getattr(self.shape, name) for name in ("dim", "heads", "key_heads", "head_dim", "hidden", "vocabulary", "positions")}
        about = {"family": self.family, "layers": self.depth, "distinct blocks": len(self.blocks)} | sizes
        return about | {
            "causal": self.shape.causal,
            "norms": "before" if self.blocks[0].pre else "after",
            "parameters": count,
            "dtype": str(self.dtype),
            "tokenizer": self.tokenizer is not None,
            "head": self.head is not None,
        }


def _with(model: Transformer, **static: Any) -> Transformer:
    """The model with other static parts."""
    parts = {name: getattr(model, name) for name in model.__dataclass_fields__} | static
    return Transformer(**parts)


def _bucket(n: int) -> int:
    """The length that a text of n tokens is padded to: 8, 12, 16, 24, 32, 48, ..."""
    size = 8
    while size < n:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


def _padded(ids: np.ndarray, size: int) -> np.ndarray:
    return np.pad(ids, (0, size - len(ids)))


@eqx.filter_jit
def _half(block: Block, which: int, mu: Particles, step: float, sums: Request | None) -> tuple[Float[Array, "n d"], dict[str, PyTree]]:
    """The tokens after a half layer, and the figures of what was iterated for it."""
    return block.half(which, mu, step, sums)


@eqx.filter_jit
def _embedded(embedding: WordEmbedding, ids: Array) -> Float[Array, "n d"]:
    return embedding(ids)


@eqx.filter_jit
def _patches(embedding: PatchEmbedding, image: Array) -> Float[Array, "n d"]:
    return embedding(image)


@eqx.filter_jit
def _normed(norm: Norm, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    return norm(x)


@eqx.filter_jit
def _logits(head: Head, x: Float[Array, "n d"]) -> Float[Array, "n v"]:
    return head(x)
