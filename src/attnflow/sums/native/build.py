"""The native kernels are compiled once, for this machine, by whatever C++ compiler there is."""

import functools
import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile

import jax
import jaxlib.version

HERE = pathlib.Path(__file__).parent
SOURCES = (HERE / "softmax.cpp", HERE / "planar.cpp")
# Fused multiply-adds, which gcc makes by itself, roots that need not set errno, and no further licence: the exponential relies on the order
# of its sums.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-ffp-contract=fast", "-fno-math-errno")


def build(folder: pathlib.Path | str | None = None) -> pathlib.Path | None:
    """Compile the kernels and return their file; `None` if there is no C++ compiler. A `RuntimeError` if it fails.

    **Arguments:** `folder` is where to put it: next to the source if not given, or in the user's cache if that cannot be written.
    """
    cxx = compiler()
    if cxx is None:
        return None
    folders = [pathlib.Path(folder)] if folder is not None else places()
    for place in folders:
        target = place / name()
        try:
            place.mkdir(parents=True, exist_ok=True)
            # Under another name first: a process that looks meanwhile must not find half a file.
            with tempfile.TemporaryDirectory(dir=place) as scratch:
                _compile(cxx, made := pathlib.Path(scratch) / target.name)
                made.replace(target)
        except PermissionError:
            continue
        for old in place.glob("native-*.so"):
            if old != target and folder is None:
                old.unlink(missing_ok=True)
        return target
    raise PermissionError(f"none of {', '.join(map(str, folders))} can be written; set XDG_CACHE_HOME to a folder that can")


def built() -> pathlib.Path | None:
    """The kernel's file, if this very source was compiled for this very machine."""
    return next((place / name() for place in places() if (place / name()).exists()), None)


def compiler() -> str | None:
    """The C++ compiler: `$CXX`, or the first of c++, g++, clang++ that is there."""
    return next((found for cxx in (os.environ.get("CXX"), "c++", "g++", "clang++") if cxx and (found := shutil.which(cxx))), None)


def places() -> list[pathlib.Path]:
    """Where the kernel's file may be, the best place first."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    return [HERE, cache / "attnflow"]


@functools.cache
def name() -> str:
    """A file name that tells source, jaxlib and processor apart, so that a stale or foreign file is never loaded."""
    code = [file.read_bytes() for file in (*SOURCES, HERE / "simd.h")]
    parts = (*code, " ".join(FLAGS).encode(), jaxlib.version.__version__.encode(), _processor().encode())
    return f"native-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}.so"


def _processor() -> str:
    """What the processor can do."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    # x86 says flags, ARM says Features.
    return f"{platform.system()} {platform.machine()} " + next((x for x in lines if x.lower().startswith(("flags", "features"))), "")


def _compile(cxx: str, target: pathlib.Path) -> None:
    command = [cxx, *FLAGS, f"-isystem{jax.ffi.include_dir()}", *map(str, SOURCES), "-o", str(target)]
    tuned = subprocess.run([*command, "-march=native"], capture_output=True, text=True)
    # Not every compiler knows the processor it runs on.
    if tuned.returncode and subprocess.run(command, capture_output=True).returncode:
        said = next((line for line in tuned.stderr.splitlines() if "error" in line), tuned.stderr.strip() or "nothing")
        raise RuntimeError(f"{cxx} could not compile {HERE.name}, set CXX to another compiler; it said: {said}")
