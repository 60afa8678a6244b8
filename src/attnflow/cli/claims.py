"""`attnflow claims`: the ledger, as recorded or measured again."""

import contextlib
import dataclasses
import functools
import json
import pathlib
import sys

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from attnflow import ledger
from attnflow.cli.options import Options, configure, parse
from attnflow.report.carry_out import identity
from attnflow.report.folder import Folder
from attnflow.report.letters import to_text
from attnflow.report.plain import plain
from attnflow.studies import BadInput, studies

_TEXT = "The ledger: every claim, how it stands in the literature, and what was measured for it."
_OPTIONS: Options = {
    "run": (bool, False, "measure the claims again, at the sizes of their sources"),
    "fast": (bool, False, "with --run: at small sizes, in minutes"),
    "study": (tuple[str, ...], (), "only the claims of this study; give it again for another"),
    "out": (pathlib.Path | None, None, "with --run: a folder for the reports of all studies; done ones are not run again with --resume"),
    "resume": (bool, False, "with --out: continue with what is there"),
    "save": (
        bool,
        False,
        "with --run --fast: write what was measured into the table of the package, docs/ledger.md and docs/errata.md (in a checkout)",
    ),
    "json": (bool, False, "print the ledger as JSON and nothing else"),
}


def claims_(argv: list[str]) -> int:
    """Print the ledger; exit 1 if a claim fails."""
    chosen = parse("attnflow claims", _TEXT, argv, _OPTIONS)
    if chosen is None:
        return 0
    found = studies()
    if unknown := [name for name in chosen.study if name not in found]:
        raise BadInput(f"the studies are {', '.join(found)}, got {unknown[0]!r}")
    if not chosen.run and (chosen.fast or chosen.out or chosen.save or chosen.resume):
        raise BadInput("--fast, --out, --resume and --save go with --run, got none; add --run")
    if chosen.save and not chosen.fast:
        raise BadInput("--save is for small sizes, those of the ledger; give --run --fast --save")
    if chosen.resume and chosen.out is None:
        raise BadInput("--resume needs the folder to go on with; give --out")
    names = chosen.study or tuple(found)
    if not chosen.run:
        return _show([entry for entry in ledger.recorded() if entry.study in names], [], chosen.json)
    for name in names if chosen.out else ():
        spec = found[name].FAST if chosen.fast else found[name].Spec()
        Folder(chosen.out / name, resume=chosen.resume).check(identity(name, spec))
    work = functools.partial(_measure, fast=chosen.fast, out=chosen.out, resume=chosen.resume)
    results = ledger.measure_all(names, work, progress=not chosen.json)
    entries = [entry for result in results for entry in result.entries]
    if chosen.save:
        ledger.save(entries)
        ledger.write_pages()
    return _show(entries, [result for result in results if result.why], chosen.json)


def _measure(name: str, fast: bool, out: pathlib.Path | None, resume: bool) -> ledger.Measured:
    """One study, in a process of its own. What libraries print is not the command's output."""
    configure()
    with contextlib.redirect_stdout(sys.stderr):
        return ledger.measure(name, fast=fast, out=out, resume=resume)


def _show(entries: list[ledger.Entry], missed: list[ledger.Measured], as_json: bool) -> int:
    failed = sum(entry.verdict == "fails" for entry in entries)
    if as_json:
        print(json.dumps(plain([dataclasses.asdict(entry) for entry in entries]), indent=2, allow_nan=False))
        return 1 if failed else 0
    console = Console(highlight=False)
    colors = {"holds": "green", "fails": "red", "not measured": "yellow"}
    for entry in entries:
        console.print(f"[bold]{entry.id}[/]  {entry.status}  [{colors[entry.verdict]}]{entry.verdict}[/]")
        console.print(Padding("\n".join(_lines(entry)), (0, 0, 1, 2)))
    for result in missed:
        console.print(f"{result.study} was not measured: {result.why}", style="yellow", soft_wrap=True, markup=False)
    measured = [entry for entry in entries if entry.verdict != "not measured"]
    console.print(f"{len(entries)} claims, {len(measured)} measured, {failed} fail; {ledger.not_as_printed(entries)}")
    return 1 if failed else 0


def _lines(entry: ledger.Entry) -> list[str]:
    """What the claim says, where it is from, and the check of it that is closest to failing."""
    lines = [escape(to_text(entry.statement)), f"[dim]{escape(to_text(entry.source))}[/]"]
    if entry.printed:
        lines.insert(1, f"[dim]printed: {escape(to_text(entry.printed))}[/]")
    if entry.shown is not None:
        measured, predicted, tolerance = (ledger.number(entry.shown[key]) for key in ("measured", "expected", "tolerance"))
        more = f", the closest of {entry.checks} checks" if entry.checks > 1 else ""
        name = escape(to_text(entry.shown["name"]))
        lines.append(f"measured {measured}, predicted {predicted} within {tolerance}, used {ledger.used(entry)}: {name}{more}")
        lines.append(f"[dim]by attnflow run {entry.study}[/]")
    return lines
