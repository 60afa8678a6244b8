"""The command line: `attnflow list`, `attnflow run STUDY`, `attnflow demo`, `attnflow version`.

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
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Annotated, Any

from attnflow._version import __version__
from attnflow.studies.check import BadInput, Check

# The movie lasts about ten seconds.
_MOVIE_FRAMES = 240
_HELP = """usage: attnflow COMMAND

Self-attention as a flow of probability measures.

  attnflow list                              the studies, a line each
  attnflow run STUDY [options] [--out DIR]   run a study: its checks, figures and record
  attnflow demo [options] [--out DIR]        tokens that cluster on the sphere: checks, figure and movie
  attnflow version                           the version

attnflow run STUDY --help and attnflow demo --help say which options there are.
Exit codes: 0, every check holds; 1, a check fails; 2, bad input, nothing is written; 130, interrupted."""
_OUT = "the folder to write to; it is made if need be, and files of the same names are replaced"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    first, *rest = (sys.argv[1:] if argv is None else list(argv)) or [""]
    try:
        if first in ("-h", "--help"):
            print(_HELP)
            return 0
        if first not in _COMMANDS:
            names = "list, run, demo and version"
            raise BadInput(f"the commands are {names}, got {repr(first) if first else 'none'}; attnflow --help says more")
        return _COMMANDS[first](rest)
    except (BadInput, OSError) as error:
        print(f"attnflow: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("attnflow: interrupted", file=sys.stderr)
        return 130


def _version(argv: list[str]) -> int:
    _no_more("version", argv)
    print(__version__)
    return 0


def _list(argv: list[str]) -> int:
    from attnflow.studies import studies

    _no_more("list", argv)
    found = studies()
    for name, study in found.items():
        print(f"{name:{max(map(len, found))}}  {_claim(study)}")
    return 0


def _run(argv: list[str]) -> int:
    """Any study, with the options of its `Spec`."""
    from attnflow.studies import studies

    found = studies()
    name, *rest = argv or [""]
    if name in ("-h", "--help"):
        print(f"usage: attnflow run STUDY [options] [--out DIR]\n\nThe studies are {', '.join(found)}; attnflow list says more.")
        return 0
    if name not in found:
        raise BadInput(f"the studies are {', '.join(found)}, got {repr(name) if name else 'none'}; attnflow list says more")
    chosen = _options(f"attnflow run {name}", found[name], rest, out=(pathlib.Path, pathlib.Path("results", name), _OUT))
    return 0 if chosen is None else _study(name, found[name], *chosen, formats=("png", "pdf"))


def _demo(argv: list[str]) -> int:
    """The demo study, with a movie."""
    from attnflow.plot import movie
    from attnflow.studies import demo

    chosen = _options(
        "attnflow demo",
        demo,
        argv,
        out=(pathlib.Path, pathlib.Path("demo"), _OUT),
        movie=(bool, True, "whether to make the movie"),
    )
    if chosen is None:
        return 0

    def film(result: demo.Result, out: pathlib.Path) -> list[pathlib.Path]:
        file, every = out / "tokens.mp4", max(1, result.spec.frames // _MOVIE_FRAMES)
        return [movie(result.path, file, every=every, tail=20 * every, progress=True, size=36.0, **demo.style(result))]

    return _study("demo", demo, *chosen, formats=("png",), more=film if chosen[1].movie else None)


_COMMANDS: dict[str, Callable[[list[str]], int]] = {"list": _list, "run": _run, "demo": _demo, "version": _version, "--version": _version}


def _no_more(command: str, argv: list[str]) -> None:
    if argv:
        raise BadInput(f"{command} takes no options, got {argv[0]!r}")


def _claim(study: Any) -> str:
    """The first line of a study's docstring."""
    return (study.__doc__ or "").strip().splitlines()[0]


