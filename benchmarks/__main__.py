"""`python -m benchmarks` runs all, `python -m benchmarks NAME ...` some."""

import importlib
import sys

from benchmarks.table import show

NAMES = (
    "import_time",
    "first_call",
    "small_sphere",
    "streamed_velocity",
    "causal_velocity",
    "layers",
    "rescaled",
    "writing",
    "engines",
    "spectral",
    "transport",
    "grid",
    "long_time",
    "sweep",
    "models",
)


def main() -> None:
    names = sys.argv[1:] or NAMES
    unknown = set(names) - set(NAMES)
    if unknown:
        sys.exit(f"benchmarks are {', '.join(NAMES)}, got {', '.join(sorted(unknown))}")
    rows = []
    for name in names:
        print(f"{name} ...", flush=True)
        rows += importlib.import_module(f"benchmarks.{name}").run()
    show(rows)


main()
