"""One clear line for each thing that can be wrong with a folder or a prompt."""

import json
import pathlib
import sys

import jax
import numpy as np
import pytest

import attnflow as af

safetensors = pytest.importorskip("safetensors.numpy")


def refused(call, match, kind=ValueError):
    with pytest.raises(kind, match=match) as error:
        call()
    assert "\n" not in str(error.value)


def load(folder):
    return lambda: af.models.load(folder)


def test_a_folder_without_config_or_weights(tmp_path, saved, edited):
    refused(load(tmp_path), "has no config.json; give the folder of a model")
    refused(load(tmp_path / "nowhere"), "folder must be a folder with a model, or an installed package .*, got '.*nowhere'")
    refused(load("no_such_package"), "got 'no_such_package'")
    refused(load("json"), "got 'json'")
    refused(load(3), "folder must be a path on the disk, got 3", TypeError)
    folder = edited("bert")
    (folder / "model.safetensors").unlink()
    refused(load(folder), r"has no weights, neither \*.safetensors nor pytorch_model.bin")
    (folder / "config.json").write_text("{")
    refused(load(folder), "config.json' is not JSON")
    (folder / "config.json").write_text("[1]")
    refused(load(folder), "must hold a JSON object, got a list")
    (folder / "config.json").write_bytes(b"\xff\xfe")
    refused(load(folder), "config.json' is not JSON")


def test_an_architecture_that_is_not_read(edited):
    refused(load(edited("bert", model_type="mamba")), "must be a model of type bert, albert, gpt2, llama, vit .*, got 'mamba'")
    refused(load(edited("bert", model_type=[1])), "must be a model of type bert")
    refused(load(edited("bert", hidden_act="mish")), "the activation must be one of gelu, .*, got 'mish'")
    refused(load(edited("bert", hidden_act="gelu", is_decoder=True)), "is_decoder must be False, got True, which is not read")
    refused(load(edited("bert", is_decoder=None, hidden_size=None)), "config.json lacks 'hidden_size'")
    refused(load(edited("bert", hidden_size=-32)), "the number for dim must be at least 1, got -32")
    refused(load(edited("vit", patch_size=5)), r"image_size \[12, 12\] must be cut into square patches, got patch_size \[5, 5\]")


def test_a_tensor_that_is_missing_or_has_the_wrong_shape(edited, saved):
    name = "encoder.layer.1.attention.self.key.weight"

    def without(tensors):
        return {key: tensor for key, tensor in tensors.items() if not key.endswith(name)}

    refused(load(edited("bert", without)), f"has no tensor '{name}', with or without 'bert.' before it; download it again")

    def cut(tensors):
        return without(tensors) | {f"bert.{name}": np.zeros((32, 31), np.float32)}

    refused(load(edited("bert", cut)), rf"'{name}' in '.*' must have shape \[32, 32\] by config.json, got \[32, 31\]")
    refused(load(edited("bert", num_hidden_layers=4)), "has no tensor 'encoder.layer.3.attention.self.query.weight'|shape")


