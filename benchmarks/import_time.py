"""Does `import attnflow` cost more than the libraries it stands on?"""

import subprocess
import sys

from benchmarks.table import Row

TIMED = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"


def run() -> list[Row]:
    best = {"import attnflow": float("inf"), "import jax, diffrax": float("inf")}
    for _ in range(7):
        for code in best:
            out = subprocess.run([sys.executable, "-c", TIMED.format(code)], capture_output=True, text=True, check=True)
            best[code] = min(best[code], float(out.stdout))
    ours, peer = best.values()
    return [Row("import, against jax + diffrax", f"{ours:.2f} s", f"{peer:.2f} s", f"{ours / peer:.3f}", "<= 1.10", ours <= 1.10 * peer)]
