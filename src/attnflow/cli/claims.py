"""`attnflow claims`: the ledger, as recorded or measured again."""

import contextlib
import functools
import json
import pathlib
import sys
from typing import Any

from attnflow.cli.options import configure, parse
from attnflow.studies.tools.check import BadInput

_TEXT = "The ledger: every claim, how it stands in the literature, and what was measured for it."
_OPTIONS: dict[str, tuple[Any, Any, str]] = {
    "run": (bool, False, "measure the claims again, at the sizes of their sources"),
    "fast": (bool, False, "with --run: at small sizes, in minutes"),
    "study": (tuple[str, ...], (), "only the claims of this study; give it again for another"),
    "out": (pathlib.Path | None, None, "with --run: a folder for the reports of all studies; done ones are not run again with --resume"),
    "resume": (bool, False, "with --out: go on with what is there"),
    "save": (
        bool,
        False,
        "with --run --fast: write what was measured into the table of the package, docs/ledger.md and docs/errata.md (in a checkout)",
    ),
    "json": (bool, False, "print the ledger as JSON and nothing else"),
}


def claims_(argv: list[str]) -> int:
    """Print the ledger; exit 1 if a claim fails."""
    from attnflow import ledger
    from attnflow.report.carry_out import identity
    from attnflow.studies import studies

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
        return _show([entry for entry in ledger.recorded() if entry.id.split("/")[0] in names], [], chosen.json)
    for name in names if chosen.out else ():
        _folder(chosen.out, name, chosen.resume).check(identity(name, _spec(found[name], chosen.fast)))
    work = functools.partial(_measure, fast=chosen.fast, out=chosen.out, resume=chosen.resume)
    results = ledger.measure_all(names, work, progress=not chosen.json)
    entries = [entry for _, own, _ in results for entry in own]
    if chosen.save:
        ledger.save(entries)
        ledger.write_pages()
    return _show(entries, [(name, why) for name, _, why in results if why], chosen.json)


def _measure(name: str, fast: bool, out: pathlib.Path | None, resume: bool) -> Any:
    """One study, in a process of its own: alone, or with its folder."""
    from attnflow import ledger
    from attnflow.report.carry_out import carry_out
    from attnflow.studies import studies

    configure()
    # What libraries print is not the command's output.
    with contextlib.redirect_stdout(sys.stderr):
        if out is None:
            return ledger.measure(name, fast)
        study = studies()[name]
        typed = f"attnflow run {name}{' --fast' if fast else ''} --out {out / name}"
        try:
            outcome = carry_out(name, study, _spec(study, fast), _folder(out, name, resume), typed, progress=False)
        except BadInput as error:
            return name, [entry for entry in ledger.claims() if entry.id.split("/")[0] == name], str(error)
    return name, [ledger.Entry(**claim) for claim in outcome.record["claims"]], ""


def _spec(study: Any, fast: bool) -> Any:
    return study.FAST if fast else study.Spec()


def _folder(out: pathlib.Path, name: str, resume: bool) -> Any:
    from attnflow.report.folder import Folder

    return Folder(out / name, resume)


def _show(entries: Any, missed: list[tuple[str, str]], as_json: bool) -> int:
    import dataclasses

    from rich.console import Console
    from rich.padding import Padding

    from attnflow.ledger import not_as_printed
    from attnflow.report.plain import plain

    failed = sum(entry.verdict == "fails" for entry in entries)
    if as_json:
        print(json.dumps(plain([dataclasses.asdict(entry) for entry in entries]), indent=2, allow_nan=False))
        return 1 if failed else 0
    console = Console(highlight=False)
    colors = {"holds": "green", "fails": "red", "not measured": "yellow"}
    for entry in entries:
        console.print(f"[bold]{entry.id}[/]  {entry.status}  [{colors[entry.verdict]}]{entry.verdict}[/]")
        console.print(Padding("\n".join(_lines(entry)), (0, 0, 1, 2)))
    for name, why in missed:
        console.print(f"{name} was not measured: {why}", style="yellow", soft_wrap=True, markup=False)
    measured = [entry for entry in entries if entry.verdict != "not measured"]
    console.print(f"{len(entries)} claims, {len(measured)} measured, {failed} fail; {not_as_printed(entries)}")
    return 1 if failed else 0


def _lines(entry: Any) -> list[str]:
    """What the claim says, where it is from, and the check of it that is closest to failing."""
    from rich.markup import escape

    from attnflow.ledger import number, used
    from attnflow.report.letters import to_text

    lines = [escape(to_text(entry.statement)), f"[dim]{escape(to_text(entry.source))}[/]"]
    if entry.printed:
        lines.insert(1, f"[dim]printed: {escape(to_text(entry.printed))}[/]")
    if entry.shown is not None:
        measured, predicted, tolerance = (number(entry.shown[key]) for key in ("measured", "expected", "tolerance"))
        more = f", the closest of {entry.checks} checks" if entry.checks > 1 else ""
        name = escape(to_text(entry.shown["name"]))
        lines.append(f"measured {measured}, predicted {predicted} within {tolerance}, used {used(entry)}: {name}{more}")
        lines.append(f"[dim]by attnflow run {entry.study}[/]")
    return lines
