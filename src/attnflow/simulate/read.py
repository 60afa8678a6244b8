"""A file becomes a `Spec`, or one line that says which key is wrong, what was got and the cure."""

import math
import pathlib
import tomllib
from typing import Any

import msgspec

from attnflow.simulate.law import Law
from attnflow.simulate.pictures import PICTURES
from attnflow.simulate.spec import Output, Spec, Time
from attnflow.simulate.words import listed, wanted
from attnflow.studies import BadInput

_CURE = "attnflow spec prints an example with every key"
_TABLES = ("measure", "law", "time", "output")


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
        _finite(values, "")
        spec = _spec(values if seed is None else values | {"seed": seed}).resolved(file.parent)
        _used(values, spec)
        return spec
    except ValueError as error:
        raise BadInput(f"{file.name}: {error}") from error


def _finite(value: Any, at: str) -> None:
    """TOML has nan and inf; nothing here may be either."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{at} must be finite, got {value}")
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        _finite(item, f"{at}[{key}]" if isinstance(value, list) else f"{at}.{key}".lstrip("."))


def _spec(values: dict[str, Any]) -> Spec:
    """Table by table and key by key, so that each complaint names its key."""
    if unknown := [key for key in values if key not in (*_TABLES, "seed")]:
        raise ValueError(f"a file has no key or table {unknown[0]!r}, it may have {listed([*_TABLES, 'seed'], 'and')}; {_CURE}")
    if missing := [key for key in ("measure", "law", "time") if key not in values]:
        raise ValueError(f"the table [{missing[0]}] is missing; {_CURE}")
    measure, law = values["measure"], values["law"]
    if not isinstance(measure, dict):
        raise ValueError(f"measure must be a table, got {_short(measure)}; {_CURE}")
    if "picture" not in measure:
        raise ValueError(f"measure.picture is missing, it must be {listed(PICTURES)}; {_CURE}")
    if not isinstance(picture := measure["picture"], str) or picture not in PICTURES:
        raise ValueError(f"measure.picture must be {listed(PICTURES)}, got {_short(picture)}")
    given = {key: value for key, value in measure.items() if key != "picture"}
    heads = law if isinstance(law, list) else [law]
    if not heads:
        raise ValueError("law must be a table or several, got none; give at least one [[law]]")
    seed = {} if "seed" not in values else {"seed": _value("seed", values["seed"], Spec, "seed")}
    return Spec(
        measure=_table(given, PICTURES[picture], "measure", ("picture",)),
        law=[_table(head, Law, f"law[{i}]" if isinstance(law, list) else "law") for i, head in enumerate(heads)],
        time=_table(values["time"], Time, "time"),
        output=_table(values.get("output", {}), Output, "output"),
        **seed,
    )


def _table(values: Any, kind: Any, at: str, more: tuple[str, ...] = ()) -> Any:
    """A table of the file."""
    if not isinstance(values, dict):
        raise ValueError(f"{at} must be a table, got {_short(values)}; {_CURE}")
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    if unknown := [key for key in values if key not in fields]:
        of = "" if not more else f" of the picture {kind.__struct_config__.tag!r}"
        raise ValueError(f"{at} has no key {unknown[0]!r}, the keys{of} are {listed([*more, *fields], 'and')}")
    if missing := [name for name, field in fields.items() if field.required and name not in values]:
        raise ValueError(f"{at}.{missing[0]} is missing, it must be {wanted(fields[missing[0]].type)}; {_CURE}")
    return kind(**{key: _value(f"{at}.{key}", value, kind, key) for key, value in values.items()})


def _value(at: str, value: Any, kind: Any, key: str) -> Any:
    """One value, of the type and range of its key."""
    field = next(field for field in msgspec.structs.fields(kind) if field.name == key)
    try:
        return msgspec.convert(value, field.type)
    except (msgspec.ValidationError, OverflowError):
        raise ValueError(f"{at} must be {wanted(field.type)}, got {_short(value)}") from None


def _short(value: Any) -> str:
    """What was got, as TOML writes it, cut if it is long."""
    plain = isinstance(value, str | int | float | list) and not isinstance(value, bool)
    said = repr(value) if plain else "a table" if isinstance(value, dict) else str(value).lower()
    return said if len(said) <= 60 else f"{said[:57]}..."


def _used(values: dict[str, Any], spec: Spec) -> None:
    """Raise if a file has a key that nothing would read: it asks for something that would not happen."""
    several = isinstance(values["law"], list)
    given, idle = {f"law[{i}]": head for i, head in enumerate(values["law"])} if several else {}, spec.unused()
    for i, head in enumerate(spec.heads):
        at = f"law[{i}]" if several else "law"
        idle |= {f"{at}.{key}": why for key, why in head.unused(i == 0 and "energy" in spec.output.observe).items()}
    for place, why in idle.items():
        table, key = place.split(".")
        if key in (values | given).get(table, {}):
            raise ValueError(f"{place} is {why}; leave it out")
