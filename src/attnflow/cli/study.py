"""`attnflow list`, `attnflow run STUDY`, `attnflow demo`."""

import contextlib
import dataclasses
import io
import json
import pathlib
import shlex
from typing import TYPE_CHECKING, Any

from attnflow.cli.options import OUT, RUN, configure, no_more, parse
from attnflow.studies import BadInput, Check, Experiment, Study
from attnflow.studies.tools.check import used_in_words
from attnflow.studies.tools.study import S

if TYPE_CHECKING:
    import rich.table

    import attnflow.report.folder


def list_(argv: list[str]) -> int:
    """The studies, a line each; as JSON with their parameters."""
    from attnflow.studies import studies, titles

    found = titles()
    if argv == ["--json"]:
        from attnflow.report.carry_out import parameters

        every = [{"study": name, "title": found[name], "parameters": parameters(study.Spec())} for name, study in studies().items()]
        print(json.dumps(every, indent=2, default=str))
        return 0
    no_more("list", argv)
    from attnflow.report.letters import to_text

    for name, title in found.items():
        print(f"{name:{max(map(len, found))}}  {to_text(title)}")
    return 0


def run_(argv: list[str]) -> int:
    """Any study, with the options of its `Spec`."""
    from attnflow.studies import studies

    found = studies()
    name, *rest = argv or [""]
    if name in ("-h", "--help"):
        print(f"usage: attnflow run STUDY [options] [--out DIR]\n\nThe studies are {', '.join(found)}; attnflow list says more.")
        return 0
    if name not in found:
        raise BadInput(f"the studies are {', '.join(found)}, got {repr(name) if name else 'none'}; attnflow list says more")
    return _study(f"run {name}", name, found[name], rest, pathlib.Path("results", name))


def demo_(argv: list[str]) -> int:
    """The study `demo`, in a folder of that name."""
    from attnflow.studies import demo as study

    return _study("demo", "demo", study, argv, pathlib.Path("demo"))


def typed(command: str, argv: list[str]) -> str:
    """What a user types to repeat a run."""
    return " ".join(["attnflow", command, *(shlex.quote(word) for word in argv if word not in ("--resume", "--overwrite", "--json"))])


def _study(command: str, name: str, study: Study[Any, Any], argv: list[str], out: pathlib.Path) -> int:
    from attnflow.report.folder import Folder
    from attnflow.report.letters import to_text

    extra = {
        "out": (pathlib.Path, out, OUT),
        "fast": (bool, False, "a small size, for which seconds suffice; other options then change it"),
    } | RUN
    text = to_text(study.__doc__ or "")
    chosen = parse(f"attnflow {command}", text, argv, extra, study.Spec())
    if chosen is not None and chosen.fast:
        chosen = parse(f"attnflow {command}", text, argv, extra, study.FAST)
    if chosen is None:
        return 0
    try:
        spec = study.Spec(**{field.name: getattr(chosen, field.name) for field in dataclasses.fields(study.Spec)})
    except ValueError as error:
        raise BadInput(error) from error
    folder = Folder(chosen.out, chosen.resume, chosen.overwrite)
    return perform(name, study, spec, folder, typed(command, argv), chosen.movie, chosen.json)


def perform(
    name: str, study: Experiment[S, Any], spec: S, folder: "attnflow.report.folder.Folder", command: str, movie: bool, as_json: bool
) -> int:
    """Run it and say what came of it."""
    from rich.console import Console
    from rich.markup import escape

    from attnflow.report.carry_out import carry_out, identity, parameters
    from attnflow.report.letters import to_text

    folder.check(identity(name, spec))
    configure()
    console = Console(highlight=False, quiet=as_json)
    console.print(to_text((study.__doc__ or "").strip().splitlines()[0]), soft_wrap=True, markup=False)
    values = ", ".join(f"{name} = {value}" for name, value in parameters(spec).items())
    console.print(values, style="dim", soft_wrap=True, markup=False)
    try:
        # With --json nothing else may be printed, not even the progress of a movie.
        with contextlib.redirect_stdout(io.StringIO()) if as_json else contextlib.nullcontext():
            outcome = carry_out(name, study, spec, folder, command, movie, progress=not as_json)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"; what is done is in {str(folder.path)!r}, --resume goes on with it") from None
    failed = sum(not check.ok for check in outcome.checks)
    if as_json:
        print((folder.path / "claims.json").read_text(), end="")
        return 1 if failed else 0
    console.print(table(outcome.checks))
    for claim in outcome.record["claims"]:
        color = {"holds": "green", "fails": "red"}.get(claim["verdict"], "yellow")
        statement, source = (escape(to_text(claim[key])) for key in ("statement", "source"))
        console.print(f"[{color}]{claim['verdict']}[/]  {statement} [dim]({source})[/]", soft_wrap=True)
    count = len(outcome.checks)
    console.print(f"\n[red]{failed} of {count} checks fail[/]" if failed else f"\nall {count} checks hold")
    console.print("wrote " + ", ".join(map(str, outcome.written)), soft_wrap=True, markup=False)
    console.print(f"open {folder.path / 'report.html'} in a browser", soft_wrap=True, markup=False)
    return 1 if failed else 0


def table(checks: list[Check]) -> "rich.table.Table":
    """The checks with their verdicts."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from attnflow.report.letters import to_text

    drawn = Table(box=box.SIMPLE_HEAD)
    drawn.add_column("check")
    for name in ("measured", "expected", "tolerance", "used"):
        drawn.add_column(name, justify="right", no_wrap=True)
    drawn.add_column("verdict")
    for check in checks:
        numbers = f"{check.measured:.6g}", f"{check.expected:.6g}", f"{check.tolerance:.2g}", used_in_words(check.used, check.tolerance)
        drawn.add_row(escape(to_text(check.name)), *numbers, "[green]holds[/]" if check.ok else "[red]fails[/]")
    return drawn
