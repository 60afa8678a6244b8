"""The ledger: every claim of every study, how it stands in the literature, and what was measured for it.

The table that ships with the package, `ledger.json`, is that of `attnflow claims --run --fast`, which measures it again; docs/ledger.md is
made from it.
"""

import concurrent.futures
import dataclasses
import json
import multiprocessing
import os
import pathlib
import signal
from collections.abc import Callable, Iterable
from typing import Any

from attnflow.report.carry_out import judged, parameters
from attnflow.report.plain import plain
from attnflow.studies import BadInput, studies

RECORD = pathlib.Path(__file__).with_name("ledger.json")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A claim with its verdict: "holds", "fails" or "not measured". `shown` is, of its checks, the one closest to failing."""

    id: str
    statement: str
    source: str
    status: str
    printed: str
    verdict: str
    checks: int
    shown: dict[str, Any] | None


def claims() -> list[Entry]:
    """Every claim of every study, not measured."""
    return [Entry(**claim) for name, study in studies().items() for claim in judged(study, name, [])]


def recorded() -> list[Entry]:
    """Every claim, with what was measured when the package was made."""
    found = {entry["id"]: Entry(**entry) for entry in json.loads(RECORD.read_text())["claims"]} if RECORD.is_file() else {}
    return [_with_result(claim, found.get(claim.id)) for claim in claims()]


def measure(name: str, fast: bool = True) -> tuple[str, list[Entry], str]:
    """Run a study: its name, its claims with what was measured, and what kept it from running, if anything did."""
    study = studies()[name]
    try:
        checks = study.checks(study.run(study.FAST if fast else study.Spec()))
    except BadInput as error:
        return name, [Entry(**claim) for claim in judged(study, name, [])], str(error)
    return name, [Entry(**claim) for claim in plain(judged(study, name, checks))], ""


def measure_all(names: Iterable[str], work: Callable[[str], Any], workers: int | None = None, progress: bool = False) -> list[Any]:
    """`work` on every study, each in a process of its own: it is compilation that takes long, and that is one thread's work."""
    from rich.progress import Progress

    names = list(names)
    context = multiprocessing.get_context("spawn")
    found: dict[str, Any] = {}
    # A new process a study: compiled programs fill the memory.
    pool = concurrent.futures.ProcessPoolExecutor(
        workers or os.cpu_count(),
        mp_context=context,
        max_tasks_per_child=1,
        # Ctrl-C reaches all processes; this one ends the others.
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    with Progress(disable=not progress) as bar:
        task = bar.add_task("studies", total=len(names))
        try:
            waiting = {pool.submit(work, name): name for name in names}
            for done in concurrent.futures.as_completed(waiting):
                found[waiting[done]] = done.result()
                bar.update(task, advance=1, description=waiting[done])
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
    return [found[name] for name in names]


def save(entries: list[Entry], file: pathlib.Path = RECORD) -> None:
    """Write the table that ships with the package. Specs are noted with it, as they say how large the runs were."""
    sizes = {name: parameters(study.FAST) for name, study in studies().items()}
    content = {"claims": [dataclasses.asdict(entry) for entry in entries], "specs": sizes}
    file.write_text(json.dumps(plain(content), indent=1, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")


def markdown(entries: list[Entry]) -> str:
    """The page of the ledger."""
    measured = [entry for entry in entries if entry.verdict != "not measured"]
    wrong = sum(entry.status == "refuted as printed" for entry in entries)
    lines = [
        "# The ledger",
        "",
        "Every claim that a study takes up, how it stands in the literature, and the check of it that is closest to failing, measured by",
        "`attnflow claims --run --fast`. `attnflow run STUDY` measures the claims of a study at the size of its source.",
        "",
        f"{len(entries)} claims; {sum(entry.verdict == 'holds' for entry in measured)} hold of {len(measured)} measured; "
        f"{wrong} are not what their source prints.",
    ]
    for study in dict.fromkeys(entry.id.split("/")[0] for entry in entries):
        lines += ["", f"## {study}", "", "| claim | status | measured | predicted | tolerance | verdict |", "|---|---|---:|---:|---:|---|"]
        for entry in entries:
            if entry.id.split("/")[0] == study:
                lines.append(_line(entry))
    return "\n".join(lines) + "\n"


def _line(entry: Entry) -> str:
    printed = f"<br>*Printed:* {entry.printed}" if entry.printed else ""
    claim = f"`{entry.id}` {entry.statement}{printed}<br>*{entry.source}*"
    if entry.shown is None:
        return f"| {_cell(claim)} | {entry.status} | | | | {entry.verdict} |"
    claim += f"<br>{entry.shown['name']}" + (f", the closest of {entry.checks} checks" if entry.checks > 1 else "")
    numbers = " | ".join(number(entry.shown[key]) for key in ("measured", "expected", "tolerance"))
    return f"| {_cell(claim)} | {entry.status} | {numbers} | {entry.verdict} |"


def number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.5g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _with_result(claim: Entry, found: Entry | None) -> Entry:
    """The claim as the study words it now, with the numbers of the record."""
    if found is None:
        return claim
    return dataclasses.replace(claim, verdict=found.verdict, checks=found.checks, shown=found.shown)
