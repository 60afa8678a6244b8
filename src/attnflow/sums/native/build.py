"""The native kernels are compiled once for this machine, by whatever C++ compiler there is, into a folder of the user's cache.

An installed package holds the source alone: its own folder may be read-only, and code for one processor is of no use on another. The name
of a compiled file, `native-KEY-DIGEST.so`, has two parts. KEY tells source, jaxlib and processor apart, so that a cache which several
machines or versions share holds a file for each. DIGEST is that of the file's own bytes, so that half a file is never loaded. A file takes
its name only when it is whole: of two processes that compile at the same time, each makes a good file.
"""

import contextlib
import functools
import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import jaxlib.version

from attnflow._compiled import cache_folder

HERE = pathlib.Path(__file__).parent
SOURCES = (HERE / "softmax.cpp", HERE / "planar.cpp")
# Fused multiply-adds, which gcc makes by itself, roots that need not set errno, and no further license: the exponential relies on the order
# of its sums.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-ffp-contract=fast", "-fno-math-errno")
COMMAND = f"{sys.executable or 'python'} -m attnflow.sums.native"
NO_COMPILER = f"there is no C++ compiler (CXX, c++, g++, clang++); install one, such as Debian's g++, and run {COMMAND}"


class NotBuilt(Exception):
    """Why there is no kernel, and the cure, in one line."""


def build() -> pathlib.Path:
    """Compile the kernels and return their file. A `NotBuilt` if there is no compiler, if it fails, or if there is nowhere to write."""
    cxx, place = compiler(), folder()
    if cxx is None:
        raise NotBuilt(NO_COMPILER)
    try:
        place.mkdir(parents=True, exist_ok=True)
        # In the same folder, so that the move at the end is one step.
        with tempfile.TemporaryDirectory(prefix="building-", dir=place) as scratch:
            made = _compiled(cxx, pathlib.Path(scratch))
            made.replace(target := place / f"native-{key()}-{_digest(made)}.so")
        _note().unlink(missing_ok=True)
    except OSError as error:
        raise NotBuilt(_refused(place, error.strerror or str(error))) from None
    return target


def built() -> list[pathlib.Path]:
    """The whole files of this very source for this very processor."""
    try:
        files = sorted(folder().glob(f"native-{key()}-*.so"))
        return [file for file in files if file.stem.rpartition("-")[2] == _digest(file)]
    except (OSError, NotBuilt):
        return []


def give_up(why: str) -> NotBuilt:
    """Keep for later processes that this compiler is of no use, so that they need not try again; the error to raise."""
    # Where nothing can be kept they do try again.
    with contextlib.suppress(OSError, NotBuilt):
        _note().write_text(f"{compiler()}\n{why}\n")
    return NotBuilt(why)


def compiler() -> str | None:
    """The C++ compiler: `$CXX`, or the first of c++, g++, clang++ that is there."""
    return next((found for cxx in (os.environ.get("CXX"), "c++", "g++", "clang++") if cxx and (found := shutil.which(cxx))), None)


def in_vain() -> str | None:
    """Why it is no use to try, if so."""
    return NO_COMPILER if compiler() is None else _given_up()


def unwritable() -> str | None:
    """Why a file could not be kept, as far as can be seen without writing one."""
    try:
        place = folder()
    except NotBuilt as error:
        return str(error)
    there = next(path for path in (place, *place.parents) if path.exists())
    if not there.is_dir():
        return _refused(place, f"{there} is not a folder")
    return None if os.access(there, os.W_OK | os.X_OK) else _refused(place, "no permission")


def later() -> str:
    """When all is well but nothing was needed yet."""
    return f"not compiled yet; the first run that needs it does so with {compiler()}, or now: {COMMAND}"


def folder() -> pathlib.Path:
    """Where compiled kernels are: `native` in the folder of the cache."""
    try:
        return cache_folder() / "native"
    except RuntimeError:
        raise NotBuilt("there is no home folder for a cache; set XDG_CACHE_HOME to a folder that can be written") from None


@functools.cache
def key() -> str:
    """What tells source, jaxlib and processor apart, so that a stale or foreign file is never loaded."""
    code = [file.read_bytes() for file in (*SOURCES, HERE / "simd.h")]
    parts = (*code, " ".join(FLAGS).encode(), jaxlib.version.__version__.encode(), _processor().encode())
    return hashlib.sha256(b"|".join(parts)).hexdigest()[:16]


def _given_up() -> str | None:
    """Why this compiler was of no use earlier, if it was tried."""
    try:
        cxx, why = _note().read_text().splitlines()
    except (OSError, ValueError, NotBuilt):
        return None
    return why if cxx == compiler() else None


def _refused(place: pathlib.Path, why: str) -> str:
    return f"{place} cannot be written ({why}); set XDG_CACHE_HOME to a folder that can"


def _note() -> pathlib.Path:
    return folder() / f"native-{key()}.txt"


def _digest(file: pathlib.Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _processor() -> str:
    """What the processor can do."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    # x86 says flags, ARM says Features.
    return f"{platform.system()} {platform.machine()} " + next((x for x in lines if x.lower().startswith(("flags", "features"))), "")


def _compiled(cxx: str, scratch: pathlib.Path) -> pathlib.Path:
    """The sources side by side, then one library of them."""
    library = scratch / "kernel.so"
    objects = [str(scratch / f"{source.stem}.o") for source in SOURCES]
    command = [cxx, *FLAGS, f"-isystem{jax.ffi.include_dir()}", "-c"]
    # Not every compiler knows the processor it runs on.
    for tuned in (["-march=native"], []):
        calls = [[*command, *tuned, str(source), "-o", made] for source, made in zip(SOURCES, objects)]
        with ThreadPoolExecutor(len(calls)) as pool:
            said = list(pool.map(_run, calls))
        if not any(said):
            break
    else:
        raise give_up(_complaint(cxx, said))
    if complaint := _run([cxx, "-shared", *objects, "-o", str(library)]):
        raise give_up(_complaint(cxx, [complaint]))
    if not library.is_file():
        raise give_up(_complaint(cxx, []))
    return library


def _run(command: Sequence[str]) -> str:
    """What a command that fails has to say."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    return (done.stderr.strip() or "nothing") if done.returncode else ""


def _complaint(cxx: str, said: Sequence[str]) -> str:
    lines = [line for text in said for line in text.splitlines()] or ["nothing"]
    first = next((line for line in lines if "error" in line), lines[0])
    return f"{cxx} could not compile it, and said: {first}; mend it, or set CXX to another compiler, and run {COMMAND}"
