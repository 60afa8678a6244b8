"""BERT (Devlin et al. 2018, arXiv:1810.04805), MiniLM (Wang et al. 2020, arXiv:2002.10957) and what else has its files."""

from attnflow.models.embedding import Head, WordEmbedding
from attnflow.models.families.base import ACTIVATIONS, Family, Shape, refuse, words_of_head
from attnflow.models.read import Config, Weights
from attnflow.numerics.arrays import array


def _shape(config: Config) -> Shape:
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


def _ends(config: Config, shape: Shape, weights: Weights) -> tuple[WordEmbedding, None, Head | None]:
    embedding = word_embedding(BERT, config, shape, weights, shape.dim)
    return embedding, None, masked_head(BERT, config, shape, weights, embedding, "cls.predictions.", "transform.")


def word_embedding(family: Family, config: Config, shape: Shape, weights: Weights, width: int) -> WordEmbedding:
    """Words, positions and types `[., width]`, then a norm."""
    rows = {"word": shape.vocabulary, "position": shape.positions, "token_type": config.get("type_vocab_size", 2)}
    words, positions, types = (array(weights.take(f"embeddings.{name}_embeddings.weight", n, width)) for name, n in rows.items())
    return WordEmbedding(words, positions, types, family.norm(weights, "embeddings.LayerNorm", shape, width))


def masked_head(
    family: Family, config: Config, shape: Shape, weights: Weights, embedding: WordEmbedding, place: str, inner: str
) -> Head | None:
    """The head of a model trained on masked words; `None` for one without."""
    layer, (count, width) = f"{place}{inner}dense", embedding.words.shape
    words = words_of_head(config, weights, f"{place}decoder.weight", embedding.words, tied=True)
    if f"{layer}.weight" not in weights or words is None:
        return None
    bias = next((name for name in (f"{place}decoder.bias", f"{place}bias") if name in weights), None)
    return Head(
        words,
        None if bias is None else array(weights.take(bias, count)),
        family.affine(weights, layer, (width, shape.dim)),
        ACTIVATIONS[shape.activation],
        family.norm(weights, f"{place}{inner}LayerNorm", shape, width),
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
