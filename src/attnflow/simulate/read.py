"""A file becomes a `Spec`, or one line that says which key is wrong, what was got and the cure."""

import dataclasses
import pathlib
import tomllib
import typing
from typing import Any, TypeVar

from attnflow.simulate.law import Law
from attnflow.simulate.pictures import PICTURES
from attnflow.simulate.spec import Output, Spec, Time
from attnflow.studies import BadInput
from attnflow.studies.tools.constraints import Seed, converted, listed, shown, wanted

_CURE = "attnflow spec prints an example with every key"
_TABLES = ("measure", "law", "time", "output")

Table = TypeVar("Table")


def read(file: pathlib.Path, seed: int | None = None) -> Spec:
    """The spec in a file, with another seed if one is given; `BadInput` if it makes no sense. `n` and `dim` of tokens from a file are
    those of the file."""
    try:
        text = file.read_bytes().decode()
    except FileNotFoundError:
        raise BadInput(f"there is no file {str(file)!r}; attnflow spec > {file.name} writes an example") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{str(file)!r} cannot be read as text ({error}); {_CURE}") from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{file.name} is not TOML: {error}; {_CURE}") from error
    try:
        spec = _spec(values if seed is None else values | {"seed": seed}).resolved(file.parent)
        _used(values, spec)
        return spec
    except ValueError as error:
        raise BadInput(f"{file.name}: {error}") from error


def _spec(values: dict[str, Any]) -> Spec:
    """The tables of the file, each with its keys."""
    if unknown := [key for key in values if key not in (*_TABLES, "seed")]:
        raise ValueError(f"a file has no key or table {unknown[0]!r}, it may have {listed([*_TABLES, 'seed'], 'and')}; {_CURE}")
    if missing := [key for key in ("measure", "law", "time") if key not in values]:
        raise ValueError(f"the table [{missing[0]}] is missing; {_CURE}")
    measure, law = values["measure"], values["law"]
    if not isinstance(measure, dict):
        raise ValueError(f"measure must be a table, got {shown(measure)}; {_CURE}")
    if "picture" not in measure:
        raise ValueError(f"measure.picture is missing, it must be {listed(PICTURES)}; {_CURE}")
    if not isinstance(picture := measure["picture"], str) or picture not in PICTURES:
        raise ValueError(f"measure.picture must be {listed(PICTURES)}, got {shown(picture)}")
    heads = law if isinstance(law, list) else [law]
    if not heads:
        raise ValueError("law must be a table or several, got none; give at least one [[law]]")
    return Spec(
        measure=_table(measure, PICTURES[picture], "measure"),
        law=tuple(_table(head, Law, f"law[{i}]" if isinstance(law, list) else "law") for i, head in enumerate(heads)),
        time=_table(values["time"], Time, "time"),
        output=_table(values.get("output", {}), Output, "output"),
        seed=converted("seed", values.get("seed", 0), Seed),
    )


def _table(values: Any, kind: type[Table], at: str) -> Table:
    """A table of the file, key by key, so that each complaint names its key."""
    if not isinstance(values, dict):
        raise ValueError(f"{at} must be a table, got {shown(values)}; {_CURE}")
    hints = typing.get_type_hints(kind, include_extras=True)
    fields: dict[str, Any] = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if unknown := [key for key in values if key not in fields]:
        of = f" of the picture {values['picture']!r}" if "picture" in fields else ""
        raise ValueError(f"{at} has no key {unknown[0]!r}, the keys{of} are {listed(fields, 'and')}")
    needed = [key for key, field in fields.items() if field.default is field.default_factory is dataclasses.MISSING]
    if missing := [key for key in needed if key not in values]:
        raise ValueError(f"{at}.{missing[0]} is missing, it must be {wanted(hints[missing[0]])}; {_CURE}")
    return kind(**{key: converted(f"{at}.{key}", value, hints[key]) for key, value in values.items()})


def _used(values: dict[str, Any], spec: Spec) -> None:
    """Raise if a file has a key that nothing would read: it asks for something that would not happen."""
    several = isinstance(values["law"], list)
    given, idle = {f"law[{i}]": head for i, head in enumerate(values["law"])} if several else {}, spec.unused()
    for i, head in enumerate(spec.law):
        at = f"law[{i}]" if several else "law"
        idle |= {f"{at}.{key}": why for key, why in head.unused(i == 0 and "energy" in spec.output.observe).items()}
    for place, why in idle.items():
        table, key = place.split(".")
        if key in (values | given).get(table, {}):
            raise ValueError(f"{place} is {why}; leave it out")
