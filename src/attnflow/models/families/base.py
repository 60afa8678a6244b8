"""What a family is: a table of names, and functions for what is its own."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attnflow.attention.multi_head import multi_head
from attnflow.fields.norms import LayerNorm, RMSNorm
from attnflow.fields.perceptron import GatedPerceptron, Perceptron
from attnflow.measures import Affine
from attnflow.models.block import Block
from attnflow.models.read import Weights
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

    def __post_init__(self):
        object.__setattr__(self, "key_heads", self.key_heads or self.heads)
        object.__setattr__(self, "head_dim", self.head_dim or self.dim // max(self.heads, 1))
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"config.json: an activation of {', '.join(ACTIVATIONS)} can be read, got {self.activation!r}")


@dataclasses.dataclass(frozen=True)
class Family:
    """One architecture.

    - `name`: the `model_type` of `config.json`. `prefix`: what may stand before its names.
    - `parts`: from the parts of a block to the names of its linear layers and norms, with `{}` for the number of the layer. Parts are
      `query`, `key`, `value`, `out`, `hidden`, `project`, `norm1`, `norm2`, and `gate` where the perceptron is gated; each has a `weight`
      and perhaps a `bias` in the file.
    - `pre`: whether norms come before their fields. `rms`: whether they are RMS norms. `transposed`: whether matrices are stored
      `[in, out]`.
    - `shape(config)`: the sizes; refuses by name what this family can be but is not read. `ends(config, shape, weights, dtype)`: the
      embedding, the final norm and the head.
    - `rotary(config, shape)`: the frequencies of rotary positions. `layer_names(config, shape)`: the numbers for `{}` of the distinct
      blocks, and which of them acts in each layer. `temperature(config, shape, layer)`: that of the logits.
    - `split(weights, shape, place)`: query, key and value where a file has them fused.
    """

    name: str
    prefix: str
    parts: Mapping[str, str]
    pre: bool
    shape: Callable[[Mapping[str, Any]], Shape]
    ends: Callable[..., tuple[Any, Any, Any]]
    rms: bool = False
    transposed: bool = False
    rotary: Callable[[Mapping[str, Any], Shape], np.ndarray] | None = None
    layer_names: Callable[[Mapping[str, Any], Shape], tuple[list[Any], list[int]]] | None = None
    temperature: Callable[[Mapping[str, Any], Shape, int], float] | None = None
    fused: str | None = None

    def blocks(self, config: Mapping[str, Any], shape: Shape, weights: Weights, dtype: Any) -> tuple[tuple[Block, ...], tuple[int, ...]]:
        """The distinct blocks, and which of them acts in each layer."""
        numbers, order = (list(range(shape.layers)),) * 2 if self.layer_names is None else self.layer_names(config, shape)
        frequencies = None if self.rotary is None else self.rotary(config, shape)
        made = [self._block(config, shape, weights, dtype, number, layer, frequencies) for layer, number in enumerate(numbers)]
        return tuple(made), tuple(order)

    def _block(self, config: Any, shape: Shape, weights: Weights, dtype: Any, number: Any, layer: int, frequencies: Any) -> Block:
        numbers = number if isinstance(number, tuple) else (number,)
        names = {part: name.format(*numbers) for part, name in self.parts.items()}
        queries, keys = shape.heads * shape.head_dim, shape.key_heads * shape.head_dim
        sizes = {"query": (queries, shape.dim), "key": (keys, shape.dim), "value": (keys, shape.dim), "out": (shape.dim, queries)}
        sizes |= {"hidden": (shape.hidden, shape.dim), "gate": (shape.hidden, shape.dim), "project": (shape.dim, shape.hidden)}
        linear = {part: self.linear(weights, names[part], size, dtype) for part, size in sizes.items() if part in names}
        if self.fused is not None:
            weight, bias = self.linear(weights, self.fused.format(*numbers), (3 * queries, shape.dim), dtype)
            biases = (None,) * 3 if bias is None else np.split(bias, 3)
            linear |= dict(zip(("query", "key", "value"), zip(np.split(weight, 3), biases)))
        law = multi_head(
            *(linear[part][0] for part in ("query", "key", "value", "out")),
            shape.heads,
            query_bias=linear["query"][1],
            key_bias=linear["key"][1],
            value_bias=linear["value"][1],
            out_bias=linear["out"][1],
            key_heads=shape.key_heads,
            temperature=None if self.temperature is None else self.temperature(config, shape, layer),
            rotary=frequencies,
            mask=Causal() if shape.causal else None,
        )
        norms = tuple(self.norm(weights, names[part], shape, dtype) for part in ("norm1", "norm2"))
        (hidden, inner), (project, outer) = linear["hidden"], linear["project"]
        activation = ACTIVATIONS[shape.activation]
        if "gate" in linear:
            gate, gate_bias = linear["gate"]
            perceptron = GatedPerceptron(gate, hidden, project, gate_bias, inner, outer, activation)
        else:
            perceptron = Perceptron(hidden, project, inner, outer, activation)
        return Block(law, perceptron, norms, self.pre)

    def linear(self, weights: Weights, name: str, size: tuple[int, int], dtype: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """The matrix `[out, in]` of a linear layer, and its bias if it has one."""
        weight = weights.take(f"{name}.weight", *(size[::-1] if self.transposed else size)).astype(dtype)
        bias = weights.take(f"{name}.bias", size[0]).astype(dtype) if f"{name}.bias" in weights else None
        return (weight.T if self.transposed else weight), bias

    def norm(self, weights: Weights, name: str, shape: Shape, dtype: Any, dim: int | None = None) -> LayerNorm | RMSNorm:
        """A norm over `dim` coordinates, by default those of the tokens."""
        gain = weights.take(f"{name}.weight", dim or shape.dim).astype(dtype)
        if self.rms:
            return RMSNorm(gain, shape.epsilon)
        return LayerNorm(gain, weights.take(f"{name}.bias", dim or shape.dim).astype(dtype), shape.epsilon)


def affine(weight: np.ndarray, bias: np.ndarray | None) -> Affine:
    """A linear layer as a map of rows."""
    return Affine(jnp.asarray(weight), jnp.asarray(np.zeros(len(weight), weight.dtype) if bias is None else bias))


def refuse(config: Mapping[str, Any], **supported: Any) -> None:
    """Raise if the config chooses something else than what is read."""
    for key, value in supported.items():
        if config.get(key, value) not in (value, None):
            raise ValueError(f"config.json: {key} = {config[key]!r} is not read, only {value!r}")
