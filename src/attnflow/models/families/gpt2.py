"""GPT-2 (Radford et al. 2019): causal, norms first, query, key and value in one matrix that is stored transposed."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from attnflow.fields.norms import LayerNorm
from attnflow.models.embedding import Head, WordEmbedding
from attnflow.models.families.base import Family, Shape, refuse
from attnflow.models.read import Weights


def _shape(config: Mapping[str, Any]) -> Shape:
    refuse(config, add_cross_attention=False, reorder_and_upcast_attn=False)
    return Shape(
        dim=config["n_embd"],
        layers=config["n_layer"],
        heads=config["n_head"],
        hidden=config.get("n_inner") or 4 * config["n_embd"],
        vocabulary=config["vocab_size"],
        positions=config.get("n_positions", 1024),
        activation=config.get("activation_function", "gelu_new"),
        epsilon=config.get("layer_norm_epsilon", 1e-5),
        causal=True,
    )


def _temperature(config: Mapping[str, Any], shape: Shape, layer: int) -> float:
    scale = shape.head_dim**0.5 if config.get("scale_attn_weights", True) else 1.0
    return scale * (layer + 1) if config.get("scale_attn_by_inverse_layer_idx", False) else scale


def _ends(config: Mapping[str, Any], shape: Shape, weights: Weights, dtype: Any) -> tuple[WordEmbedding, LayerNorm, Head]:
    words = jnp.asarray(weights.take("wte.weight", shape.vocabulary, shape.dim).astype(dtype))
    positions = jnp.asarray(weights.take("wpe.weight", shape.positions, shape.dim).astype(dtype))
    return WordEmbedding(words, positions), GPT2.norm(weights, "ln_f", shape, dtype), word_head(shape, weights, dtype, words)


def word_head(shape: Shape, weights: Weights, dtype: Any, words: Any) -> Head:
    """The head over the vocabulary, tied to the words if the file has none."""
    if "lm_head.weight" not in weights:
        return Head(words)
    return Head(jnp.asarray(weights.take("lm_head.weight", shape.vocabulary, shape.dim).astype(dtype)))


GPT2 = Family(
    name="gpt2",
    prefix="transformer.",
    parts={
        "out": "h.{}.attn.c_proj",
        "norm1": "h.{}.ln_1",
        "hidden": "h.{}.mlp.c_fc",
        "project": "h.{}.mlp.c_proj",
        "norm2": "h.{}.ln_2",
    },
    pre=True,
    shape=_shape,
    ends=_ends,
    transposed=True,
    temperature=_temperature,
    fused="h.{}.attn.c_attn",
)
