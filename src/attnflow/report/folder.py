"""The folder of a run: new, resumed, or replaced; never shared by two runs, never over files that are not a run's.

run.json       what is run: study, spec, versions; written first; and the files beside it, each noted before it is written
parts/         what is done so far, while it runs
.lock          held while it runs

With `--overwrite` what a run wrote is removed: the files that it noted, and in its folders those with the names of a run. All others stay,
a user's own among them. A link is removed, never what it leads to.
"""

import contextlib
import fcntl
import io
import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from attnflow.report.plain import plain, write_json
from attnflow.studies import BadInput

_MARK = "run.json"
# The lock, and what a kill leaves of a file that was being written.
_OWN = re.compile(r"\.lock|\.[0-9a-f]{32}|\.\w+\.part\.(?:mp4|gif)")
# The names in the folders of a run: of zarr, of parts, of a path on disk and of the drafts of all.
_ZARR = r"(?:.*/)?(?:zarr\.json|c(?:/\d+)*|(?:zarr|c|\d+)\.[0-9a-f]{32}\.partial)"
_DRAFT = r"(?:.*/)?\.[0-9a-f]{32}(?:\.npz|/.*)?"
_FOLDERS = {
    "data.zarr": re.compile(_ZARR),
    "parts": re.compile(rf"[A-Za-z0-9-]+-\d+\.(?:npz|part)|seconds|{_DRAFT}"),
    "path": re.compile(rf"attnflow\.json|status\.json|carry-\d+\.npz|{_ZARR}|{_DRAFT}"),
}
# What was written by a run that noted nothing.
_ALWAYS = ("claims.json", "report.html", "figure.png", "figure.pdf", "movie.mp4")


