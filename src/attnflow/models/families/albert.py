"""ALBERT (Lan et al. 2019, arXiv:1909.11942): layers that share their weights, and words in fewer dimensions than tokens."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from attnflow.models.embedding import Head, WordEmbedding
from attnflow.models.families.base import Family, Shape, affine
from attnflow.models.families.bert import BERT, masked_head, word_embedding
from attnflow.models.read import Weights


def _ends(config: Mapping[str, Any], shape: Shape, weights: Weights, dtype: Any) -> tuple[WordEmbedding, None, Head | None]:
    width = config["embedding_size"]
    embedding = word_embedding(ALBERT, config, shape, weights, dtype, width)
    lift = affine(*ALBERT.linear(weights, "encoder.embedding_hidden_mapping_in", (shape.dim, width), dtype))
    embedding = dataclasses.replace(embedding, lift=lift)
    return embedding, None, masked_head(ALBERT, shape, weights, dtype, embedding, "predictions.", "", width)


def _layer_names(config: Mapping[str, Any], shape: Shape) -> tuple[list[tuple[int, int]], list[int]]:
    """Groups of inner layers, each of which acts in successive layers."""
    groups, inner = config.get("num_hidden_groups", 1), config.get("inner_group_num", 1)
    numbers = [(g, j) for g in range(groups) for j in range(inner)]
    return numbers, [inner * (i * groups // shape.layers) + j for i in range(shape.layers) for j in range(inner)]


_LAYER = "encoder.albert_layer_groups.{}.albert_layers.{}."
ALBERT = Family(
    name="albert",
    prefix="albert.",
    parts={
        "query": _LAYER + "attention.query",
        "key": _LAYER + "attention.key",
        "value": _LAYER + "attention.value",
        "out": _LAYER + "attention.dense",
        "norm1": _LAYER + "attention.LayerNorm",
        "hidden": _LAYER + "ffn",
        "project": _LAYER + "ffn_output",
        "norm2": _LAYER + "full_layer_layer_norm",
    },
    pre=False,
    shape=lambda config: BERT.shape({"hidden_act": "gelu_new"} | dict(config)),
    ends=_ends,
    layer_names=_layer_names,
)
