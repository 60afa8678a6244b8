"""What reading a model of ordinary size takes: little more than its weights, and nothing of size d x d per head."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

import attnflow as af

pytest.importorskip("safetensors")
D, LAYERS, HEADS = 768, 12, 12
# Loads a folder and prints what it took at most, in bytes: memory of its own, without the pages of files, above the imported libraries.
SCRIPT = """
import re, sys, threading, time
import jax, numpy as np
import attnflow as af
from attnflow.models import transformer
jax.block_until_ready(jax.numpy.zeros(8) + 1)
def own(): return 1024 * int(re.search(r"RssAnon:\\s*(\\d+)", open("/proc/self/status").read())[1])
start, seen, done = own(), [], threading.Event()
def watch():
    while not done.is_set():
        seen.append(own())
        time.sleep(0.002)
thread = threading.Thread(target=watch)
thread.start()
model = af.models.load(sys.argv[1], dtype="float32")
done.set()
thread.join()
# The head is tied to the words.
print(max(seen) - start, sum({id(leaf): leaf.nbytes for leaf in jax.tree.leaves(model)}.values()))
"""


def tensors():
    """The names and shapes of a GPT-2 of the first size, with fewer words."""
    yield from {"wte.weight": [20_000, D], "wpe.weight": [1024, D], "ln_f.weight": [D], "ln_f.bias": [D]}.items()
    sizes = {"attn.c_attn": [D, 3 * D], "attn.c_proj": [D, D], "mlp.c_fc": [D, 4 * D], "mlp.c_proj": [4 * D, D]}
    for layer in range(LAYERS):
        for name, shape in sizes.items():
            yield f"h.{layer}.{name}.weight", shape
            yield f"h.{layer}.{name}.bias", shape[1:]
        for name in ("ln_1", "ln_2"):
            yield f"h.{layer}.{name}.weight", [D]
            yield f"h.{layer}.{name}.bias", [D]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model written tensor by tensor, in half precision."""
    folder, header, end = tmp_path_factory.mktemp("large"), {}, 0
    for name, shape in tensors():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    config = {"model_type": "gpt2", "n_embd": D, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": 20_000, "n_positions": 1024}
    (folder / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(0).normal(scale=0.02, size=2**20).astype(np.float16)
    with (folder / "model.safetensors").open("wb") as file:
        text = json.dumps(header).encode()
        file.write(len(text).to_bytes(8, "little") + text)
        for place in header.values():
            file.write(np.resize(random, place["shape"]).tobytes())
    return folder


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_reading_takes_little_more_than_the_weights(folder):
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peak, size = map(int, done.stdout.split())
    weights = 4 * sum(int(np.prod(shape)) for _, shape in tensors())
    assert size < 1.01 * weights
    assert weights < peak + 1e7
    assert peak < 1.5 * weights, f"{peak / weights:.2f} times the weights"


@pytest.mark.long
def test_nothing_of_size_d_by_d_per_head(folder):
    """Neither in the weights nor in the program of a half layer."""
    model = af.models.load(folder, dtype="float32")
    assert max(leaf.size for leaf in jax.tree.leaves(model.block(0))) <= 4 * D * D
    attention = model.block(0).attention
    assert sum(leaf.size for leaf in jax.tree.leaves(attention)) < 4 * D * D + 10 * D
    mu = af.Particles(np.ones((16, D), np.float32))
    program = jax.make_jaxpr(lambda points: model.block(0).half(0, mu.with_state(points))[0])(mu.points)
    assert max(sizes(program.jaxpr)) < HEADS * D * D


def sizes(program):
    """The sizes of all arrays that a program makes."""
    for equation in program.eqns:
        yield from (var.aval.size for var in equation.outvars)
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda it: hasattr(it, "eqns") or hasattr(it, "jaxpr")):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                yield from sizes(getattr(inner, "jaxpr", inner))