def test_a_truncated_or_hostile_file(edited):
    folder = edited("bert")
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])

    def rewritten(change):
        copy = json.loads(json.dumps(header))
        change(copy)
        text = json.dumps(copy).encode()
        return len(text).to_bytes(8, "little") + text + whole[8 + length :]

    first = next(name for name in header if name != "__metadata__")
    hostile = {
        "cut": whole[: len(whole) // 2],
        "a few bytes": whole[:5],
        "empty": b"",
        "a huge header": (2**62).to_bytes(8, "little") + whole[8:],
        "no JSON": (16).to_bytes(8, "little") + b"x" * 16,
        "a huge shape": rewritten(lambda header: header[first].update(shape=[2**40, 2**20])),
        "far offsets": rewritten(lambda header: header[first].update(data_offsets=[0, 2**60])),
        "negative": rewritten(lambda header: header[first].update(data_offsets=[-8, 8])),
        "overlapping": rewritten(lambda header: header[first].update(data_offsets=header[list(header)[-1]]["data_offsets"])),
        "a pickle": b"\x80\x04cos\nsystem\n" * 20,
    }
    for kind, content in hostile.items():
        file.write_bytes(content)
        refused(load(folder), r"model.safetensors' is not a whole safetensors file \(.*\); download it again"), kind


def test_an_index_that_leaves_its_folder_or_names_nothing(edited, tmp_path):
    folder = edited("bert")
    (folder / "model.safetensors").rename(tmp_path / "other.safetensors")
    index = folder / "model.safetensors.index.json"
    for name in ("../other.safetensors", str(tmp_path / "other.safetensors"), "..", "config.json"):
        index.write_text(json.dumps({"weight_map": {"a": name}}))
        refused(load(folder), "must name files of weights in its own folder, got ")
    index.write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    refused(load(folder), "names the file 'gone.safetensors', which is not there")
    for content in ({}, {"weight_map": {}}, {"weight_map": [1]}, {"weight_map": {"a": 3}}):
        index.write_text(json.dumps(content))
        refused(load(folder), "must have a weight_map from tensors to files")


def test_a_prompt_that_does_not_fit(saved, edited, minilm):
    model, words = af.models.load(saved("bert")[1]), af.models.load(minilm)
    refused(lambda: model.measure(np.zeros(41, int)), "x must have 1 to 40 tokens, as the model has positions, got 41")
    refused(lambda: model.measure(np.zeros(0, int)), "x must have 1 to 40 tokens, as the model has positions, got 0")
    refused(lambda: words.measure("word " * 600), "x must have 1 to 512 tokens, as the model has positions, got 602")
    for text in ("", "  ", "\n"):
        refused(lambda text=text: words.path(text), "x must be a text with at least one token, got ")
    refused(lambda: model.measure([3, 60]), "x must be numbers of the vocabulary, 0 to 59, got 60")
    refused(lambda: model.measure([-1, 3]), "x must be numbers of the vocabulary, 0 to 59, got -1")
    for x in (None, 3, [1.5], [[1, 2]], object()):
        refused(lambda x=x: model.measure(x), r"x must be a text, or whole numbers \[n\] of the vocabulary, got ")
    refused(lambda: model.measure("a text"), "x must be numbers of the vocabulary, got a text; the model has no tokenizer.json")
    refused(lambda: model.path(af.Particles(np.ones((3, 2)))), r"x must live in R\^32 like the tokens of the model, got a measure on R\^2")
    refused(lambda: model.fill([1, 2], at=2), "at must be from 0 to 1, got 2")
    (folder := edited("bert")).joinpath("tokenizer.json").write_text("{}")
    refused(load(folder), "tokenizer.json' is not a tokenizer")


def test_an_image_that_does_not_fit(saved):
    model = af.models.load(saved("vit")[1])
    due = r"an image must have shape \[12, 12, 3\], height, width and colors, got "
    for image in (np.zeros((16, 12, 3)), np.zeros((3, 12, 12)), np.zeros((12, 12)), "cat.png", None):
        refused(lambda image=image: model.measure(image), due)
    for image in (np.full((12, 12, 3), 2.0), np.full((12, 12, 3), np.nan), np.zeros((12, 12, 3), int)):
        refused(lambda image=image: model.path(image), "an image must be bytes")
    refused(lambda: model.next(np.zeros((12, 12, 3))), r"predicts no next token; use model.logits\(image\)\[0\]")
    refused(lambda: model.fill(np.zeros((12, 12, 3))), r"fills no masked tokens; use model.logits\(image\)\[0\]")


def test_a_layer_a_head_or_a_precision_that_is_not_there(saved):
    model = af.models.load(saved("bert")[1])
    refused(lambda: model.law(3, 0), "layer must be below 3, the number of layers, got 3", IndexError)
    refused(lambda: model.law(0, 4), "h must be below 4, the number of heads, got 4", IndexError)
    refused(lambda: af.models.load(saved("bert")[1], dtype="float16"), "dtype must be float32 or float64, got float16")
    refused(lambda: af.models.load(saved("bert")[1], dtype=int), "dtype must be a floating-point type", TypeError)
    refused(lambda: model.stack(step=0.3), "step must be 1/k for a whole number k, got 0.3")
    refused(lambda: model.stack(step=2), "step must be 1/k for a whole number k, got 2")
    refused(lambda: model.stack(step=0), "step must be 1/k for a whole number k, got 0")
    refused(lambda: model.stack(depth=0), "depth must be at least 1, got 0")
    refused(lambda: model.stack(layer=3), "layer must be below 3", IndexError)


def test_libraries_that_are_not_installed(saved, minilm, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    refused(load(minilm), r"cutting a text into tokens needs tokenizers; pip install 'attnflow\[models\]'", ImportError)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    refused(load(saved("bert")[1]), r"reading a model needs safetensors; pip install 'attnflow\[models\]'", ImportError)


def test_double_precision_that_jax_does_not_have(saved):
    from attnflow.numerics import arrays

    arrays._warned.discard("x64")
    with jax.enable_x64(False), pytest.warns(UserWarning, match="float64 input becomes float32"):
        assert af.models.load(pathlib.Path(saved("bert")[1]), dtype="float64").dtype == np.float32
