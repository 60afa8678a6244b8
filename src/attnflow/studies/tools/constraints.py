"""Parameters with constraints, declared where they are: in the annotations of a frozen dataclass.

    @dataclasses.dataclass(frozen=True)
    class Spec(Checked):
        n: Annotated[int, Meta(ge=2)] = 128
        beta: Positive = 1.0
        depths: Annotated[tuple[Count, ...], Meta(min_length=3), RISING] = (8, 16, 32)

A range or a length is a `msgspec.Meta`; what it has no word for is a `Rule`; `Meta(description=...)` gives the reason, where it is not
obvious. Numbers are finite. What does not fit is refused in one line, "n must be at least 2, got 1". Relations between fields are left
to `Checked.check`.
"""

import dataclasses
import itertools
import math
import types
import typing
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta


@dataclasses.dataclass(frozen=True)
class Rule:
    """What a value must be, in words, and whether it is."""

    words: str
    holds: Callable[[Any], bool]


RISING = Rule("rising", lambda values: all(a < b for a, b in itertools.pairwise(values)))
FALLING = Rule("falling", lambda values: all(a > b for a, b in itertools.pairwise(values)))
DIFFERENT = Rule("all different", lambda values: len(set(values)) == len(values))
DOUBLING = Rule("each twice the one before", lambda values: all(b == 2 * a for a, b in itertools.pairwise(values)))
GEOMETRIC = Rule("in geometric progression", lambda values: np.allclose(np.diff(np.log(values), 2), 0, atol=1e-5))


def each_of(*allowed: object) -> Rule:
    """Every item is one of these."""
    return Rule(f"each {listed(allowed)}", lambda values: set(values) <= set(allowed))


Count = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0)]
Seed = Annotated[int, Meta(ge=0, lt=2**32)]


class Checked:
    """A base of frozen dataclasses: when an object is made its fields are converted to their types and checked; `ValueError` if one does
    not fit."""

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self), include_extras=True)
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            object.__setattr__(self, field.name, converted(field.name, getattr(self, field.name), hints[field.name]))
        self.check()

    def check(self) -> None:
        """Raise `ValueError` unless the fields, each of which is as it must be, fit together."""


def converted(name: str, value: Any, hint: Any) -> Any:
    """The value as its annotation has it; `ValueError` if it is of another type, out of range, not finite or against a rule."""
    value = _plain(value)
    try:
        found = msgspec.convert(value, hint)
        fits = _finite(found) and all(rule.holds(found) for rule in _marks(hint, Rule))
    except (msgspec.ValidationError, OverflowError):
        found, fits = None, False
    if not fits:
        raise ValueError(f"{name} must {_demand(value, hint)}, got {shown(value)}")
    return found


def wanted(hint: Any) -> str:
    """What a value of a type is: "a whole number of at least 1"."""
    kind = _base(hint)
    if typing.get_origin(kind) is Literal:
        return listed(typing.get_args(kind))
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        # None is an option that is left out.
        parts = [part for part in typing.get_args(kind) if part is not type(None)]
        return listed(word for part in parts for word in (typing.get_args(part) if typing.get_origin(part) is Literal else [wanted(part)]))
    if typing.get_origin(kind) in (tuple, list):
        return ", ".join([_several(hint, kind), *(rule.words for rule in _marks(hint, Rule))])
    if kind in (int, float):
        return f"a {_number(hint)}"
    return {bool: "true or false", str: "text"}.get(kind, getattr(kind, "__name__", str(kind)))


def listed(words: Iterable[object], last: str = "or") -> str:
    """Words with commas, and "or" before the last."""
    *first, end = map(str, words)
    return f"{', '.join(first)} {last} {end}" if first else end


def shown(value: Any) -> str:
    """What was got, as TOML writes it, cut if it is long."""
    value = list(value) if isinstance(value, tuple) else value
    literal = isinstance(value, str | int | float | list) and not isinstance(value, bool)
    said = repr(value) if literal else "a table" if isinstance(value, dict) else str(value).lower()
    return said if len(said) <= 60 else f"{said[:57]}..."


def _plain(value: Any) -> Any:
    """Numbers of NumPy as those of Python."""
    if isinstance(value, tuple | list):
        return type(value)(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


def _finite(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _base(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def _meta(hint: Any, name: str) -> Any:
    """What the `Meta` of an annotation say under a name, if anything."""
    return next((found for meta in _marks(hint, Meta) if (found := getattr(meta, name)) is not None), None)


def _marks(hint: Any, kind: type) -> list[Any]:
    marks = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
    return [mark for mark in marks if isinstance(mark, kind)]


def _demand(value: Any, hint: Any) -> str:
    """What follows "must". A number of the right type hears of its range alone."""
    kind, whole = _base(hint), isinstance(value, int) and not isinstance(value, bool)
    if (kind is int and whole) or (kind is float and (whole or isinstance(value, float))):
        words = [f"a {_noun(hint)}"] * bool(_meta(hint, "multiple_of")) + [_range(hint)] * bool(_range(hint))
        bounded = _meta(hint, "lt") is not None or _meta(hint, "le") is not None
        said = " and ".join([*words, *(rule.words for rule in _marks(hint, Rule))] + ["finite"] * (kind is float and not bounded))
        said = f"lie {said}" if said.startswith("between") else f"be {said}"
    else:
        said = f"be {wanted(hint)}"
    reason = _meta(hint, "description")
    return f"{said}, {reason}" if reason else said


def _several(hint: Any, kind: Any) -> str:
    """A tuple or a list in words."""
    item = typing.get_args(kind)[0]
    if typing.get_origin(item) is Literal:
        return f"a list with any of {wanted(item)}"
    if typing.get_origin(_base(item)) is list:
        return "a matrix [[...], ...]"
    least = _meta(hint, "min_length") or 0
    words = {0: "", 1: "one or more ", 2: "at least two ", 3: "at least three ", 4: "at least four "}
    return "a list of " * (typing.get_origin(kind) is list) + words.get(least, f"at least {least} ") + _number(item, "s")


def _number(hint: Any, plural: str = "") -> str:
    """A number in words, without an article: "positive number", "whole number of at least 1"."""
    bounds = _range(hint)
    if bounds == "positive":
        return f"positive {_noun(hint, plural)}"
    return f"{_noun(hint, plural)} {'of ' if bounds.startswith('at ') else ''}{bounds}".rstrip()


def _noun(hint: Any, plural: str = "") -> str:
    if divisor := _meta(hint, "multiple_of"):
        return f"multiple{plural} of {divisor}"
    return {int: "whole number", str: "name"}.get(_base(hint), "number") + plural


def _range(hint: Any) -> str:
    """The bounds of a number in words; empty if there are none."""
    bounds = {"at least": _meta(hint, "ge"), "above": _meta(hint, "gt"), "at most": _meta(hint, "le"), "below": _meta(hint, "lt")}
    said = {word: f"{bound:g}" if bound < 1e6 else str(bound) for word, bound in bounds.items() if bound is not None}
    match list(said):
        case ["above", _]:
            return f"between {' and '.join(said.values())}"
        case ["at least", "at most"]:
            return f"from {' to '.join(said.values())}"
        case ["above"] if bounds["above"] == 0:
            return "positive"
    return " and ".join(f"{word} {bound}" for word, bound in said.items())