def _options(prog: str, study: Any, argv: list[str], **extra: tuple[type, Any, str]) -> tuple[Any, Any] | None:
    """The spec that the arguments ask for and all options; `None` if they ask for help, which is then printed."""
    import tyro

    # The spec checks its values after the parser has done with them, so that its message is the user's.
    quiet: dict[str, Any] = {"__post_init__": lambda self: None, "__doc__": study.__doc__}
    fields = [
        (name, Annotated[kind, tyro.conf.arg(help=text)], dataclasses.field(default=value)) for name, (kind, value, text) in extra.items()
    ]
    form = dataclasses.make_dataclass("Options", fields, bases=(study.Spec,), frozen=True, namespace=quiet)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            options = tyro.cli(form, prog=prog, args=argv)
    except SystemExit as stop:
        if not stop.code:
            return None
        raise BadInput(f"{_reason(complaint.getvalue())}; {prog} --help says more") from None
    try:
        return study.Spec(**{field.name: getattr(options, field.name) for field in dataclasses.fields(study.Spec)}), options
    except ValueError as error:
        raise BadInput(error) from error


def _reason(complaint: str) -> str:
    """tyro draws a box of several parts; the first part says what was wrong."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", complaint)
    lines = [line.strip("│ ") for line in plain.splitlines()[1:]]
    end = next((i for i, line in enumerate(lines) if line.startswith(("─", "╰"))), len(lines))
    return " ".join(lines[:end]).removeprefix("Error parsing ").rstrip(".") or "bad arguments"


def _study(name: str, study: Any, spec: Any, options: Any, formats: Sequence[str], more: Callable | None = None) -> int:
    """Run the study, then write everything; nothing is written before the computation has ended."""
    from rich.console import Console

    from attnflow.studies import figures

    _writable(options.out)
    _configure()
    console = Console(highlight=False)
    console.print(_claim(study), soft_wrap=True, markup=False)
    parameters = ", ".join(f"{key} = {value}" for key, value in dataclasses.asdict(spec).items())
    console.print(parameters, style="dim", soft_wrap=True, markup=False)
    try:
        result = study.run(spec, progress=True)
    except ValueError as error:
        # What the values of a spec mean together, or a data file, may show only now.
        raise BadInput(error) from error
    checks = study.checks(result)
    options.out.mkdir(parents=True, exist_ok=True)
    written = [options.out / f"{name}.json"]
    written[0].write_text(json.dumps(_plain(_record(name, study, spec, result, checks)), indent=2, allow_nan=False) + "\n")
    for title, figure in figures(study, result).items():
        for ending in formats:
            written.append(options.out / f"{title}.{ending}")
            figure.savefig(written[-1])
    written += [] if more is None else more(result, options.out)
    console.print(_table(checks))
    failed = sum(not check.ok for check in checks)
    console.print(f"[red]{failed} of {len(checks)} checks fail[/]" if failed else f"all {len(checks)} checks hold")
    console.print("wrote " + ", ".join(map(str, written)), soft_wrap=True)
    return 1 if failed else 0


def _writable(out: pathlib.Path) -> None:
    place = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not place.is_dir():
        raise BadInput(f"out must be a folder, got {str(out)!r}: {str(place)!r} is a file")
    if not os.access(place, os.W_OK):
        raise BadInput(f"out must be a folder to write to, got {str(out)!r}: {str(place)!r} is read-only")


def _configure() -> None:
    """Double precision, and compiled programs kept from run to run where the user's cache can be written."""
    import jax

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


def _record(name: str, study: Any, spec: Any, result: Any, checks: list[Check]) -> dict[str, Any]:
    """All that is needed to repeat the run and to judge it."""
    packages = ("jax", "jaxlib", "equinox", "diffrax", "numpy", "matplotlib")
    return {
        "study": name,
        "claim": _claim(study),
        "seed": getattr(spec, "seed", None),
        "parameters": dataclasses.asdict(spec),
        "versions": {"attnflow": __version__, "python": platform.python_version()}
        | {package: metadata.version(package) for package in packages},
        "checks": [dataclasses.asdict(check) | {"ok": check.ok} for check in checks],
        "measured": study.measured(result) if hasattr(study, "measured") else {},
    }


def _plain(value: Any) -> Any:
    """What JSON can hold; null stands for a number that is not finite."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def _table(checks: list[Check]) -> Any:
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
