"""`attnflow simulate SPEC.toml`, `attnflow spec`."""

import pathlib

from attnflow.cli.options import OUT, RUN, double_precision, no_more, parse
from attnflow.cli.study import perform, typed

_TEXT = """Simulate the law and the measure that a file describes; attnflow spec prints one with every key explained."""


def spec_(argv: list[str]) -> int:
    """Print the example."""
    from attnflow.simulate import EXAMPLE

    no_more("spec", argv)
    print(EXAMPLE, end="")
    return 0


def simulate_(argv: list[str]) -> int:
    """Read, check, run."""
    from attnflow.report.folder import Folder
    from attnflow.simulate import read
    from attnflow.simulate.simulation import Simulation

    extra = {
        "SPEC": (pathlib.Path, ..., "the file"),
        "out": (pathlib.Path | None, None, f"{OUT}; by default results/ and the name of the file"),
        "check": (bool, False, "only say whether the file makes sense; nothing is run or written"),
        "seed": (int | None, None, "a seed in place of that of the file"),
    } | RUN
    chosen = parse("attnflow simulate", _TEXT, argv, extra)
    if chosen is None:
        return 0
    spec = read(chosen.spec, chosen.seed)
    out = pathlib.Path("results", chosen.spec.stem) if chosen.out is None else chosen.out
    double_precision()
    simulation = Simulation(chosen.spec.absolute().parent, "The simulation " + chosen.spec.name.replace("$", r"\$"), out / "path")
    simulation.check(spec)
    if chosen.check:
        print(f"{chosen.spec} makes sense")
        return 0
    folder = Folder(out, chosen.resume, chosen.overwrite)
    return perform("simulate", simulation, spec, folder, typed("simulate", argv), chosen.movie and spec.moves, chosen.json)
