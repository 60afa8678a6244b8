"""One file a published figure or claim.

A study is a module of this folder whose docstring begins with its claim and citation, with these members:

- `CLAIMS`: what of the literature it takes up, a dictionary from short keys to `Claim`s; the ledger has them as `study/key`.
- `Spec`: a frozen dataclass of parameters, the source's own as defaults, checked when it is made (`ValueError`); a study with random
  numbers has a `seed`. `FAST`: a spec that takes seconds and at which all checks hold.
- `run(spec, progress) -> result`: the computation, in `parts`; `ValueError` if what it is given turns out to make no sense. The result is
  a dataclass of arrays, of which `dataset` makes the file.
- `checks(result) -> list[Check]`: what must hold, each known from elsewhere than the code that it checks, under the key of its claim.
- `figure(result)`, or `figures(result)`: a dictionary from names to figures.
- `movie(result, file)`, optional: writes an mp4 or gif.
- `measured(result)`, optional: a dictionary of plain numbers for the record.
"""

import importlib
import pkgutil
from types import ModuleType
from typing import Any

from attnflow.studies.tools.check import BadInput as BadInput
from attnflow.studies.tools.check import Check as Check
from attnflow.studies.tools.check import Claim as Claim


def studies() -> dict[str, ModuleType]:
    """Every study by name."""
    modules = {info.name: importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)}
    return {name: module for name, module in sorted(modules.items()) if all(hasattr(module, part) for part in ("Spec", "run", "checks"))}


def figures(study: Any, result: Any) -> dict[str, Any]:
    """The figures of a study by name; a single one is named `figure`."""
    return study.figures(result) if hasattr(study, "figures") else {"figure": study.figure(result)}
