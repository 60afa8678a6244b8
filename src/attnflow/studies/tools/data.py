"""A part of a run as data: arrays and their structure, in one npz file. Reading it runs nothing that the file says.

`like` says what a part is; the study has it, and the file does not:

- `None`: plain data, that is numbers, strings, `None`, arrays of NumPy or JAX, and tuples, lists and dictionaries of such;
- a dataclass: an object of it, with its fields by their annotations;
- `Of(dataclass, field=like)`: the same, where an annotation does not say enough;
- an equinox module: one of the same structure with other arrays, such as a measure;
- a tuple of these: a tuple; a list of one of these: a list of any length.
"""

import dataclasses
import io
import json
import typing
from collections.abc import Callable
from functools import singledispatch
from typing import Any

import equinox as eqx
import jax
import numpy as np

from attnflow.flow.path import Path, Stats, Status
from attnflow.numerics.arrays import array

# What the file has instead of names of classes.
_STRUCTURE = "structure"
Arrays = list[np.ndarray]


class Of:
    """An object of a dataclass, some of whose fields are like what is given here."""

    def __init__(self, kind: type, **fields: Any):
        self.kind: type = kind
        self.fields: dict[str, Any] = fields


def to_bytes(value: Any, like: Any = None) -> bytes:
    """The file of a value; `TypeError` if it is not what `like` says."""
    arrays: Arrays = []
    structure = np.frombuffer(json.dumps(_note(like, value, arrays)).encode(), np.uint8)
    members: dict[str, Any] = {_STRUCTURE: structure} | {f"array{i}": found for i, found in enumerate(arrays)}
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **members)
    return file.getvalue()


def from_bytes(content: bytes, like: Any = None) -> Any:
    """What `to_bytes` was given, bit by bit; some exception if the file holds anything else."""
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        structure = json.loads(file[_STRUCTURE].tobytes())
        arrays = [file[f"array{i}"] for i in range(len(file.files) - 1)]
    return _made(like, structure, arrays)


def _refuse(value: Any, wanted: str) -> TypeError:
    return TypeError(f"a part of a study must be {wanted}, got {type(value).__name__}; say with `like` what it is, or return arrays")


def _only(node: Any, key: str) -> Any:
    """The content of a node of one kind."""
    if not isinstance(node, dict) or list(node) != [key]:
        raise ValueError(f"a part of another form: no {key} where one should be")
    return node[key]


# Plain data: the structure names which of a few kinds a value is.


def _array(value: Any, arrays: Arrays, kind: str = "array") -> dict[str, int]:
    found = np.asarray(value)
    if found.dtype.hasobject:
        raise _refuse(value, "an array of numbers")
    arrays.append(found)
    return {kind: len(arrays) - 1}


def _jax(value: Any, arrays: Arrays) -> dict[str, int]:
    return _array(value, arrays, "jax")


def _number(value: Any, arrays: Arrays) -> dict[str, int]:
    return _array(value, arrays, "number")


def _itself(value: Any, arrays: Arrays) -> Any:
    return value


def _list(value: Any, arrays: Arrays) -> Any:
    return {"list": [_plain(item, arrays) for item in value]}


def _tuple(value: Any, arrays: Arrays) -> Any:
    return {"tuple": [_plain(item, arrays) for item in value]}


def _dictionary(value: Any, arrays: Arrays) -> Any:
    return {"dictionary": [[_plain(key, arrays), _plain(item, arrays)] for key, item in value.items()]}


_KINDS: dict[type, Callable[[Any, Arrays], Any]] = {type(None): _itself, bool: _itself, int: _itself, float: _itself, str: _itself}
# A path makes its figures anew from a dictionary.
_KINDS |= {list: _list, tuple: _tuple, dict: _dictionary, Stats: _dictionary, np.ndarray: _array}


def _plain(value: Any, arrays: Arrays) -> Any:
    """A node for plain data. Types must be these very ones: of a subclass the file would forget what it adds."""
    kind = _number if isinstance(value, np.generic) else _jax if isinstance(value, jax.Array) else _KINDS.get(type(value))
    if kind is None:
        raise _refuse(value, "plain data")
    return kind(value, arrays)


_BACK: dict[str, Callable[[Any, Arrays], Any]] = {
    "array": lambda content, arrays: arrays[content],
    "number": lambda content, arrays: arrays[content][()],
    "jax": lambda content, arrays: array(arrays[content]),
    "list": lambda content, arrays: [_unplain(item, arrays) for item in content],
    "tuple": lambda content, arrays: tuple(_unplain(item, arrays) for item in content),
    "dictionary": lambda content, arrays: {_unplain(key, arrays): _unplain(item, arrays) for key, item in content},
}


