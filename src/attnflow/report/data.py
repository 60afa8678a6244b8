"""The result of a study as an `xarray.DataTree`, for the file: a variable an array, a group a part."""

import dataclasses
import re
from typing import Any

import numpy as np

from attnflow.flow.path import Path


def data_tree(result: Any, attributes: dict[str, Any] | None = None) -> Any:
    """All arrays and numbers of a dataclass; dictionaries, lists, paths and dataclasses in it are groups. Axes have the names that the
    annotations of jaxtyping give them. What is neither number nor text is left out."""
    import xarray

    nodes: dict[str, Any] = {}
    _node(result, "/", nodes)
    nodes.setdefault("/", xarray.Dataset())
    nodes["/"] = nodes["/"].assign_attrs(attributes or {})
    return xarray.DataTree.from_dict(nodes)


def _node(value: Any, at: str, nodes: dict[str, Any]) -> None:
    """Put what can be a variable into the group at a path, and everything else into groups below."""
    import xarray

    group, variables, attributes, sizes = xarray.Dataset(), {}, {}, {}
    if isinstance(value, xarray.Dataset):
        # Attributes may hold anything; a file takes numbers and text.
        nodes[at] = value.assign_attrs({key: item for key, item in value.attrs.items() if isinstance(item, str | int | float)})
        return
    for name, (item, axes) in _items(value).items():
        if isinstance(item, str | bool) or item is None:
            attributes[name] = str(item)
            continue
        if isinstance(item, int | float | np.generic) or hasattr(item, "dtype") or _is_row(item):
            array = np.asarray(item)
            if array.dtype.kind in "biufc":
                names = _axes(name, array, axes, sizes)
                sizes |= dict(zip(names, array.shape))
                variables[name] = (names, array)
                continue
        if isinstance(item, Path):
            item = item.to_xarray()
        if isinstance(item, dict | list | tuple | xarray.Dataset) or dataclasses.is_dataclass(item):
            _node(item, f"{at.rstrip('/')}/{name}", nodes)
    group = group.assign(variables).assign_attrs(attributes)
    if group.data_vars or group.attrs or at == "/":
        nodes[at] = group


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
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return {re.sub(r"[/\s]+", "-", str(key)): (item, "") for key, item in pairs}


def _is_row(item: Any) -> bool:
    return isinstance(item, list | tuple) and bool(item) and all(isinstance(x, int | float) for x in item)


def _axes(name: str, array: np.ndarray, annotated: str, sizes: dict[str, int]) -> tuple[str, ...]:
    """The annotated names where they are plain words that fit, else names of the variable's own."""
    words = annotated.split()
    fits = len(words) == array.ndim == len(set(words)) and all(word.isidentifier() for word in words)
    if fits and all(sizes.get(word, n) == n for word, n in zip(words, array.shape)) and name not in words:
        return tuple(words)
    return tuple(f"{name}_{i}" for i in range(array.ndim))
