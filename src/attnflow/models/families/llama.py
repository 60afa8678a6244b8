"""Llama (Touvron et al. 2023, arXiv:2302.13971): causal, rotary positions, RMS norms first, gated perceptrons, keys shared by heads."""

import numpy as np

from attnflow.fields.norms import LayerNorm, RMSNorm
from attnflow.models.embedding import Head, WordEmbedding
from attnflow.models.families.base import Family, Shape, refuse, words_of_head
from attnflow.models.read import Config, Weights
from attnflow.numerics.arrays import array


def _shape(config: Config) -> Shape:
    return Shape(
        dim=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        hidden=config["intermediate_size"],
        vocabulary=config["vocab_size"],
        positions=config.get("max_position_embeddings", 2048),
        activation=config.get("hidden_act", "silu"),
        epsilon=config.get("rms_norm_eps", 1e-6),
        key_heads=config.get("num_key_value_heads") or 0,
        head_dim=config.get("head_dim") or 0,
        causal=True,
    )


def _rotary(config: Config, shape: Shape) -> np.ndarray:
    r"""The frequencies $\theta^{-2i/p}$, as the config scales them: not at all, by a factor, or by wavelength as Llama 3.1 does."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or Config()
    refuse(rope, partial_rotary_factor=1.0)
    kind = rope.get("rope_type", rope.get("type", "default"))
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    frequencies = theta ** (-np.arange(0, shape.head_dim, 2) / shape.head_dim)
    if kind == "default":
        return frequencies
    if kind == "linear":
        return frequencies / rope["factor"]
    if kind != "llama3":
        raise ValueError(f"config.json: rotary positions must be of type default, linear or llama3, got {kind!r}, which is not read")
    low, high, context = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    # Waves that fit into the old context `high` times stay, those that fit less than `low` times are stretched, between them it is a mean.
    turns = context * frequencies / (2 * np.pi)
    share = np.clip((turns - low) / (high - low), 0, 1)
    return frequencies * (share + (1 - share) / rope["factor"])


def _ends(config: Config, shape: Shape, weights: Weights) -> tuple[WordEmbedding, RMSNorm | LayerNorm, Head | None]:
    words = array(weights.take("embed_tokens.weight", shape.vocabulary, shape.dim))
    said = words_of_head(config, weights, "lm_head.weight", words, tied=False)
    return WordEmbedding(words), LLAMA.norm(weights, "norm", shape), None if said is None else Head(said)


LLAMA = Family(
    name="llama",
    prefix="model.",
    parts={
        "query": "layers.{}.self_attn.q_proj",
        "key": "layers.{}.self_attn.k_proj",
        "value": "layers.{}.self_attn.v_proj",
        "out": "layers.{}.self_attn.o_proj",
        "norm1": "layers.{}.input_layernorm",
        "gate": "layers.{}.mlp.gate_proj",
        "hidden": "layers.{}.mlp.up_proj",
        "project": "layers.{}.mlp.down_proj",
        "norm2": "layers.{}.post_attention_layernorm",
    },
    pre=True,
    shape=_shape,
    ends=_ends,
    rms=True,
    rotary=_rotary,
)
