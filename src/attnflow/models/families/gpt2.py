"""GPT-2 (Radford et al. 2019): causal, norms first, query, key and value in one matrix that is stored transposed."""

from attnflow.fields.norms import LayerNorm, RMSNorm
from attnflow.models.embedding import Head, WordEmbedding
from attnflow.models.families.base import Family, Shape, refuse, words_of_head
from attnflow.models.read import Config, Weights
from attnflow.numerics.arrays import array


def _shape(config: Config) -> Shape:
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


def _temperature(config: Config, shape: Shape, layer: int) -> float:
    scale = shape.head_dim**0.5 if config.get("scale_attn_weights", True) else 1.0
    return scale * (layer + 1) if config.get("scale_attn_by_inverse_layer_idx", False) else scale


def _ends(config: Config, shape: Shape, weights: Weights) -> tuple[WordEmbedding, LayerNorm | RMSNorm, Head | None]:
    words = array(weights.take("wte.weight", shape.vocabulary, shape.dim))
    positions = array(weights.take("wpe.weight", shape.positions, shape.dim))
    said = words_of_head(config, weights, "lm_head.weight", words, tied=True)
    return WordEmbedding(words, positions), GPT2.norm(weights, "ln_f", shape), None if said is None else Head(said)


GPT2 = Family(
    name="gpt2",
    prefix="transformer.",
    parts={
        "fused": "h.{}.attn.c_attn",
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
)
