"""The folder of a run: new, taken up again, or replaced; never shared by two runs, never over files that are not a run's.

run.json       what is run: study, spec, versions; written first
parts/         what is done so far, while it runs
.lock          held while it runs
"""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import shutil
from collections.abc import Iterator
from typing import Any

from attnflow.report.plain import plain, write_json
from attnflow.studies import BadInput

_MARK = "run.json"
# The lock, and what a kill leaves of a file that was being written.
_OWN = re.compile(r"\.lock|\.[0-9a-f]{32}|\.\w+\.part\.mp4")


class Folder:
    """Where a run writes to. `check` refuses what cannot be, and writes nothing; `open` takes hold of the folder while the run lasts."""

    def __init__(self, path: pathlib.Path, resume: bool = False, overwrite: bool = False):
        if resume and overwrite:
            raise BadInput("--resume goes on with a run and --overwrite replaces it, got both; give one of them")
        self.path, self.resume, self.overwrite = path, resume, overwrite

    def check(self, what: dict[str, Any]) -> None:
        """Refuse a folder that cannot be written, that holds something else, or that holds a run which this one does not continue."""
        shown = repr(str(self.path))
        place = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
        if not place.is_dir():
            raise BadInput(f"out must be a folder, got {shown}: {str(place)!r} is a file")
        if not os.access(place, os.W_OK):
            raise BadInput(f"out must be a folder to write to, got {shown}: {str(place)!r} is read-only")
        if not self.path.is_dir() or all(_OWN.fullmatch(file.name) for file in self.path.iterdir()):
            return
        if not (self.path / _MARK).is_file():
            raise BadInput(f"out must be a new folder or that of a run, got {shown}, which holds other files")
        if not (self.resume or self.overwrite):
            raise BadInput(f"{shown} holds a run already; --resume goes on with it, --overwrite replaces it, or give another --out")
        if self.resume and (found := self.begun()) != plain(what):
            differ = [key for key in what if found.get(key) != plain(what)[key]]
            raise BadInput(
                f"{shown} holds another run, with other {_names(found, plain(what), differ)}; give another --out, or --overwrite"
            )

    @contextlib.contextmanager
    def open(self, what: dict[str, Any]) -> Iterator[pathlib.Path]:
        """Hold the folder. If the run turns out to be refused (`BadInput`), what was made for it is taken away."""
        self.check(what)
        made = next((folder for folder in (*reversed(self.path.absolute().parents), self.path.absolute()) if not folder.exists()), None)
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The run before takes its lock file away at its end: then this one holds a file that nobody else would find.
                if os.fstat(lock.fileno()).st_ino != (self.path / ".lock").stat().st_ino:
                    raise BlockingIOError
            except (BlockingIOError, FileNotFoundError):
                raise BadInput(f"another run writes to {str(self.path)!r} at this moment; wait for it, or give another --out") from None
            # Another run may have come first.
            self.check(what)
            fresh = not (self.path / _MARK).exists()
            if self.overwrite:
                self._clear()
            for item in self.path.iterdir():
                if _OWN.fullmatch(item.name) and item.name != ".lock":
                    item.unlink()
            write_json(self.path / _MARK, what)
            try:
                yield self.path
            except BadInput:
                if fresh:
                    self._clear()
                    (self.path / ".lock").unlink()
                    if made is not None:
                        shutil.rmtree(made)
                raise
            (self.path / ".lock").unlink()

    def begun(self) -> dict[str, Any]:
        """What the run in the folder is."""
        try:
            return json.loads((self.path / _MARK).read_text())
        except ValueError as error:
            raise BadInput(f"{str(self.path / _MARK)!r} is damaged ({error}); --overwrite begins again") from error

    def _clear(self) -> None:
        for item in self.path.iterdir():
            if item.name != ".lock":
                shutil.rmtree(item) if item.is_dir() and not item.is_symlink() else item.unlink()


def _names(old: dict[str, Any], new: dict[str, Any], keys: list[str]) -> str:
    """What differs, down to the entries of dictionaries."""
    names = []
    for key in keys:
        if isinstance(old.get(key), dict) and isinstance(new[key], dict):
            names += [name for name in new[key] if old[key].get(name) != new[key][name]]
        else:
            names.append(key)
    return ", ".join(names)
