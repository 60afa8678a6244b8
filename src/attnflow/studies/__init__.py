"""One file a published figure or claim.

A study is a module of this folder whose docstring begins with its claim and citation, with these members:

- `Spec`: a frozen dataclass of parameters, checked when it is made (`ValueError`); a study with random numbers has a `seed`.
- `run(spec, progress) -> result`: the computation; `ValueError` if what it is given turns out to make no sense.
- `figure(result)`, or `figures(result)`: a dictionary from names to figures.
- `checks(result) -> list[Check]`: what must hold, each known from elsewhere than the code that it checks.
- `measured(result)`, optional: a dictionary of plain numbers for the record.
"""

import importlib
import pkgutil
from types import ModuleType
from typing import Any

from attnflow.studies.check import BadInput as BadInput
from attnflow.studies.check import Check as Check


def studies() -> dict[str, ModuleType]:
    """Every study by name."""
    modules = {info.name: importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)}
    return {name: module for name, module in sorted(modules.items()) if all(hasattr(module, part) for part in ("Spec", "run", "checks"))}


def figures(name: str, study: Any, result: Any) -> dict[str, Any]:
    """The figures of a study by name; a single one is named like the study."""
    return study.figures(result) if hasattr(study, "figures") else {name: study.figure(result)}
