"""Types in words, for those who write a file."""

from collections.abc import Iterable
from typing import Any

from msgspec import inspect


def wanted(kind: Any) -> str:
    """What a value of a type is: "a whole number of at least 1"."""
    return _said(inspect.type_info(kind))


def listed(words: Iterable[Any], last: str = "or") -> str:
    """Words with commas, and "or" before the last."""
    *first, end = map(str, words)
    return f"{', '.join(first)} {last} {end}" if first else end


def _said(info: Any) -> str:
    if isinstance(info, inspect.IntType | inspect.FloatType):
        return f"a {'whole ' * isinstance(info, inspect.IntType)}number{_range(info)}"
    if isinstance(info, inspect.LiteralType):
        return listed(info.values)
    if isinstance(info, inspect.ListType):
        inner = info.item_type
        if isinstance(inner, inspect.ListType):
            return "a matrix [[...], ...]"
        return f"a list {'of numbers' if isinstance(inner, inspect.FloatType) else f'with any of {_said(inner)}'}"
    if isinstance(info, inspect.UnionType):
        # None is a key that is left out.
        found = [
            part.values if isinstance(part, inspect.LiteralType) else [_said(part)] for part in info.types if part != inspect.NoneType()
        ]
        return listed(word for words in found for word in words)
    return {inspect.BoolType: "true or false", inspect.StrType: "text"}[type(info)]


def _range(info: Any) -> str:
    bounds = {"of at least": info.ge, "above": info.gt, "of at most": info.le, "below": info.lt}
    return " and".join(f" {word} {bound:g}" if bound < 1e6 else f" {word} {bound}" for word, bound in bounds.items() if bound is not None)
