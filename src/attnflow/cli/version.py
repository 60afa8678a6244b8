"""`attnflow version`: what is installed, which engine is in use, what is missing and how to get it."""

import json
import pathlib
import platform
import re
import sys
from importlib import metadata
from typing import Any

from attnflow._version import __version__
from attnflow.cli.options import no_more

_CHECKOUT = pathlib.Path(__file__).parents[3]
_ENGINES = {
    "native": "native, in the compiled kernel",
    "pending": "native, once the kernel is compiled",
    "xla": "XLA's tiles, with the same sums to rounding",
}
# What an extra is for, in the order in which they are printed.
_EXTRAS = {"": "attnflow itself", "test": "the tests", "bench": "the benchmarks", "docs": "the site", "lint": "the linters"}


def version_(argv: list[str]) -> int:
    """Print what is installed, the version first; with `--json` for scripts."""
    if argv == ["--json"]:
        print(json.dumps(installed(), indent=2))
        return 0
    no_more("version", argv)
    said = installed()
    kernel, programs = said["kernel"], said["programs"]
    print(f"attnflow {said['attnflow']}")
    print(f"Python {said['python']}, jax {said['jax']}, jaxlib {said['jaxlib']}")
    print(f"compiled kernel: {'on, ' + kernel['file'] if kernel['on'] else 'off, ' + kernel['why']}")
    print(f"large softmax sums: {_ENGINES[said['engine']]}")
    kept = f"in {programs['folder']} by the command line and, after af.keep_compiled(), by Python"
    print(f"compiled programs: {kept if programs['folder'] else 'not kept, ' + programs['why']}")
    for extra, packages in said["missing"].items():
        print(f"missing for {_EXTRAS.get(extra, extra)}: {', '.join(packages)}; run {how_to_install(extra)}")
    return 0


def installed() -> dict[str, Any]:
    """The same as a record. Nothing is compiled or written for it."""
    import jax

    from attnflow._compiled import cache_folder
    from attnflow.sums import native

    kernel = native.status()
    own = getattr(jax.config, "jax_compilation_cache_dir", None)
    why = None if own else native.build.unwritable()
    return {
        "attnflow": __version__,
        "python": platform.python_version(),
        "jax": metadata.version("jax"),
        "jaxlib": metadata.version("jaxlib"),
        "kernel": {"on": kernel.on, "file": str(kernel.file) if kernel.file else None, "why": kernel.why or None},
        "engine": "native" if kernel.on else "pending" if kernel.pending else "xla",
        "programs": {"folder": None if why else str(own or cache_folder()), "why": why},
        "missing": missing(_requirements()),
    }


def missing(requirements: list[str]) -> dict[str, list[str]]:
    """The packages that are not here, by the extra that asks for them, of requirements such as `torch>=2.4; extra == 'test'`."""
    found: dict[str, list[str]] = {}
    for line in requirements:
        needed, _, marker = line.partition(";")
        name = re.split(r"[^\w.-]", needed.strip())[0]
        extra = re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", marker)
        # The extra dev is all the others.
        group = extra[1] if extra else ""
        if group != "dev" and name != "attnflow" and not _is_here(name):
            found.setdefault(group, []).append(name)
    return {extra: found[extra] for extra in sorted(found, key=lambda extra: [*_EXTRAS, extra].index(extra))}


def how_to_install(extra: str) -> str:
    """The command, in a checkout or for the package."""
    wanted = f"[{extra}]" if extra else ""
    if (_CHECKOUT / "constraints.txt").is_file():
        return f'cd {_CHECKOUT}; {sys.executable} -m pip install --constraint constraints.txt --editable ".{wanted}"'
    return f'{sys.executable} -m pip install "attnflow{wanted}"'


def _requirements() -> list[str]:
    try:
        return metadata.requires("attnflow") or []
    except metadata.PackageNotFoundError:
        # A source tree on the path that was not installed.
        return []


def _is_here(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
