"""The ledger: every claim of every study, how it stands in the literature, and what was measured for it.

The table that ships with the package, `ledger.json`, is that of `attnflow claims --run --fast`, which measures it again; docs/ledger.md and
docs/errata.md are made from it and from the words of the studies.
"""

import concurrent.futures
import dataclasses
import json
import math
import multiprocessing
import os
import pathlib
import signal
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from attnflow.report.carry_out import carry_out, judged, parameters
from attnflow.report.folder import Folder
from attnflow.report.plain import plain
from attnflow.studies import BadInput, studies
from attnflow.studies.tools.check import ERRATA, NOT_AS_PRINTED, Check, used_in_words

RECORD = pathlib.Path(__file__).with_name("ledger.json")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A claim with its verdict on its statement: "holds", "fails" or "not measured". `shown` is, of its checks, the one closest to failing,
    with how much of its tolerance it uses."""

    id: str
    statement: str
    source: str
    status: str
    printed: str
    derived: str
    sure: str
    verdict: str
    checks: int
    shown: dict[str, Any] | None

    @property
    def study(self) -> str:
        """The study that measures it."""
        return self.id.split("/")[0]


def claims() -> list[Entry]:
    """Every claim of every study, not measured."""
    return [Entry(**claim) for name, study in studies().items() for claim in judged(study, name, [])]


def recorded() -> list[Entry]:
    """Every claim, with what was measured when the package was made."""
    found = {entry["id"]: entry for entry in json.loads(RECORD.read_text())["claims"]} if RECORD.is_file() else {}
    return [_with_result(claim, found.get(claim.id)) for claim in claims()]


class Measured(NamedTuple):
    """The claims of a study with what was measured, and what kept it from running, if anything did."""

    study: str
    entries: list[Entry]
    why: str = ""


def measure(name: str, *, fast: bool = True, out: pathlib.Path | None = None, resume: bool = False) -> Measured:
    """Run a study, at its fast size or at that of its source; with `out`, its report is written to a folder there."""
    study = studies()[name]
    spec = study.FAST if fast else study.Spec()
    try:
        if out is None:
            found = judged(study, name, study.checks(study.run(spec)))
        else:
            command = f"attnflow run {name}{' --fast' if fast else ''} --out {out / name}"
            found = carry_out(name, study, spec, Folder(out / name, resume=resume), command, progress=False).record["claims"]
    except BadInput as error:
        return Measured(name, [Entry(**claim) for claim in judged(study, name, [])], str(error))
    return Measured(name, [Entry(**claim) for claim in plain(found)])


def measure_all(names: Iterable[str], work: Callable[[str], Measured], *, progress: bool = False) -> list[Measured]:
    """`work` on every study, each in a process of its own: most of the time is compilation, which uses one thread."""
    from rich.progress import Progress

    names = list(names)
    found: dict[str, Measured] = {}
    # A new process for each study: compiled programs fill the memory.
    pool = concurrent.futures.ProcessPoolExecutor(
        os.cpu_count(),
        mp_context=multiprocessing.get_context("spawn"),
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


def save(entries: list[Entry], file: pathlib.Path | None = None) -> None:
    """Write the table that ships with the package: these entries and, for all other studies, those of the record. The specs are noted with
    it, as they say how large the runs were."""
    measured = {entry.study for entry in entries}
    new = {entry.id: entry for entry in entries}
    entries = [new[old.id] if old.study in measured else old for old in recorded()]
    file = RECORD if file is None else file
    sizes = {name: parameters(study.FAST) for name, study in studies().items()}
    content = {"claims": [dataclasses.asdict(entry) for entry in entries], "specs": sizes}
    file.write_text(json.dumps(plain(content), indent=1, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")


def write_pages() -> None:
    """Write docs/ledger.md and docs/errata.md of a checkout, from the record and the words of the studies."""
    docs, entries = RECORD.parents[2] / "docs", recorded()
    for name, page in (("ledger", markdown), ("errata", errata)):
        (docs / f"{name}.md").write_text(page(entries), encoding="utf-8")


def markdown(entries: list[Entry]) -> str:
    """The page of the ledger."""
    measured = [entry for entry in entries if entry.verdict != "not measured"]
    lines = [
        "# The ledger",
        "",
        "Every claim that a study takes up, how it stands in the literature, and the check of it that is closest to failing, measured by",
        "`attnflow claims --run --fast`. `attnflow run STUDY` measures the claims of a study at the size of its source.",
        "",
        "The verdict, holds or fails, is about the sentence of the row, which is ours. Where the source prints something else, the row has",
        "that too, and its status says how the two are related: [studies](studies.md) explains the words, and [errata](errata.md) has a",
        "paragraph on each misprint and each difference. *Used* is how much of its tolerance the check uses, the distance of measured and",
        "predicted over the tolerance: above 100 % the claim fails. Where a claim is an identity, what is left is round-off, and little is",
        "used.",
        "",
        f"{len(entries)} claims; {sum(entry.verdict == 'holds' for entry in measured)} hold of {len(measured)} measured; "
        f"{not_as_printed(entries)}.",
    ]
    for study in dict.fromkeys(entry.study for entry in entries):
        lines += ["", f"## {study}", "", f"Measured by `attnflow run {study}`.", "", _HEAD, "|---|---|---:|---:|---:|---:|---|"]
        lines += [_line(entry) for entry in entries if entry.study == study]
    return "\n".join(lines) + "\n"


def not_as_printed(entries: list[Entry]) -> str:
    """How many are not what their source prints, by status."""
    counts = {status: sum(entry.status == status for entry in entries) for status in NOT_AS_PRINTED}
    return ", ".join(f"{status}: {count}" for status, count in counts.items())


def errata(entries: list[Entry]) -> str:
    """The page of errata: a paragraph for every misprint and every difference."""
    lines = [
        "# Errata",
        "",
        "What we read in posters, slides, notes and papers, and derive or measure otherwise; with thanks to their authors, on whose work",
        "all of this rests. No main result is touched. What is printed is quoted as we have it, mostly from a poster, slides or notes and",
        "not from the paper itself. If we misread it, or if it is mended already, tell us, and the paragraph goes. What is better than",
        'printed is no erratum: the [ledger](ledger.md) has it as "sharper than stated".',
        "",
        "Holds or fails is said of our own statement, which is in the row of the ledger under the same name.",
    ]
    for status, title in zip(ERRATA, ("Misprints", "Differences")):
        lines += ["", f"## {title}"]
        for entry in entries:
            if entry.status == status:
                lines += ["", _paragraph(entry)]
    return "\n".join(lines) + "\n"


def _paragraph(entry: Entry) -> str:
    """What is printed and where, what we derive, what we measure, how sure we are."""
    found = "We did not measure it."
    if entry.shown is not None:
        numbers = [number(entry.shown[key]) for key in ("measured", "expected", "tolerance")]
        found = (
            f"We measure ({entry.shown['name']}) {numbers[0]}, and predict {numbers[1]} within {numbers[2]}: our statement {entry.verdict}."
        )
    said = f"`{entry.id}`, {entry.source}. Printed: {_sentence(entry.printed)} {_sentence(entry.derived)}"
    return f"{said} {found} {_sentence(entry.sure)}"


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


_HEAD = "| claim | status | measured | predicted | tolerance | used | verdict |"


def _line(entry: Entry) -> str:
    printed = f"<br>*Printed:* {entry.printed}" if entry.printed else ""
    claim = f"`{entry.id}` {entry.statement}{printed}<br>*{entry.source}*"
    if entry.shown is None:
        return f"| {_cell(claim)} | {entry.status} | | | | | {entry.verdict} |"
    claim += f"<br>{entry.shown['name']}" + (f", the closest of {entry.checks} checks" if entry.checks > 1 else "")
    numbers = " | ".join(number(entry.shown[key]) for key in ("measured", "expected", "tolerance"))
    return f"| {_cell(claim)} | {entry.status} | {numbers} | {used(entry)} | {entry.verdict} |"


def used(entry: Entry) -> str:
    """How much of its tolerance the check closest to failing uses."""
    return "" if entry.shown is None else used_in_words(entry.shown["used"], entry.shown["tolerance"])


def number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.5g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _with_result(claim: Entry, found: dict[str, Any] | None) -> Entry:
    """The claim as the study words it now, with the numbers of the record."""
    if found is None:
        return claim
    shown = found["shown"]
    if shown is not None:
        # What was not finite is null in the record.
        measured, expected, tolerance = (math.nan if shown[key] is None else shown[key] for key in ("measured", "expected", "tolerance"))
        shown = plain(shown | {"used": Check(shown["name"], measured, expected, tolerance).used})
    return dataclasses.replace(claim, verdict=found["verdict"], checks=found["checks"], shown=shown)
