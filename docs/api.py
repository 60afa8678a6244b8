"""The pages of the API reference, written from the public names, their signatures and docstrings before each build."""

import ast
import dataclasses
import functools
import importlib
import inspect
import itertools
import pathlib
import shutil
from typing import Any

import attnflow as af
from attnflow.cli.main import HELP
from attnflow.simulate import EXAMPLE
from attnflow.studies import studies

TITLES = {
    "spaces": "Spaces",
    "measures": "Measures",
    "attention": "Laws",
    "sums": "Sums, logits and masks",
    "fields": "Other fields",
    "flow": "Time",
    "equilibria": "Equilibria",
    "sweeps": "Sweeps",
    "transport": "Transport",
    "observe": "Observables",
    "theory": "Theory",
    "plot": "Figures",
    "studies": "Parts of a study",
}
# What public functions return, and what a study is made of: not in `af`, but met by users.
MORE = {
    "transport": (
        *("attnflow.transport.coupling.TokenBridge", "attnflow.transport.coupling.GaussianBridge"),
        "attnflow.transport.choose.Choice",
    ),
    "studies": (
        *("attnflow.studies.Claim", "attnflow.studies.Check", "attnflow.studies.BadInput", "attnflow.studies.studies"),
        *("attnflow.studies.Study", "attnflow.studies.Experiment", "attnflow.studies.titles"),
        *("attnflow.studies.tools.constraints.Checked", "attnflow.studies.tools.constraints.Rule"),
        *("attnflow.studies.figures", "attnflow.studies.tools.parts.parts", "attnflow.studies.tools.parts.kept"),
        "attnflow.studies.tools.data.Of",
    ),
}


