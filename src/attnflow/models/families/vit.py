"""ViT (Dosovitskiy et al. 2020, arXiv:2010.11929): an image as patches behind a class token, norms first."""

from typing import Any

from attnflow.fields.norms import LayerNorm, RMSNorm
from attnflow.models.embedding import Head, PatchEmbedding
from attnflow.models.families.base import Family, Shape
from attnflow.models.read import Config, Weights, read_json
from attnflow.numerics.arrays import array


def _sides(value: Any) -> tuple[int, int]:
    """Height and width, of a number, a pair, or names."""
    if isinstance(value, dict):
        return value["height"], value["width"]
    return (value[0], value[1]) if isinstance(value, list) else (value, value)


def _shape(config: Config) -> Shape:
    (height, width), (side, other) = _sides(config["image_size"]), _sides(config["patch_size"])
    if side != other or height % side or width % side:
        raise ValueError(f"config.json: image_size {[height, width]} must be cut into square patches, got patch_size {[side, other]}")
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


def _ends(config: Config, shape: Shape, weights: Weights) -> tuple[PatchEmbedding, LayerNorm | RMSNorm, Head | None]:
    side, colors, size = _sides(config["patch_size"])[0], config.get("num_channels", 3), _sides(config["image_size"])
    embedding = PatchEmbedding(
        array(weights.take("embeddings.patch_embeddings.projection.weight", shape.dim, colors, side, side)),
        array(weights.take("embeddings.patch_embeddings.projection.bias", shape.dim)),
        array(weights.take("embeddings.cls_token", 1, 1, shape.dim)[0, 0]),
        array(weights.take("embeddings.position_embeddings", 1, shape.positions, shape.dim)[0]),
        *_prepared(weights, colors, size),
    )
    head = None
    if "classifier.weight" in weights:
        classes = VIT.affine(weights, "classifier", (len(weights["classifier.weight"]), shape.dim))
        head = Head(classes.matrix, classes.offset)
    return embedding, VIT.norm(weights, "layernorm", shape), head


def _prepared(weights: Weights, colors: int, size: tuple[int, int]) -> tuple[tuple[float, ...], tuple[float, ...], tuple[int, int], int]:
    """How images are prepared: mean and deviation of each color, the size, and how Pillow resizes to it, by its number."""
    file = weights.folder / "preprocessor_config.json"
    said = read_json(file) if file.is_file() else Config()
    if "size" in said and _sides(said["size"]) != size:
        raise ValueError(f"{str(file)!r}: size must be {list(size)}, the image_size of config.json, got {said['size']}")
    if said.get("do_normalize", True):
        mean, std = (tuple(said.get(name, [0.5] * colors)) for name in ("image_mean", "image_std"))
    else:
        mean, std = (0.0,) * colors, (1.0,) * colors
    return mean, std, size, said.get("resample", 2)


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
