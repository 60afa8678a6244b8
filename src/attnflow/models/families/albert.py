"""ALBERT (Lan et al. 2019, arXiv:1909.11942): layers that share their weights, and words in fewer dimensions than tokens."""

import dataclasses

from attnflow import _check as check
from attnflow.models.embedding import Head, WordEmbedding
from attnflow.models.families.base import Family, Shape
from attnflow.models.families.bert import BERT, masked_head, word_embedding
from attnflow.models.read import Config, Weights


def _shape(config: Config) -> Shape:
    return BERT.shape(Config({"hidden_act": "gelu_new"} | config))


def _ends(config: Config, shape: Shape, weights: Weights) -> tuple[WordEmbedding, None, Head | None]:
    width = config["embedding_size"]
    embedding = word_embedding(ALBERT, config, shape, weights, width)
    lift = ALBERT.affine(weights, "encoder.embedding_hidden_mapping_in", (shape.dim, width))
    embedding = dataclasses.replace(embedding, lift=lift)
    return embedding, None, masked_head(ALBERT, config, shape, weights, embedding, "predictions.", "")


def _layer_names(config: Config, shape: Shape) -> tuple[list[tuple[int, ...]], list[int]]:
    """Groups of inner layers, each of which acts in successive layers."""
    groups, inner = (check.count(f"config.json: {name}", config.get(name, 1)) for name in ("num_hidden_groups", "inner_group_num"))
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
    shape=_shape,
    ends=_ends,
    layer_names=_layer_names,
)
