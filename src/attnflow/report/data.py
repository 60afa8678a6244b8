"""The result of a study as an `xarray.DataTree`, for the file: one variable per array, one group per part."""

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.flow.path import Path

if TYPE_CHECKING:
    from xarray import DataTree
else:
    DataTree = Any


def data_tree(result: object, attributes: dict[str, Any] | None = None) -> DataTree:
    """All arrays and numbers of a dataclass; dictionaries, lists, paths and dataclasses in it are groups. Axes have the names that the
    annotations of jaxtyping give them. Text is an attribute; what is neither number nor text is left out."""
    import xarray

    nodes: dict[str, Any] = {}
    _node(result, "/", nodes, {})
    nodes.setdefault("/", xarray.Dataset())
    nodes["/"] = nodes["/"].assign_attrs(attributes or {})
    return xarray.DataTree.from_dict(nodes)


def _node(value: object, at: str, nodes: dict[str, Any], above: dict[str, int]) -> None:
    """Put what can be a variable into the group at a path, and the rest into groups below. A group shares the axes of those above it,
    so an axis of another length needs another name."""
    import xarray

    if isinstance(value, xarray.Dataset):
        # Attributes may hold anything; a file takes numbers and text.
        kept = {key: item for key, item in value.attrs.items() if isinstance(item, str | int | float)}
        taken = {str(name): _free(str(name), size, above) for name, size in value.sizes.items()}
        nodes[at] = value.rename({old: new for old, new in taken.items() if old != new}).assign_attrs(kept)
        return
    items = _items(value)
    variables, attributes, below, sizes = {}, {}, {}, dict(above)
    for name, (item, axes) in items.items():
        array = _numbers(item)
        if array is not None:
            names = _axes(name, array, axes if not items.keys() & axes.split() else "", sizes)
            sizes |= dict(zip(names, array.shape))
            variables[name] = (names, array)
        elif isinstance(item, str | bool | int) or item is None:
            attributes[name] = str(item)
        else:
            below[name] = item.to_xarray() if isinstance(item, Path) else item.tolist() if isinstance(item, np.ndarray) else item
    if variables or attributes or at == "/":
        nodes[at] = xarray.Dataset(variables, attrs=attributes)
    for name, item in below.items():
        if isinstance(item, dict | list | tuple | xarray.Dataset) or dataclasses.is_dataclass(item):
            _node(item, f"{at.rstrip('/')}/{name}", nodes, sizes)


def _items(value: Any) -> dict[str, tuple[Any, str]]:
    """The members of a value by name, each with the axes that its annotation names."""
    if dataclasses.is_dataclass(value):
        found = {}
        for field in dataclasses.fields(value):
            axes = getattr(field.type, "dim_str", "")
            found[field.name] = (getattr(value, field.name), axes if isinstance(axes, str) else "")
        return found
    if hasattr(value, "_asdict"):
        return {name: (item, "") for name, item in value._asdict().items()}
    found = {}
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        name = re.sub(r"[/\s]+", "-", str(key)) or "-"
        while name in found:
            name += "-"
        found[name] = (item, "")
    return found


def _numbers(item: object) -> np.ndarray | None:
    """An array of numbers, if it can be one."""
    row = isinstance(item, list | tuple) and not hasattr(item, "_asdict") and all(isinstance(x, int | float) for x in item)
    if isinstance(item, bool) or not (isinstance(item, int | float | np.generic) or hasattr(item, "dtype") or row):
        return None
    array = np.asarray(item)
    return array if array.dtype.kind in "biufc" else None


def _axes(name: str, array: np.ndarray, annotated: str, sizes: dict[str, int]) -> tuple[str, ...]:
    """The annotated names where they are plain words that fit, else names of the variable's own."""
    words = annotated.split()
    fits = len(words) == array.ndim == len(set(words)) and all(word.isidentifier() for word in words)
    if fits and all(sizes.get(word, n) == n for word, n in zip(words, array.shape)):
        return tuple(words)
    return tuple(_free(f"{name}_{i}", n, sizes) for i, n in enumerate(array.shape))


def _free(name: str, size: int, sizes: dict[str, int]) -> str:
    """A name for an axis that is not that of one of another length."""
    while sizes.get(name, size) != size:
        name += "_"
    return name
