"""What a family is: a table of names, and functions for what is its own."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attnflow import _check as check
from attnflow.attention.multi_head import multi_head
from attnflow.fields.norms import LayerNorm, RMSNorm
from attnflow.fields.perceptron import GatedPerceptron, Perceptron
from attnflow.measures import Affine
from attnflow.models.block import Block, Norm
from attnflow.models.embedding import Head, PatchEmbedding, WordEmbedding
from attnflow.models.read import Config, Weights
from attnflow.numerics.arrays import array
from attnflow.sums import Causal


def gelu(x: Array) -> Array:
    """$x\\,\\Phi(x)$, with the distribution function of the normal distribution."""
    return jax.nn.gelu(x, approximate=False)


def gelu_tanh(x: Array) -> Array:
    """GELU by a hyperbolic tangent, as GPT-2 has it."""
    return jax.nn.gelu(x, approximate=True)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "tanh": jnp.tanh,
}


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes of a model and what its `config.json` chooses."""

    dim: int
    layers: int
    heads: int
    hidden: int
    vocabulary: int
    positions: int
    activation: str
    epsilon: float
    key_heads: int = 0
    head_dim: int = 0
    causal: bool = False

    def __post_init__(self) -> None:
        for name in ("dim", "layers", "heads", "hidden", "positions"):
            check.count(f"config.json: the number for {name}", getattr(self, name))
        object.__setattr__(self, "key_heads", self.key_heads or self.heads)
        object.__setattr__(self, "head_dim", self.head_dim or self.dim // self.heads)
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"config.json: the activation must be one of {', '.join(ACTIVATIONS)}, got {self.activation!r}")


@dataclasses.dataclass(frozen=True)
class Family:
    """One architecture.

    - `name`: the `model_type` of `config.json`. `prefix`: what may stand before its names.
    - `parts`: from the parts of a block to the names of its linear layers and norms, with `{}` for the number of the layer. Parts are
      `query`, `key`, `value` (or `fused`, the three in one), `out`, `hidden`, `project`, `norm1`, `norm2`, and `gate` where the perceptron
      is gated; each has a `weight` and perhaps a `bias` in the file.
    - `pre`: whether norms come before their fields. `rms`: whether they are RMS norms. `transposed`: whether matrices are stored
      `[in, out]`.
    - `shape(config)`: the sizes; refuses by name what this family can be but is not read. `ends(config, shape, weights)`: the embedding,
      the final norm and the head.
    - `rotary(config, shape)`: the frequencies of rotary positions. `layer_names(config, shape)`: the numbers for `{}` of the distinct
      blocks, and which of them acts in each layer. `temperature(config, shape, layer)`: that of the logits.
    """

    name: str
    prefix: str
    parts: Mapping[str, str]
    pre: bool
    shape: Callable[[Config], Shape]
    ends: Callable[[Config, Shape, Weights], tuple[WordEmbedding | PatchEmbedding, Norm | None, Head | None]]
    rms: bool = False
    transposed: bool = False
    rotary: Callable[[Config, Shape], np.ndarray] | None = None
    layer_names: Callable[[Config, Shape], tuple[list[tuple[int, ...]], list[int]]] | None = None
    temperature: Callable[[Config, Shape, int], float] | None = None

    def blocks(self, config: Config, shape: Shape, weights: Weights) -> tuple[tuple[Block, ...], tuple[int, ...]]:
        """The distinct blocks, and which of them acts in each layer."""
        if self.layer_names is None:
            # One after the other: the first that the file lacks is refused before the next is thought of.
            blocks = tuple(self._block(config, shape, weights, (layer,)) for layer in range(shape.layers))
            return blocks, tuple(range(shape.layers))
        numbers, order = self.layer_names(config, shape)
        return tuple(self._block(config, shape, weights, number) for number in numbers), tuple(order)

    def _block(self, config: Config, shape: Shape, weights: Weights, number: tuple[int, ...]) -> Block:
        names = {part: name.format(*number) for part, name in self.parts.items()}
        d, queries, keys = shape.dim, shape.heads * shape.head_dim, shape.key_heads * shape.head_dim
        sizes = {"query": (queries, d), "key": (keys, d), "value": (keys, d), "fused": (3 * queries, d), "out": (d, queries)}
        sizes |= {"hidden": (shape.hidden, d), "gate": (shape.hidden, d), "project": (d, shape.hidden)}
        linear = {part: self.linear(weights, names[part], size) for part, size in sizes.items() if part in names}
        if "fused" in linear:
            weight, bias = linear["fused"]
            biases = (None,) * 3 if bias is None else np.split(bias, 3)
            linear |= dict(zip(("query", "key", "value"), zip(np.split(weight, 3), biases)))
        law = multi_head(
            linear["query"][0],
            linear["key"][0],
            linear["value"][0],
            linear["out"][0],
            shape.heads,
            query_bias=linear["query"][1],
            key_bias=linear["key"][1],
            value_bias=linear["value"][1],
            out_bias=linear["out"][1],
            key_heads=shape.key_heads,
            temperature=None if self.temperature is None else self.temperature(config, shape, number[0]),
            rotary=None if self.rotary is None else self.rotary(config, shape),
            mask=Causal() if shape.causal else None,
        )
        norms = (self.norm(weights, names["norm1"], shape), self.norm(weights, names["norm2"], shape))
        (hidden, inner), (project, outer) = linear["hidden"], linear["project"]
        activation = ACTIVATIONS[shape.activation]
        if "gate" in linear:
            gate, gate_bias = linear["gate"]
            perceptron = GatedPerceptron(gate, hidden, project, gate_bias, inner, outer, activation=activation)
        else:
            perceptron = Perceptron(hidden, project, inner, outer, activation=activation)
        return Block(law, perceptron, norms, self.pre)

    def linear(self, weights: Weights, name: str, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray | None]:
        """The matrix `[out, in]` of a linear layer, and its bias if it has one."""
        weight = weights.take(f"{name}.weight", *(size[::-1] if self.transposed else size))
        return (weight.T if self.transposed else weight), weights.take(f"{name}.bias", size[0]) if f"{name}.bias" in weights else None

    def norm(self, weights: Weights, name: str, shape: Shape, dim: int | None = None) -> LayerNorm | RMSNorm:
        """A norm over `dim` coordinates, by default those of the tokens."""
        gain = weights.take(f"{name}.weight", dim or shape.dim)
        if self.rms:
            return RMSNorm(gain, epsilon=shape.epsilon)
        return LayerNorm(gain, weights.take(f"{name}.bias", dim or shape.dim), epsilon=shape.epsilon)

    def affine(self, weights: Weights, name: str, size: tuple[int, int]) -> Affine:
        """A linear layer as a map of rows."""
        weight, bias = self.linear(weights, name, size)
        return Affine(array(weight), array(np.zeros(size[0], weight.dtype) if bias is None else bias))


def words_of_head(config: Config, weights: Weights, name: str, words: Array, tied: bool) -> Array | None:
    """The matrix of a head over the vocabulary: that of the file, or the words of the embedding if the file has none or the same; `None` if
    it has none and the config does not tie them. `tied` is what the family does if the config says nothing."""
    if name not in weights:
        return words if config.get("tie_word_embeddings", tied) else None
    same = np.array_equal(weights[name].astype(weights.dtype), words)
    return words if same else array(weights.take(name, *words.shape))


def refuse(config: Config, **supported: Any) -> None:
    """Raise if the config chooses something else than what is read."""
    for key, value in supported.items():
        if config.get(key, value) not in (value, None):
            raise ValueError(f"config.json: {key} must be {value!r}, got {config[key]!r}, which is not read")