def write(folder: pathlib.Path) -> None:
    """All pages, in a folder that is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for room, title in TITLES.items():
        items = entries(room)
        intro = inspect.getdoc(importlib.import_module(f"attnflow.{room}")) or ""
        text = [f"# {title}", intro, *(described(name, it, 4) for name, it in items.items())]
        (folder / f"{room}.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    (folder / "catalogue.md").write_text(catalogue(), encoding="utf-8")
    (folder / "example.toml").write_text(EXAMPLE, encoding="utf-8")
    (folder / "help.txt").write_text(HELP + "\n", encoding="utf-8")
    index = ["# API reference", "`import attnflow as af`. One page a room of the house; names are loaded when they are first used."]
    index += ["```{toctree}", *TITLES, "catalogue", "```"]
    (folder / "index.md").write_text("\n\n".join(index[:2]) + "\n\n" + "\n".join(index[2:]) + "\n", encoding="utf-8")


def entries(room: str) -> dict[str, Any]:
    """What a page describes, by the name under which users have it: functions, then classes."""
    found = {}
    public = {name: getattr(af, name) for name in sorted(af.__all__, key=lambda name: (name[0].isupper(), name))}
    for name, it in public.items():
        if not inspect.ismodule(it) and _room(it.__module__) == room:
            found[f"af.{name}"] = it
    for module, made in public.items():
        if not inspect.ismodule(made) or _room(made.__name__) != room:
            continue
        for name, it in vars(made).items():
            own = not name.startswith("_") and (inspect.isfunction(it) or inspect.isclass(it)) and it.__module__.startswith(made.__name__)
            if own and f"af.{name}" not in found:
                found[f"af.{module}.{name}"] = it
    for path in MORE.get(room, ()):
        module, name = path.rsplit(".", 1)
        found[path] = getattr(importlib.import_module(module), name)
    return found


def _room(module: str) -> str:
    """The folder of the house that a module stands in."""
    return module.removeprefix("attnflow.").split(".")[0]


def catalogue() -> str:
    """Every study: its docstring, its claims, its parameters."""
    text = ["# The studies", "`attnflow run STUDY --help` says the same. With `--fast` parameters are those of the column fast."]
    for name, study in studies().items():
        title, _, rest = (inspect.getdoc(study) or "").partition("\n")
        text += [f"## {name}", f"**{title}**", rest.strip()]
        text += ["\n".join(f"- *{claim.status}*: {claim.statement} ({claim.source})" for claim in getattr(study, "CLAIMS", {}).values())]
        told, fast = _attribute_docs(study.Spec), getattr(study, "FAST", study.Spec())
        rows = [
            f"| `{f.name}` | `{f.default!r}` | `{getattr(fast, f.name)!r}` | {told.get(f.name, '')} |"
            for f in dataclasses.fields(study.Spec)
        ]
        if rows:
            text += ["\n".join(["| parameter | default | fast | |", "|---|---|---|---|", *rows])]
    return "\n\n".join(part for part in text if part) + "\n"


def _attribute_docs(cls: type) -> dict[str, str]:
    """The strings below the fields of a dataclass, which only its source has."""
    body = ast.parse(inspect.getsource(cls)).body[0].body  # type: ignore[attr-defined]
    pairs = ((field, told) for field, told in itertools.pairwise(body) if isinstance(field, ast.AnnAssign) and isinstance(told, ast.Expr))
    return {field.target.id: " ".join(told.value.value.split()).replace("|", "\\|") for field, told in pairs}  # type: ignore[union-attr]


def described(name: str, it: Any, colons: int) -> str:
    """One entry as a directive of Sphinx, with the members of a class inside."""
    kind = "class" if inspect.isclass(it) else "function"
    body = [inspect.getdoc(it) or ""]
    if inspect.isclass(it):
        body += [member(name, key, it) for key in vars(it) if not key.startswith("_") and _told(it, key)]
    return directive(f"py:{kind}", f"{name}{signature(it)}", "\n\n".join(body), colons)


def member(owner: str, key: str, cls: type) -> str:
    kept = inspect.getattr_static(cls, key)
    plain = isinstance(kept, property | functools.cached_property)
    told = inspect.getdoc(kept if plain else getattr(cls, key)) or ""
    if plain:
        return directive("py:property", f"{owner}.{key}", told or _inherited(cls, key), 3)
    options = ":classmethod:\n" if isinstance(kept, classmethod) else ":staticmethod:\n" if isinstance(kept, staticmethod) else ""
    # Through the class, `self` is the first argument unless the method is bound to the class.
    bound = isinstance(kept, classmethod | staticmethod)
    return directive("py:method", f"{owner}.{key}{signature(getattr(cls, key), skip=0 if bound else 1)}", told, 3, options)


def directive(kind: str, head: str, body: str, colons: int, options: str = "") -> str:
    return f"{':' * colons}{{{kind}}} {head}\n{options}\n{body}\n{':' * colons}"


def signature(it: Any, skip: int = 0) -> str:
    """Names and defaults; docstrings say what is meant."""
    try:
        parameters = list(inspect.signature(it).parameters.values())[skip:]
    except (TypeError, ValueError):
        return "()"
    bare = [p.replace(annotation=inspect.Parameter.empty, default=_Shown.of(p.default)) for p in parameters]
    return str(inspect.Signature(bare))


class _Shown:
    """A default as it would be typed."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text

    @classmethod
    def of(cls, value: Any) -> Any:
        if value is inspect.Parameter.empty or isinstance(value, str | int | float | tuple | list | dict | None):
            return value
        return cls(getattr(value, "__name__", "..."))


def _told(cls: type, key: str) -> bool:
    """Whether a member has something to say."""
    kept = inspect.getattr_static(cls, key)
    if isinstance(kept, property | functools.cached_property):
        return bool(inspect.getdoc(kept) or _inherited(cls, key))
    return callable(getattr(cls, key, None)) and not inspect.isclass(kept) and bool(inspect.getdoc(getattr(cls, key)))


def _inherited(cls: type, key: str) -> str:
    """The docstring of a property as a class above has it."""
    return next((inspect.getdoc(vars(base)[key]) or "" for base in cls.__mro__[1:] if key in vars(base)), "")


if __name__ == "__main__":
    write(pathlib.Path(__file__).parent / "api")