def _unplain(node: Any, arrays: Arrays) -> Any:
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    return _BACK[kind](content, arrays)


# By what the value is like: how it is noted, and how it is made again.


@singledispatch
def _note(like: Any, value: Any, arrays: Arrays) -> Any:
    raise TypeError(f"like must be None, a dataclass, Of(...), a module, or a tuple or list of these, got {like!r}")


@singledispatch
def _made(like: Any, node: Any, arrays: Arrays) -> Any:
    raise TypeError(f"like must be None, a dataclass, Of(...), a module, or a tuple or list of these, got {like!r}")


@_note.register
def _(like: None, value: Any, arrays: Arrays) -> Any:
    return _plain(value, arrays)


@_made.register
def _(like: None, node: Any, arrays: Arrays) -> Any:
    return _unplain(node, arrays)


@_note.register
def _(like: Of, value: Any, arrays: Arrays) -> Any:
    if type(value) is not like.kind:
        raise _refuse(value, f"a {like.kind.__name__}")
    return {"fields": {name: _note(form, getattr(value, name), arrays) for name, form in _forms(like).items()}}


@_made.register
def _(like: Of, node: Any, arrays: Arrays) -> Any:
    found, forms = _only(node, "fields"), _forms(like)
    if found.keys() != forms.keys():
        raise ValueError(f"a part of another form: {like.kind.__name__} with the fields {', '.join(found)}")
    return like.kind(**{name: _made(form, found[name], arrays) for name, form in forms.items()})


@_note.register
def _(like: type, value: Any, arrays: Arrays) -> Any:
    return _note(Of(like), value, arrays)


@_made.register
def _(like: type, node: Any, arrays: Arrays) -> Any:
    return _made(Of(like), node, arrays)


@_note.register
def _(like: eqx.Module, value: Any, arrays: Arrays) -> Any:
    if jax.tree.structure(value) != jax.tree.structure(like):
        raise _refuse(value, f"a {type(like).__name__} of the same structure as the one it is said to be like")
    return {"leaves": [_plain(leaf, arrays) for leaf in jax.tree.leaves(value)]}


@_made.register
def _(like: eqx.Module, node: Any, arrays: Arrays) -> Any:
    return jax.tree.unflatten(jax.tree.structure(like), [_unplain(leaf, arrays) for leaf in _only(node, "leaves")])


@_note.register
def _(like: tuple, value: Any, arrays: Arrays) -> Any:
    if type(value) is not tuple or len(value) != len(like):
        raise _refuse(value, f"a tuple of {len(like)}")
    return {"tuple": [_note(form, item, arrays) for form, item in zip(like, value)]}


@_made.register
def _(like: tuple, node: Any, arrays: Arrays) -> Any:
    return tuple(_made(form, item, arrays) for form, item in zip(like, _only(node, "tuple"), strict=True))


@_note.register
def _(like: list, value: Any, arrays: Arrays) -> Any:
    if type(value) is not list:
        raise _refuse(value, "a list")
    return {"list": [_note(like[0], item, arrays) for item in value]}


@_made.register
def _(like: list, node: Any, arrays: Arrays) -> Any:
    return [_made(like[0], item, arrays) for item in _only(node, "list")]


def _forms(of: Of) -> dict[str, Any]:
    """What every field is like: as given, or by its annotation, a dataclass or a list of such; otherwise plain."""
    if not _is_record(of.kind):
        raise TypeError(f"like must be a dataclass where it is a type, got {of.kind.__name__}; for a module give an example")
    hints = typing.get_type_hints(of.kind)
    return {field.name: of.fields[field.name] if field.name in of.fields else _form(hints[field.name]) for field in _fields(of.kind)}


def _form(hint: Any) -> Any:
    if typing.get_origin(hint) is list and (item := _form(typing.get_args(hint)[0])) is not None:
        return [item]
    return hint if isinstance(hint, type) and _is_record(hint) else None


def _is_record(kind: type) -> bool:
    """Whether objects of a class are made from their fields: dataclasses, and of the modules paths."""
    return dataclasses.is_dataclass(kind) and (not issubclass(kind, eqx.Module) or kind in (Path, Status))


def _fields(kind: Any) -> tuple[dataclasses.Field, ...]:
    return dataclasses.fields(kind)
