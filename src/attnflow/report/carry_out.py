"""Run a study and write what it leaves behind.

data.zarr      every array of the result, with the spec, seed, versions and wall time as attributes
figure.png     and .pdf; more than one have names of their own
movie.mp4      where something moves
claims.json    the claims with their verdicts, the checks, and all that is needed to repeat the run
report.html    all of this on one page
"""

import dataclasses
import json
import pathlib
import platform
import time
from importlib import metadata
from typing import Any, NamedTuple

from attnflow._version import __version__
from attnflow.report.data import data_tree
from attnflow.report.folder import Folder
from attnflow.report.page import page
from attnflow.report.plain import plain, write_json, write_text
from attnflow.studies import BadInput, Check, figures
from attnflow.studies.tools.parts import kept

_PACKAGES = ("jax", "jaxlib", "equinox", "diffrax", "numpy", "matplotlib")


class Outcome(NamedTuple):
    """The checks of a run, the record that `claims.json` has, and the files that were written."""

    checks: list[Check]
    record: dict[str, Any]
    written: list[pathlib.Path]


def carry_out(
    name: str,
    study: Any,
    spec: Any,
    folder: Folder,
    command: str,
    *,
    movie: bool = True,
    progress: bool = True,
) -> Outcome:
    """Run a study in a folder. One that is interrupted leaves its parts there; with `folder.resume` it goes on from them.

    **Arguments:** `command` is what a user types to repeat it.
    """
    what = identity(name, spec)
    folder.check(what)
    if folder.resume and (folder.path / "report.html").is_file():
        return _finished(folder.path)
    begun = time.perf_counter()
    with folder.open(what) as out:
        # The time before an interruption counts too.
        clock = out / "parts" / "seconds"
        before = _seconds(clock)
        with kept(out / "parts"):
            try:
                result = study.run(spec, progress=progress)
            except BadInput:
                raise
            except ValueError as error:
                # What the values of a spec mean together, or a data file, may show only now.
                raise BadInput(error) from error
            except KeyboardInterrupt:
                write_text(clock, str(before + time.perf_counter() - begun))
                raise
        checks = study.checks(result)
        record = _record(name, study, spec, result, checks, command) | {"seconds": round(before + time.perf_counter() - begun, 3)}
        written = _write(folder, study, result, record, movie)
        folder.remove("parts")
    return Outcome(checks, record, written)


def identity(name: str, spec: Any) -> dict[str, Any]:
    """What makes two runs the same."""
    return {"study": name, "parameters": parameters(spec), "versions": versions()}


def parameters(spec: Any) -> dict[str, Any]:
    """The values of a spec by name."""
    return plain({field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)})


def versions() -> dict[str, str]:
    return {"attnflow": __version__, "python": platform.python_version()} | {name: metadata.version(name) for name in _PACKAGES}


def judged(study: Any, name: str, checks: list[Check]) -> list[dict[str, Any]]:
    """The claims of a study with what was measured for each: it holds if all its checks do, and the one closest to failing is shown. A
    claim without a check was not measured."""
    found, claims = [], getattr(study, "CLAIMS", {})
    if lost := [check.claim for check in checks if check.claim and check.claim not in claims]:
        raise KeyError(f"{name} has no claim {lost[0]!r}, its claims are {', '.join(claims)}")
    for key, claim in claims.items():
        own = [check for check in checks if check.claim == key]
        worst = max(own, key=lambda check: check.used, default=None)
        verdict = "not measured" if worst is None else "holds" if all(check.ok for check in own) else "fails"
        shown = None if worst is None else _checked(worst)
        found.append(
            {"id": f"{name}/{key.replace(' ', '-')}", **dataclasses.asdict(claim), "verdict": verdict, "checks": len(own), "shown": shown}
        )
    return found


def _checked(check: Check) -> dict[str, Any]:
    """A check for the record, with how much of its tolerance it uses."""
    return dataclasses.asdict(check) | {"used": check.used}


def _record(name: str, study: Any, spec: Any, result: Any, checks: list[Check], command: str) -> dict[str, Any]:
    """All that is needed to repeat the run and to judge it."""
    return {
        "study": name,
        "title": (study.__doc__ or "").strip().splitlines()[0],
        "command": command,
        "seed": getattr(spec, "seed", None),
        "parameters": parameters(spec),
        "versions": versions(),
        "machine": f"{platform.system()} {platform.machine()}",
        "claims": judged(study, name, checks),
        "checks": [_checked(check) | {"ok": check.ok} for check in checks],
        "measured": study.measured(result) if hasattr(study, "measured") else {},
    }


def _write(out: Folder, study: Any, result: Any, record: dict[str, Any], movie: bool) -> list[pathlib.Path]:
    """The files, the page last: where it is, everything is."""
    written = [out.place("data.zarr"), out.place("claims.json")]
    attributes = {key: json.dumps(plain(value)) if isinstance(value, dict) else value for key, value in record.items() if key in _NOTED}
    data_tree(result, {key: str(value) for key, value in attributes.items()}).to_zarr(
        written[0], mode="a", consolidated=False, zarr_format=3
    )
    write_json(written[1], record)
    for title, figure in figures(study, result).items():
        for ending in ("png", "pdf"):
            written.append(out.place(f"{title}.{ending}"))
            figure.savefig(written[-1])
    if movie and hasattr(study, "movie"):
        written.append(out.place("movie.mp4"))
        study.movie(result, written[-1])
    images = [file for file in written if file.suffix == ".png"]
    films = [file for file in written if file.suffix in (".mp4", ".gif")]
    written.append(out.place("report.html"))
    write_text(written[-1], page(plain(record), images, films))
    return written


_NOTED = ("study", "title", "command", "seed", "parameters", "versions", "machine", "seconds")


def _finished(out: pathlib.Path) -> Outcome:
    """A run that was finished before, as it was recorded."""
    numbers = ("measured", "expected", "tolerance")
    try:
        record = json.loads((out / "claims.json").read_text())
        checks = [Check(c["name"], *(_float(c[key]) for key in numbers), claim=c["claim"]) for c in record["checks"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{str(out / 'claims.json')!r} is damaged ({type(error).__name__}: {error}); --overwrite begins again") from error
    return Outcome(checks, record, sorted(file for file in out.iterdir() if not file.name.startswith(".")))


def _seconds(clock: pathlib.Path) -> float:
    """How long the run took before it was interrupted; a file without such a number counts as none."""
    try:
        found = float(clock.read_text())
    except (OSError, ValueError):
        return 0.0
    return found if 0 <= found < float("inf") else 0.0


def _float(value: float | None) -> float:
    """A number that was not finite is null in the record."""
    return float("nan") if value is None else value
