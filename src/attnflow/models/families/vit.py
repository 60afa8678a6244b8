"""ViT (Dosovitskiy et al. 2020, arXiv:2010.11929): an image as patches behind a class token, norms first."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from attnflow.fields.norms import LayerNorm
from attnflow.models.embedding import Head, PatchEmbedding
from attnflow.models.families.base import Family, Shape
from attnflow.models.read import Weights, read_json


def _sides(value: Any) -> tuple[int, int]:
    """Height and width, of a number or a pair."""
    return tuple(value) if isinstance(value, list) else (value, value)


def _shape(config: Mapping[str, Any]) -> Shape:
    (height, width), (side, _) = _sides(config["image_size"]), _sides(config["patch_size"])
    return Shape(
        dim=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        hidden=config["intermediate_size"],
        vocabulary=0,
        positions=1 + (height // side) * (width // side),
        activation=config.get("hidden_act", "gelu"),
        epsilon=config.get("layer_norm_eps", 1e-12),
    )


def _ends(config: Mapping[str, Any], shape: Shape, weights: Weights, dtype: Any) -> tuple[PatchEmbedding, LayerNorm, Head | None]:
    side, colors = _sides(config["patch_size"])[0], config.get("num_channels", 3)
    file = weights.folder / "preprocessor_config.json"
    prepared = read_json(file) if file.is_file() else {}
    kernel = weights.take("embeddings.patch_embeddings.projection.weight", shape.dim, colors, side, side)
    embedding = PatchEmbedding(
        jnp.asarray(kernel.astype(dtype)),
        jnp.asarray(weights.take("embeddings.patch_embeddings.projection.bias", shape.dim).astype(dtype)),
        jnp.asarray(weights.take("embeddings.cls_token", 1, 1, shape.dim).astype(dtype)[0, 0]),
        jnp.asarray(weights.take("embeddings.position_embeddings", 1, shape.positions, shape.dim).astype(dtype)[0]),
        tuple(prepared.get("image_mean", [0.5] * colors)) if prepared.get("do_normalize", True) else (0.0,) * colors,
        tuple(prepared.get("image_std", [0.5] * colors)) if prepared.get("do_normalize", True) else (1.0,) * colors,
        _sides(config["image_size"]),
    )
    head = None
    if "classifier.weight" in weights:
        matrix, bias = weights["classifier.weight"], weights["classifier.bias"]
        head = Head(jnp.asarray(matrix.astype(dtype)), jnp.asarray(bias.astype(dtype)))
    return embedding, VIT.norm(weights, "layernorm", shape, dtype), head


VIT = Family(
    name="vit",
    prefix="vit.",
    parts={
        "query": "encoder.layer.{}.attention.attention.query",
        "key": "encoder.layer.{}.attention.attention.key",
        "value": "encoder.layer.{}.attention.attention.value",
        "out": "encoder.layer.{}.attention.output.dense",
        "norm1": "encoder.layer.{}.layernorm_before",
        "hidden": "encoder.layer.{}.intermediate.dense",
        "project": "encoder.layer.{}.output.dense",
        "norm2": "encoder.layer.{}.layernorm_after",
    },
    pre=True,
    shape=_shape,
    ends=_ends,
)
