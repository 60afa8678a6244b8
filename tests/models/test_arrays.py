"""Arrays of other tools, in the shapes of TransformerLens, against a model that was read."""

import numpy as np
import pytest

import attnflow as af

safetensors = pytest.importorskip("safetensors.numpy")


def of_the_lens(tensors, heads=4, p=8):
    """The weights of a BERT in the shapes of TransformerLens."""
    d, layers = heads * p, 3

    def all_layers(name):
        return np.stack([np.asarray(tensors[f"bert.encoder.layer.{i}.attention.{name}"], float) for i in range(layers)])

    found = {}
    for part in ("query", "key", "value"):
        found[part] = all_layers(f"self.{part}.weight").reshape(layers, heads, p, d).transpose(0, 1, 3, 2)
        found[f"{part}_bias"] = all_layers(f"self.{part}.bias").reshape(layers, heads, p)
    out = all_layers("output.dense.weight")
    return found | {"out": out.transpose(0, 2, 1).reshape(layers, heads, p, d), "out_bias": all_layers("output.dense.bias")}


def test_a_path_and_laws(saved, prompt, gap):
    folder = saved("bert")[1]
    model = af.models.load(folder)
    whole = model.path(prompt("bert"))
    path, laws = af.models.from_arrays(
        whole.states[::2], names=whole.measure.names, **of_the_lens(safetensors.load_file(folder / "model.safetensors"))
    )
    np.testing.assert_array_equal(path.ts, [0, 1, 2, 3])
    assert path[1].names == whole.measure.names
    assert len(laws) == 3
    for layer, law in enumerate(laws):
        mu, block = path[layer], model.block(layer)
        assert gap(mu.rate(law.at(mu)), mu.rate(block.attention.at(mu))) < 1e-12
        assert gap(law.weights(mu.points, mu)[2], model.law(layer, 2).weights(mu.points, mu)) < 1e-12
    assert np.isfinite(af.effective_rank(path.final))


def test_grouped_keys_rotary_positions_and_a_mask(saved, prompt, gap):
    folder = saved("llama")[1]
    model, tensors = af.models.load(folder), safetensors.load_file(folder / "model.safetensors")
    x = prompt("llama")
    path = model.path(x)
    sizes = {"query": ("q_proj", 4), "key": ("k_proj", 2), "value": ("v_proj", 2)}
    parts = {}
    for name, (file, heads) in sizes.items():
        parts[name] = np.asarray(tensors[f"model.layers.0.self_attn.{file}.weight"], float).reshape(1, heads, 16, 32).transpose(0, 1, 3, 2)
        parts[f"{name}_bias"] = np.asarray(tensors[f"model.layers.0.self_attn.{file}.bias"], float).reshape(1, heads, 16)
    parts["out"] = np.asarray(tensors["model.layers.0.self_attn.o_proj.weight"], float).T.reshape(1, 4, 16, 32)
    parts["out_bias"] = np.asarray(tensors["model.layers.0.self_attn.o_proj.bias"], float)[None]
    frequencies = 10000.0 ** (-np.arange(0, 16, 2) / 16)
    found, (law,) = af.models.from_arrays(path.states, ts=path.ts, **parts, rotary=frequencies, mask=af.Causal())
    np.testing.assert_array_equal(found.ts, path.ts)
    mu = af.Particles(model.block(0).seen(0, af.Particles(path.states[0])).points)
    assert gap(path.states[0] + mu.rate(law.at(mu)), path.states[1]) < 1e-12


def test_arrays_that_do_not_fit(rng):
    states = rng.normal(size=(3, 5, 8))
    path, laws = af.models.from_arrays(states)
    assert (len(path), laws) == (3, [])
    weights = {name: rng.normal(size=(2, 2, 8, 4)) for name in ("query", "key", "value")} | {"out": rng.normal(size=(2, 2, 4, 8))}
    wide, flat = rng.normal(size=(2, 2, 7, 4)), rng.normal(size=(1, 2, 4, 8))
    for given, message in (
        ({"query": weights["query"]}, "query, key, value and out must be given together, got query alone"),
        (
            weights | {"key": wide},
            r"key must be \[layer, head, d, p\] with 2 layers and the d = 8 of states, got \[2, 2, 7, 4\]",
        ),
        (
            weights | {"out": flat},
            r"out must be \[layer, head, p, d\] with 2 layers and the d = 8 of states, got \[1, 2, 4, 8\]",
        ),
        (weights | {"query": rng.normal(size=(2, 8, 4))}, r"query must have shape \[layer, head, d, p\], got \[2, 8, 4\]"),
        ({"ts": [0.0, 1.0]}, "ts must be one increasing time per frame of states, 3, got "),
        ({"ts": [0.0, 2.0, 1.0]}, "ts must be one increasing time per frame of states, 3, got "),
        ({"names": ["a"]}, "names must be one per token, 5, got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            af.models.from_arrays(states, **given)
