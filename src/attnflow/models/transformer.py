"""A trained transformer as a stack of laws: its prompt is a measure, its layers move it."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from attnflow import _check as check
from attnflow._types import ArrayLike, DType, PathLike, Scalar
from attnflow.attention.law import Attention
from attnflow.attention.normalizations.base import Normalization
from attnflow.flow.path import Path, Status
from attnflow.flow.report import worst
from attnflow.measures import Particles
from attnflow.models.block import Block, Norm
from attnflow.models.embedding import Head, PatchEmbedding, WordEmbedding
from attnflow.models.families import FAMILIES
from attnflow.models.families.base import Shape
from attnflow.models.read import Weights, find_folder, read_json
from attnflow.models.tokens import NamedTokens, Tokenizer
from attnflow.numerics.arrays import array, floats, known, on_host
from attnflow.sums import Request, check_request

if TYPE_CHECKING:
    import xarray


def load(folder: PathLike, *, dtype: DType | None = None) -> "Transformer":
    """A trained transformer from a folder as Hugging Face writes it, or from an installed package that has such a folder inside.

    **Arguments:**

    - `folder`: with `config.json`, `*.safetensors` (one, or shards with their index) and, for texts, `tokenizer.json`. Families are BERT
      (also MiniLM), ALBERT, GPT-2, Llama and ViT.
    - `dtype`: the precision of the weights, "float32" or "float64"; by default that of JAX's numbers.
    """
    place = find_folder(folder)
    precision = check.real_type("dtype", dtype)
    # A number of this precision, as JAX has it: without its 64-bit mode there is a warning.
    precision = floats("dtype", np.ones((), precision), "").dtype
    config = read_json(place / "config.json")
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ValueError(f"{str(place)!r} must be a model of type {', '.join(FAMILIES)} by its config.json, got {check.shown(kind)}")
    family = FAMILIES[kind]
    shape, weights = family.shape(config), Weights(place, family.prefix, precision)
    embedding, norm, head = family.ends(config, shape, weights)
    blocks, order = family.blocks(config, shape, weights)
    file = place / "tokenizer.json"
    return Transformer(embedding, blocks, norm, head, Tokenizer(file) if file.is_file() else None, order, kind, shape, weights.taken)


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
    parameters: int = eqx.field(static=True)
    step: float = eqx.field(static=True, default=1.0)

    @property
    def dim(self) -> int:
        """The dimension $d$ of the tokens."""
        return self.shape.dim

    @property
    def depth(self) -> int:
        """How many layers there are, each of size `step`."""
        return len(self.order)

    @property
    def dtype(self) -> jnp.dtype:
        """The precision of the weights."""
        return jax.tree.leaves(self.blocks)[0].dtype

    def block(self, layer: int) -> Block:
        """The block that acts in a layer."""
        return self.blocks[self.order[self._layer(layer)]]

    def _layer(self, layer: Any) -> int:
        if check.count("layer", layer, least=0) >= self.depth:
            raise IndexError(f"layer must be below {self.depth}, the number of layers, got {layer}")
        return layer

    def law(self, layer: int, head: int) -> Attention:
        r"""One head as a law of its own, $\Gamma_\mu(x) = O_h \int k_h(x, y) (V_h y + b_h) \,d\mu(y)$, without what all heads of a layer
        share, the bias of the output. It acts on what the layer sees: `model.block(layer).seen(0, mu)`, the tokens after their norm in
        families whose norms come first."""
        return self.block(layer).attention.head(head)

    def measure(self, x: str | ArrayLike) -> NamedTokens:
        """The prompt as tokens of equal weight, with their names and positions."""
        if isinstance(self.embedding, PatchEmbedding):
            return NamedTokens(_apply(self.embedding, self.embedding.pixels(x, self.dtype)), self.embedding.names)
        ids, names = self.tokens(x)
        return NamedTokens(self._rows(self.embedding, ids), names)

    def tokens(self, x: str | ArrayLike) -> tuple[np.ndarray, list[str]]:
        """The numbers and the names of the tokens of a text, or of numbers of the vocabulary."""
        if not isinstance(self.embedding, WordEmbedding):
            raise ValueError(f"a model of type {self.family!r} takes images, which have no vocabulary; use model.measure(image)")
        if isinstance(x, str):
            if self.tokenizer is None:
                raise ValueError("x must be numbers of the vocabulary, got a text; the model has no tokenizer.json that would cut it")
            numbers, names, _ = self.tokenizer.encode(x)
            ids = np.asarray(numbers, dtype=np.int64)
        else:
            ids = np.asarray(x) if known(x) and not isinstance(x, Particles) else np.zeros(())
            if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
                raise ValueError(check.refusal("x", "a text, or whole numbers [n] of the vocabulary", x))
            names = None
        if not 0 < len(ids) <= self.shape.positions:
            raise ValueError(
                f"x must have 1 to {self.shape.positions} tokens, as the model has positions, got {len(ids)}; give a text of that length"
            )
        outside = ids[(ids < 0) | (ids >= self.shape.vocabulary)]
        if len(outside):
            raise ValueError(f"x must be numbers of the vocabulary, 0 to {self.shape.vocabulary - 1}, got {outside[0]}")
        if names is None:
            words = self._words(self.shape.vocabulary)
            names = [words[i] for i in ids]
        return ids, names

    def path(self, x: str | ArrayLike | Particles, *, sums: Request | None = None) -> Path:
        r"""The path of measures through the layers, in half layers: frames $0, \frac12, 1, \dots$ in units of trained layers, at whole
        numbers the residual stream between blocks (`resid_pre` and `resid_post` of other tools), at halves that after attention
        (`resid_mid`). The last frame is before the final norm: see `final`.

        A text is padded to a length that others share, with tokens of weight zero, so that a new text of like length compiles nothing.
        `sums` says how attention sums are evaluated; `None` chooses by size. Differentiable in the points of a measure `x`.
        """
        check_request(sums)
        mu = x if isinstance(x, Particles) else self.measure(x)
        if mu.dim != self.dim:
            raise ValueError(f"x must live in R^{self.dim} like the tokens of the model, got a measure on R^{mu.dim}")
        n, dtype = len(mu.points), self.dtype
        # Tokens of weight zero stand where the last one stands.
        rows = self._padded(n)
        weights = np.full(n, 1 / n) if mu.weights is None else mu.weights
        weights = on_host(lambda w: w[rows] * (np.arange(len(rows)) < n), array(weights, dtype))
        points, order = (on_host(lambda a: a[rows], array(a, dtype)) for a in (mu.points, mu.sequence))
        now, states, reports = Particles(points, weights, order=order), [points], []
        step = array(self.step, dtype)
        for layer, which in itertools.product(self.order, (0, 1)):
            points, report = self.blocks[layer].half(which, now, step, sums)
            now = now.with_state(points)
            states.append(points)
            reports += [report] if which == 0 else []
        ts = 0.5 * self.step * np.arange(len(states))
        return _path(mu, ts, states, reports)

    def final(self, path: Path) -> Particles:
        """The tokens of the last frame after the final norm: `last_hidden_state` of other tools."""
        check.path("path", path, Path, Particles, "a path of the model, model.path(x)")
        mu = path.final
        return mu if self.norm is None else mu.with_state(self._rows(self.norm, mu.points))

    def logits(self, x: str | ArrayLike | Particles) -> Float[Array, "n v"]:
        """What the head says at every token, over the vocabulary or the classes."""
        return self._said(x, slice(None))

    def next(self, x: str | ArrayLike | Particles) -> NamedTokens:
        """The next token as a measure on the vocabulary: its points are the rows of the head, its `weights` the probabilities."""
        if not self.shape.causal:
            raise ValueError(f"a model of type {self.family!r} predicts no next token; {self._use()}")
        return self._measure_of(self._said(x, slice(-1, None)))

    def fill(self, x: str | ArrayLike, *, at: int | None = None) -> NamedTokens:
        """The masked token of a text as a measure on the vocabulary; with several masks, that at the position `at`."""
        if self.shape.causal or not isinstance(self.embedding, WordEmbedding):
            raise ValueError(f"a model of type {self.family!r} fills no masked tokens; {self._use()}")
        ids, _ = self.tokens(x)
        if at is None:
            mask = None if self.tokenizer is None else self.tokenizer.number("[MASK]")
            found = [int(i) for i in np.flatnonzero(ids == mask)] if mask is not None else []
            if len(found) != 1:
                raise ValueError(f"x must have one token [MASK], got {len(found)}; give at=, the position to fill")
            at = found[0]
        at = check.count("at", at, 0, len(ids) - 1)
        return self._measure_of(self._said(x, slice(at, at + 1)))

    def look(self, x: Any, *, seed: int = 0, nulls: bool = True) -> "xarray.Dataset":
        """Observables of a prompt through the layers, with nulls beside them: see `attnflow.models.lens.look`."""
        from attnflow.models.lens import look

        return look(self, x, seed=seed, nulls=nulls)

    def with_normalization(self, normalize: Normalization) -> "Transformer":
        """The same weights with another normalization of all attention, such as `af.Sinkhorn()`."""
        check.instance("normalize", normalize, Normalization, "a normalization such as af.Sinkhorn()")
        return dataclasses.replace(self, blocks=tuple(block.with_normalization(normalize) for block in self.blocks))

    def stack(self, *, depth: int | None = None, step: Scalar | None = None, layer: int | None = None) -> "Transformer":
        r"""Other depths of the same weights.

        - `depth`: how many trained layers; beyond the last it goes on, as do the shared ones of ALBERT.
        - `step`: the size $h = 1/k$ of a layer: each trained one is split into $k$, with its weights held. As $k$ grows they approach the
          flow of $x' = F_l(x) - x$, for the half layers $F_l$ of `Block`.
        - `layer`: the one layer that acts in all of them.
        """
        parts = round(1 / self.step)
        order = self.order[::parts] if layer is None else (self.order[self._layer(layer)],) * (self.depth // parts)
        if depth is not None:
            beyond = itertools.cycle(order[-_period(order) :])
            order = tuple(itertools.islice(itertools.chain(order, beyond), check.count("depth", depth)))
        if step is not None:
            size = float(floats("step", step, ""))
            parts = round(1 / size) if 0 < size <= 1 else 0
            if abs(parts * size - 1) > 1e-6:
                raise ValueError(f"step must be 1/k for a whole number k, got {size}")
        return dataclasses.replace(self, order=tuple(i for i in order for _ in range(parts)), step=1 / parts)

    def describe(self) -> Mapping[str, Any]:
        """What is in the model, in plain numbers."""
        sizes = {name: getattr(self.shape, name) for name in ("dim", "heads", "key_heads", "head_dim", "hidden", "vocabulary", "positions")}
        about = {"family": self.family, "layers": self.depth, "distinct blocks": len(self.blocks)} | sizes
        return about | {
            "causal": self.shape.causal,
            "norms": "before" if self.blocks[0].pre else "after",
            "parameters": self.parameters,
            "dtype": str(self.dtype),
            "tokenizer": self.tokenizer is not None,
            "head": self.head is not None,
        }

    def _padded(self, n: int) -> np.ndarray:
        """The rows of n tokens in a length that others share, the last one again and again; never longer than the model has positions."""
        size = max(n, min(_bucket(n), self.shape.positions))
        return np.minimum(np.arange(size), n - 1)

    def _rows(self, function: Callable[[Array], Array], x: Array | np.ndarray) -> Array:
        """A map of rows at some of them, padded, so that their number compiles nothing."""
        rows, n = self._padded(len(x)), len(x)
        padded = array(x[rows]) if isinstance(x, np.ndarray) else on_host(lambda x: x[rows], x)
        return on_host(lambda y: y[:n], _apply(function, padded))

    def _said(self, x: str | ArrayLike | Particles, which: slice) -> Float[Array, "m v"]:
        """The logits at some tokens."""
        if self.head is None:
            raise ValueError("the model has no head, so it predicts nothing; its folder holds the embedding and the blocks only")
        return self._rows(self.head, on_host(lambda points: points[which], self.final(self.path(x)).points))

    def _use(self) -> str:
        if not isinstance(self.embedding, WordEmbedding):
            return "use model.logits(image)[0], its classes at the class token"
        return "use model.next" if self.shape.causal else "use model.fill"

    def _words(self, count: int) -> tuple[str, ...]:
        return tuple(map(str, range(count))) if self.tokenizer is None else self.tokenizer.names(count)

    def _measure_of(self, logits: Float[Array, "1 v"]) -> NamedTokens:
        assert self.head is not None
        return NamedTokens(self.head.matrix, self._words(logits.shape[1]), _apply(jax.nn.softmax, logits)[0])


def _bucket(n: int) -> int:
    """The length that a text of n tokens is padded to: 8, 12, 16, 24, 32, 48, ..."""
    size = 8
    while size < n:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


def _period(order: tuple[int, ...]) -> int:
    """The length of the shortest pattern that the layers end with twice: how many share their weights in turn; 1 if none does."""
    return next((p for p in range(1, len(order) // 2 + 1) if order[-p:] == order[-2 * p : -p]), 1)


def _path(mu: Particles, ts: np.ndarray, states: list[Array], reports: list[PyTree]) -> Path:
    """The frames before the first that is not finite, without the padding, and how the stack ended."""
    n, count, stats = len(mu.points), len(ts), {"solver": "layers", "layers": len(reports)}
    if not known(mu, states):
        return Path(ts, jnp.stack([state[:n] for state in states]), Status("reached", ts[-1]), stats, mu)
    frames = np.stack([np.asarray(state)[:n] for state in states])
    # What is not finite stays so: the last frame tells.
    if not np.isfinite(frames[-1]).all():
        count = max(int(np.argmin(np.isfinite(frames).all(axis=(1, 2)))), 1)
    status = Status("reached" if count == len(ts) else "blow-up", ts[count - 1])
    return Path(ts[:count], array(frames[:count]), status, stats | worst(reports[: count // 2]), mu)


@eqx.filter_jit
def _apply(function: Callable[[Array], Array], x: Array) -> Array:
    return function(x)
