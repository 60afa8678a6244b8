"""Claims of the literature, measured: one file per published figure or claim. `Study` says what such a file has."""

import ast
import importlib
import pathlib
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any

from attnflow.studies.tools.check import BadInput as BadInput
from attnflow.studies.tools.check import Check as Check
from attnflow.studies.tools.check import Claim as Claim
from attnflow.studies.tools.study import Experiment as Experiment
from attnflow.studies.tools.study import Study as Study
from attnflow.studies.tools.study import figures as figures


class Studies(Mapping[str, Study[Any, Any]]):
    """The studies by name, sorted. A study is imported when it is looked up."""

    def __init__(self) -> None:
        self._names = sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.ispkg)

    def __getitem__(self, name: str) -> Study[Any, Any]:
        if name not in self._names:
            raise KeyError(name)
        return importlib.import_module(f"{__name__}.{name}")  # type: ignore[return-value]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def studies() -> Mapping[str, Study[Any, Any]]:
    """Every study by name; only those that are looked up are imported."""
    return Studies()


def titles() -> dict[str, str]:
    """The first line of each study's docstring, read from its file: nothing is imported."""
    folder = pathlib.Path(__file__).parent
    texts = {name: (folder / f"{name}.py").read_text(encoding="utf-8") for name in studies()}
    return {name: (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0] for name, text in texts.items()}