class Folder:
    """Where a run writes to. `check` refuses a folder that cannot be used, and writes nothing; `open` locks it while the run lasts."""

    def __init__(self, path: pathlib.Path, *, resume: bool = False, overwrite: bool = False):
        if resume and overwrite:
            raise BadInput("--resume goes on with a run and --overwrite replaces it, got both; give one of them")
        self.path: pathlib.Path = path
        self.resume: bool = resume
        self.overwrite: bool = overwrite

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
        for folder in (self.path / name for name in _FOLDERS):
            if folder.is_symlink() and self.resume:
                raise BadInput(f"{str(folder)!r} is a link, and a run writes to its own folder only; take it away")
            if not folder.is_symlink() and (other := next(_others(folder, _FOLDERS[folder.name]), None)) is not None:
                raise BadInput(f"{str(other)!r} was not written by a run, and is where one writes; move it away, or give another --out")
        found = self.begun() if self.resume else {}
        if self.resume and (differ := [key for key in what if found.get(key) != plain(what)[key]]):
            raise BadInput(
                f"{shown} holds another run, with other {_names(found, plain(what), differ)}; give another --out, or --overwrite"
            )

    @contextlib.contextmanager
    def open(self, what: dict[str, Any]) -> Iterator[pathlib.Path]:
        """Lock the folder. If the run is refused later (`BadInput`), what was made for it is removed."""
        self.check(what)
        made = next((folder for folder in (*reversed(self.path.absolute().parents), self.path.absolute()) if not folder.exists()), None)
        self.path.mkdir(parents=True, exist_ok=True)
        with self._lock() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The run before removes its lock file at its end: then this one holds a file that nobody else would find.
                if os.fstat(lock.fileno()).st_ino != (self.path / ".lock").stat().st_ino:
                    raise BlockingIOError
            except (BlockingIOError, FileNotFoundError):
                raise BadInput(f"another run writes to {str(self.path)!r} at this moment; wait for it, or give another --out") from None
            # Another run may have come first.
            self.check(what)
            fresh = not (self.path / _MARK).exists()
            if self.overwrite and not fresh:
                self._clear()
            for item in self.path.iterdir():
                if _OWN.fullmatch(item.name) and item.name != ".lock":
                    item.unlink()
            write_json(self.path / _MARK, what | {"files": [] if fresh or self.overwrite else self._noted()})
            try:
                yield self.path
            except BadInput:
                if fresh:
                    self._clear()
                    for name in (_MARK, ".lock"):
                        (self.path / name).unlink()
                    if made is not None:
                        _remove(made, re.compile(""))
                raise
            (self.path / ".lock").unlink()

    def begun(self) -> dict[str, Any]:
        """What the run in the folder is."""
        try:
            found = json.loads((self.path / _MARK).read_text())
        except ValueError as error:
            raise BadInput(f"{str(self.path / _MARK)!r} is damaged ({error}); --overwrite begins again") from error
        if not isinstance(found, dict):
            raise BadInput(f"{str(self.path / _MARK)!r} is damaged (it is not a table); --overwrite begins again")
        return found

    def place(self, name: str) -> pathlib.Path:
        """Where the run may write a file or a folder of this name: it is noted, and what the run had there is gone. What no run noted is a
        user's own, and is not written over."""
        place = self.path / name
        if name not in _FOLDERS and name not in (noted := self._noted()):
            if place.is_symlink() or place.exists():
                raise BadInput(f"{str(place)!r} is not of this run, which would write over it; move it away, and --resume goes on")
            write_json(self.path / _MARK, self.begun() | {"files": [*noted, name]})
        self.remove(name)
        return place

    def remove(self, name: str) -> None:
        """Remove a file or a folder that the run wrote."""
        _remove(self.path / name, _FOLDERS.get(name, re.compile("")))

    def _noted(self) -> list[str]:
        """The files that the run noted. The list may be a stranger's: just names, nothing that leads out of the folder."""
        try:
            names = self.begun().get("files", _ALWAYS)
        except BadInput:
            names = _ALWAYS
        own = (_MARK, ".lock", *_FOLDERS)
        named = [name for name in (names if isinstance(names, list | tuple) else _ALWAYS) if isinstance(name, str) and name not in own]
        # Of the names "", "." and ".." and of every path the last part is not all.
        return [name for name in named if name and name != ".." and pathlib.PurePath(name).name == name]

    def _clear(self) -> None:
        """Remove what a run wrote, all but its mark and the lock."""
        for name in (*self._noted(), *_FOLDERS):
            self.remove(name)

    def _lock(self) -> io.TextIOWrapper:
        """The lock, open; not through a link, which could lead to any file of the user's."""
        file = self.path / ".lock"
        try:
            return os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666), "w")
        except OSError as error:
            raise BadInput(f"out must be a folder to write to, got {str(self.path)!r}: {str(file)!r} cannot be opened ({error})") from error


def _others(place: pathlib.Path, ours: re.Pattern[str]) -> Iterator[pathlib.Path]:
    """What is in a folder that is not ours: files of other names, and links."""
    for at, folders, files in os.walk(place):
        for item in (pathlib.Path(at, name) for name in (*files, *folders)):
            if item.is_symlink() or (item.is_file() and not ours.fullmatch(item.relative_to(place).as_posix())):
                yield item


def _remove(place: pathlib.Path, ours: re.Pattern[str]) -> None:
    """Remove a file or a link; of a folder the files whose paths in it are ours, and folders that are empty then."""
    if place.is_symlink() or place.is_file():
        place.unlink()
    for at, _, files in os.walk(place, topdown=False):
        folder = pathlib.Path(at)
        for file in (folder / name for name in files):
            if ours.fullmatch(file.relative_to(place).as_posix()):
                file.unlink()
        with contextlib.suppress(OSError):
            folder.rmdir()


def _names(old: dict[str, Any], new: dict[str, Any], keys: list[str]) -> str:
    """What differs, down to the entries of dictionaries."""
    names = []
    for key in keys:
        if isinstance(old.get(key), dict) and isinstance(new[key], dict):
            names += [name for name in new[key] if old[key].get(name) != new[key][name]]
        else:
            names.append(key)
    return ", ".join(names)
