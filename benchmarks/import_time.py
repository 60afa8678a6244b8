"""Does `import attnflow` cost more than the libraries it stands on? Processor time, both sides from compiled bytecode.

Names are loaded when first asked for, so the bare import is not the whole price: the second row has asked for what a first script uses.
"""

import os
import subprocess
import sys

from benchmarks.table import Row

TIMED = "import time; t = time.process_time(); {}; print(time.process_time() - t)"
PEER = "import jax, diffrax"
OURS = {
    "import": "import attnflow",
    "import, tokens, law and solver loaded": "import attnflow as af; af.Particles, af.Sphere, af.samplers, af.simple_attention, af.solve",
}


def run() -> list[Row]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    best = dict.fromkeys([PEER, *OURS.values()], float("inf"))
    for _ in range(15):
        for code in best:
            out = subprocess.run([sys.executable, "-c", TIMED.format(code)], capture_output=True, text=True, check=True, env=environment)
            best[code] = min(best[code], float(out.stdout))
    peer = best[PEER]
    return [
        Row(f"{name}, against jax + diffrax", f"{ours:.2f} s", f"{peer:.2f} s", f"{ours / peer:.3f}", "<= 1.10", ours <= 1.10 * peer)
        for name, ours in ((name, best[code]) for name, code in OURS.items())
    ]
