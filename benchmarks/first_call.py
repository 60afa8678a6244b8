"""How long does a newcomer wait? The first Python block of the README in a new process, with nothing compiled before and then again; and
building the laws of a model, six layers of twelve heads in d = 384, after the imports.

The peer is the same machine importing jax and diffrax: what no user of them can avoid.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from benchmarks.table import Row

README = pathlib.Path(__file__).parent.parent / "README.md"
BUILD = """
import time
import numpy as np
import attnflow as af
af.Attention, af.MultiHead, af.dot_product, af.Perceptron, af.LayerNorm
rng = np.random.default_rng(0)
d, p = 384, 32
query, key = rng.normal(size=(2, p, d)).astype(np.float32)
value = rng.normal(size=(d, d)).astype(np.float32)
wide, narrow = rng.normal(size=(4 * d, d)).astype(np.float32), rng.normal(size=(d, 4 * d)).astype(np.float32)
begun = time.perf_counter()
for layer in range(6):
    law = af.MultiHead([af.Attention(af.dot_product(query, key, p**0.5), value) for head in range(12)])
    block = [law, af.Perceptron(wide, narrow), af.LayerNorm(np.ones(d, np.float32))]
print(time.perf_counter() - begun)
"""


def run() -> list[Row]:
    block = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)[0]
    peer = min(_seconds("import jax, diffrax", {})[0] for _ in range(3))
    cold, warm = [], []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            cold.append(_seconds(block, {"XDG_CACHE_HOME": folder})[0])
            warm.append(_seconds(block, {"XDG_CACHE_HOME": folder})[0])
    build = min(float(_seconds(BUILD, {})[1].splitlines()[-1]) for _ in range(3))
    rows = [("the first block of the README, nothing compiled before", min(cold), 4.5), ("the same, run before", min(warm), 3.0)]
    rows.append(("building 6 layers of 12 heads in d = 384, after the imports", build, 0.3))
    return [
        Row(
            f"{name}, against importing jax and diffrax",
            f"{ours:.2f} s",
            f"{peer:.2f} s",
            f"{ours / peer:.2f}",
            f"<= {most} s",
            ours <= most,
        )
        for name, ours, most in rows
    ]


def _seconds(code: str, settings: dict[str, str]) -> tuple[float, str]:
    """The wall time of a new process that runs the code, and what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")} | settings
    begun = time.perf_counter()
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return time.perf_counter() - begun, out.stdout
