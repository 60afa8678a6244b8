"""The command line: `attnflow demo`, `attnflow version`.

Exit codes: 0, done and every check holds; 1, a check fails; 2, bad input, of which one line on stderr says what was
wrong, and nothing is written; 130, interrupted.
"""

import contextlib
import dataclasses
import io
import json
import math
import os
import pathlib
import platform
import re
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import jax

from attnflow._version import __version__
from attnflow.plot import movie
from attnflow.studies import demo

# The movie lasts about ten seconds.
_MOVIE_FRAMES = 240


@dataclasses.dataclass(frozen=True)
class Demo(demo.Spec):
    """Simulate tokens that cluster on the sphere, check the numbers, draw the figure.

    Writes tokens.png, tokens.mp4 and demo.json (seed, versions, parameters, checks).
    """

    out: pathlib.Path = pathlib.Path("demo")
    """the folder to write to; it is made if need be, and files of these names are replaced"""
    movie: bool = True
    """whether to make the movie"""

    def __post_init__(self):
        """Nothing: `checked` looks at the values, after the parser has done with them."""

    def checked(self) -> demo.Spec:
        """The spec of the study, if that and the folder make sense."""
        spec = demo.Spec(**{field.name: getattr(self, field.name) for field in dataclasses.fields(demo.Spec)})
        place = next(folder for folder in (self.out, *self.out.absolute().parents) if folder.exists())
        if not place.is_dir():
            raise ValueError(f"out must be a folder, got {str(self.out)!r}: {str(place)!r} is a file")
        if not os.access(place, os.W_OK):
            raise ValueError(f"out must be a folder to write to, got {str(self.out)!r}: {str(place)!r} is read-only")
        return spec


@dataclasses.dataclass(frozen=True)
class Version:
    """Print the version."""


class BadInput(ValueError):
    """What the user asked for does not make sense; the message is one line."""


_COMMANDS: dict[str, Any] = {"demo": Demo, "version": Version}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    try:
        command = _parse(sys.argv[1:] if argv is None else list(argv))
        if isinstance(command, Demo):
            return _demo(command)
        if isinstance(command, Version):
            print(__version__)
        return 0
    except (BadInput, OSError) as error:
        print(f"attnflow: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("attnflow: interrupted", file=sys.stderr)
        return 130


def _parse(argv: list[str]) -> Any:
    """The command that the arguments ask for; `None` if they ask for help, which is then printed."""
    import tyro

    if argv == ["--version"]:
        return Version()
    if not argv or (argv[0] not in _COMMANDS and not argv[0].startswith("-")):
        got = f"got {argv[0]!r}" if argv else "got none"
        raise BadInput(f"the commands are {' and '.join(_COMMANDS)}, {got}; attnflow --help says more")
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.extras.subcommand_cli_from_dict(
                _COMMANDS,
                prog="attnflow",
                description="Self-attention as a flow of probability measures.",
                args=argv,
                config=(tyro.conf.OmitArgPrefixes,),
            )
    except SystemExit as stop:
        if not stop.code:
            return None
    # tyro draws a box of several parts; the first part says what was wrong.
    plain = re.sub(r"\x1b\[[0-9;]*m", "", complaint.getvalue())
    lines = [line.strip("│ ") for line in plain.splitlines()[1:]]
    end = next((i for i, line in enumerate(lines) if line.startswith(("─", "╰"))), len(lines))
    reason = " ".join(lines[:end]).removeprefix("Error parsing ").rstrip(".")
    raise BadInput(f"{reason or 'bad arguments'}; attnflow --help says more")


def _demo(command: Demo) -> int:
    """Run the study, then write everything; nothing is written before the simulation has ended."""
    from rich.console import Console

    try:
        spec = command.checked()
    except ValueError as error:
        raise BadInput(error) from error
    _configure()
    console = Console(highlight=False)
    console.print(f"tokens on the sphere: n = {spec.n}, beta = {spec.beta:g}, up to t = {spec.t1:g}, seed {spec.seed}")
    result = demo.run(spec, progress=True)
    checks = demo.checks(result)
    command.out.mkdir(parents=True, exist_ok=True)
    written = [command.out / "tokens.png", command.out / "demo.json"]
    demo.figure(result).savefig(written[0])
    written[1].write_text(json.dumps(_record(result, checks), indent=2, allow_nan=False) + "\n")
    if command.movie:
        file, every = command.out / "tokens.mp4", max(1, spec.frames // _MOVIE_FRAMES)
        written.append(movie(result.path, file, every=every, tail=20 * every, progress=True, size=36.0, **demo.style(result)))
    console.print(_table(checks))
    failed = sum(not check.ok for check in checks)
    if result.path.status.kind != "reached":
        console.print(f"the simulation ended early: {result.path.status}")
    console.print(f"[red]{failed} of {len(checks)} checks fail[/]" if failed else f"all {len(checks)} checks hold")
    console.print("wrote " + ", ".join(map(str, written)), soft_wrap=True)
    return 1 if failed else 0


def _configure() -> None:
    """Double precision, and compiled programs kept from run to run where the user's cache can be written."""
    jax.config.update("jax_enable_x64", True)
    if getattr(jax.config, "jax_compilation_cache_dir", None) is not None:
        return
    with contextlib.suppress(OSError, RuntimeError):
        home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
        cache = pathlib.Path(home) / "attnflow"
        cache.mkdir(parents=True, exist_ok=True)
        if os.access(cache, os.W_OK):
            jax.config.update("jax_compilation_cache_dir", str(cache))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _record(result: demo.Result, checks: list[demo.Check]) -> dict[str, Any]:
    """All that is needed to repeat the run and to judge it; null stands for a number that is not finite."""
    packages = ("jax", "jaxlib", "equinox", "diffrax", "numpy", "matplotlib")
    versions = {"attnflow": __version__, "python": platform.python_version()} | {name: metadata.version(name) for name in packages}
    rows = [dataclasses.asdict(check) | {"ok": check.ok} for check in checks]
    return {
        "study": "demo",
        "seed": result.spec.seed,
        "parameters": dataclasses.asdict(result.spec),
        "versions": versions,
        "status": str(result.path.status),
        "solver": result.path.stats,
        "checks": [{k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()} for row in rows],
    }


def _table(checks: list[demo.Check]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("check")
    for name in ("measured", "expected", "tolerance"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict")
    for check in checks:
        numbers = f"{check.measured:.6g}", f"{check.expected:.6g}", f"{check.tolerance:.2g}"
        table.add_row(check.name, *numbers, "[green]holds[/]" if check.ok else "[red]fails[/]")
    return table
