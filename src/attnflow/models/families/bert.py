"""BERT (Devlin et al. 2018, arXiv:1810.04805), MiniLM (Wang et al. 2020, arXiv:2002.10957) and what else has its files."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from attnflow.models.embedding import Head, WordEmbedding
from attnflow.models.families.base import ACTIVATIONS, Family, Shape, affine, refuse
from attnflow.models.read import Weights


def _shape(config: Mapping[str, Any]) -> Shape:
    refuse(config, is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    return Shape(
        dim=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        hidden=config["intermediate_size"],
        vocabulary=config["vocab_size"],
        positions=config["max_position_embeddings"],
        activation=config.get("hidden_act", "gelu"),
        epsilon=config.get("layer_norm_eps", 1e-12),
    )


def _ends(config: Mapping[str, Any], shape: Shape, weights: Weights, dtype: Any) -> tuple[WordEmbedding, None, Head | None]:
    embedding = word_embedding(BERT, config, shape, weights, dtype, shape.dim)
    return embedding, None, masked_head(BERT, shape, weights, dtype, embedding, "cls.predictions.", "transform.", shape.dim)


def word_embedding(family: Family, config: Any, shape: Shape, weights: Weights, dtype: Any, width: int) -> WordEmbedding:
    """Words, positions and types `[., width]`, then a norm."""
    rows = {"word": shape.vocabulary, "position": shape.positions, "token_type": config.get("type_vocab_size", 2)}
    tables = (jnp.asarray(weights.take(f"embeddings.{name}_embeddings.weight", n, width).astype(dtype)) for name, n in rows.items())
    return WordEmbedding(*tables, family.norm(weights, "embeddings.LayerNorm", shape, dtype, width))


def masked_head(
    family: Family, shape: Shape, weights: Weights, dtype: Any, embedding: WordEmbedding, place: str, inner: str, width: int
) -> Head | None:
    """The head of a model trained on masked words; `None` for one without. The words are tied to the embedding if the file has none."""
    layer = f"{place}{inner}dense"
    if f"{layer}.weight" not in weights:
        return None
    name = f"{place}decoder.weight"
    words = jnp.asarray(weights.take(name, shape.vocabulary, width).astype(dtype)) if name in weights else embedding.words
    bias = next((weights[f"{place}{tail}"] for tail in ("bias", "decoder.bias") if f"{place}{tail}" in weights), None)
    return Head(
        words,
        None if bias is None else jnp.asarray(bias.astype(dtype)),
        affine(*family.linear(weights, layer, (width, shape.dim), dtype)),
        ACTIVATIONS[shape.activation],
        family.norm(weights, f"{place}{inner}LayerNorm", shape, dtype, width),
    )


BERT = Family(
    name="bert",
    prefix="bert.",
    parts={
        "query": "encoder.layer.{}.attention.self.query",
        "key": "encoder.layer.{}.attention.self.key",
        "value": "encoder.layer.{}.attention.self.value",
        "out": "encoder.layer.{}.attention.output.dense",
        "norm1": "encoder.layer.{}.attention.output.LayerNorm",
        "hidden": "encoder.layer.{}.intermediate.dense",
        "project": "encoder.layer.{}.output.dense",
        "norm2": "encoder.layer.{}.output.LayerNorm",
    },
    pre=False,
    shape=_shape,
    ends=_ends,
)
