"""A long study is done in parts; those that are done are kept in a folder, so that a run that was cut off goes on from there.

A study computes its parts with `parts(compute, items, label, progress)`. Whoever runs it may open a folder around it:

    with kept(folder):
        result = study.run(spec)

Parts are pickled, as they hold results of any type; a folder is for the one who wrote it, and only for the same spec and versions.
"""

import contextlib
import contextvars
import os
import pathlib
import pickle
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
Part = TypeVar("Part")

_FOLDER: contextvars.ContextVar[pathlib.Path | None] = contextvars.ContextVar("attnflow_parts", default=None)


def parts(compute: Callable[[Item], Part], items: Iterable[Item], label: str, progress: bool = False) -> list[Part]:
    """`[compute(item) for item in items]`, with a progress bar; inside `kept`, what is in the folder is read and the rest is written there.

    **Arguments:** `label` is what the bar shows, and tells the loops of a study apart: no two may share it. `compute` must depend on
    the item and the spec alone, not on the parts before.
    """
    from rich.progress import track

    items = list(items)
    return [_part(lambda item=item: compute(item), f"{label} {i}") for i, item in enumerate(track(items, label, disable=not progress))]


@contextlib.contextmanager
def kept(folder: pathlib.Path) -> Iterator[None]:
    """Keep the parts computed in here in a folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    token = _FOLDER.set(folder)
    try:
        yield
    finally:
        _FOLDER.reset(token)


def _part(compute: Callable[[], Part], name: str) -> Part:
    folder = _FOLDER.get()
    if folder is None:
        return compute()
    file = folder / f"{re.sub('[^A-Za-z0-9]+', '-', name)}.part"
    if file.exists():
        return pickle.loads(file.read_bytes())
    value = compute()
    # Under another name first: a kill leaves a whole part or none.
    draft = folder / f".{uuid.uuid4().hex}"
    with draft.open("wb") as stream:
        stream.write(pickle.dumps(value))
        stream.flush()
        os.fsync(stream.fileno())
    draft.rename(file)
    return value
