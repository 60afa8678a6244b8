"""The native kernels are compiled once for this machine, by the C++ compiler that is installed, into a folder of the user's cache.

An installed package holds the source alone: its own folder may be read-only, and code for one processor may not run on another. The name of
a compiled file is `native-KEY-DIGEST.so`. KEY identifies source, jaxlib and processor, so that a cache which several machines or versions
share holds a file for each. DIGEST is that of the bytes of the file, so that half a file is never loaded. A file gets its name only when it
is complete: two processes that compile at the same time both make a good file.
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
# Fused multiply-adds, which gcc makes by default, and square roots that do not set errno. Nothing that reorders sums: the exponential
# relies on their order.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-ffp-contract=fast", "-fno-math-errno")
COMMAND = f"{sys.executable or 'python'} -m attnflow.sums.native"
NO_COMPILER = f"there is no C++ compiler (CXX, c++, g++, clang++); install one, such as Debian's g++, and run {COMMAND}"


class NotBuilt(Exception):
    """In one line why there is no kernel, and the cure."""


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
    """The complete files of this source for this processor."""
    try:
        files = sorted(folder().glob(f"native-{key()}-*.so"))
        return [file for file in files if file.stem.rpartition("-")[2] == _digest(file)]
    except (OSError, NotBuilt):
        return []


def give_up(why: str) -> NotBuilt:
    """Note for later processes that this compiler fails, so that they do not try again. Returns the error to raise."""
    # Where nothing can be written they do try again.
    with contextlib.suppress(OSError, NotBuilt):
        _note().write_text(f"{compiler()}\n{why}\n")
    return NotBuilt(why)


def compiler() -> str | None:
    """The C++ compiler: `$CXX`, or the first of c++, g++, clang++ that is installed."""
    return next((found for cxx in (os.environ.get("CXX"), "c++", "g++", "clang++") if cxx and (found := shutil.which(cxx))), None)


def in_vain() -> str | None:
    """Why it is useless to compile; `None` if it is not."""
    return NO_COMPILER if compiler() is None else _given_up()


def unwritable() -> str | None:
    """Why a file could not be written, as far as is known without writing one; `None` if it could."""
    try:
        place = folder()
    except NotBuilt as error:
        return str(error)
    there = next(path for path in (place, *place.parents) if path.exists())
    if not there.is_dir():
        return _refused(place, f"{there} is not a folder")
    return None if os.access(there, os.W_OK | os.X_OK) else _refused(place, "no permission")


def later() -> str:
    """Why there is no kernel yet, if nothing prevents one."""
    return f"not compiled yet; the first run that needs it does so with {compiler()}, or now: {COMMAND}"


def folder() -> pathlib.Path:
    """The folder of compiled kernels: `native` in that of the cache."""
    try:
        return cache_folder() / "native"
    except RuntimeError:
        raise NotBuilt("there is no home folder for a cache; set XDG_CACHE_HOME to a folder that can be written") from None


@functools.cache
def key() -> str:
    """A digest of source, jaxlib and processor, so that an outdated or foreign file is never loaded."""
    code = [file.read_bytes() for file in (*SOURCES, HERE / "simd.h")]
    parts = (*code, " ".join(FLAGS).encode(), jaxlib.version.__version__.encode(), _processor().encode())
    return hashlib.sha256(b"|".join(parts)).hexdigest()[:16]


def _given_up() -> str | None:
    """Why this compiler failed before; `None` if it did not."""
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
    """The processor by its instruction sets."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    # The line is called flags on x86 and Features on ARM.
    return f"{platform.system()} {platform.machine()} " + next((x for x in lines if x.lower().startswith(("flags", "features"))), "")


def _compiled(cxx: str, scratch: pathlib.Path) -> pathlib.Path:
    """Each source compiled, at the same time, then linked to one library."""
    library = scratch / "kernel.so"
    objects = [str(scratch / f"{source.stem}.o") for source in SOURCES]
    command = [cxx, *FLAGS, f"-isystem{jax.ffi.include_dir()}", "-c"]
    # Not every compiler can tune for the processor it runs on.
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
    """The output of a command that fails; empty if it succeeds."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    return (done.stderr.strip() or "nothing") if done.returncode else ""


def _complaint(cxx: str, said: Sequence[str]) -> str:
    lines = [line for text in said for line in text.splitlines()] or ["nothing"]
    first = next((line for line in lines if "error" in line), lines[0])
    return f"{cxx} could not compile it, and said: {first}; mend it, or set CXX to another compiler, and run {COMMAND}"
