"""attnflow: self-attention as a flow of probability measures.

The public names are listed in `__init__.pyi`. Each is loaded when it is first used, so that a script imports only what it needs.
"""

import ast
import importlib
import pathlib
from typing import Any

from attnflow._version import __version__ as __version__


def _homes() -> dict[str, str]:
    """The module of every public name."""
    stub = ast.parse(pathlib.Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    lines = (line for line in stub.body if isinstance(line, ast.ImportFrom))
    return {name.name: line.module or "" for line in lines for name in line.names if not name.name.startswith("_")}


_HOMES = _homes()
__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        from attnflow._check import no_attribute

        raise no_attribute("attnflow", name, __all__)
    home = _HOMES[name]
    # Some names are modules, such as `af.plot`, and attributes of their room only once they are imported.
    found = vars(importlib.import_module(home)).get(name) or importlib.import_module(f"{home}.{name}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return ["__version__", *__all__]
