"""A long study is done in parts; those that are done are kept in a folder, so that a run that was cut off goes on from there.

A study computes its parts with `parts(compute, items, label, progress)`. Whoever runs it may open a folder around it:

    with kept(folder):
        result = study.run(spec)

A part is kept as data, `LABEL-NUMBER.npz`, never as code: a folder may come from a stranger. It is for the same spec and versions only.
"""

import contextlib
import contextvars
import os
import pathlib
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from attnflow.studies.tools import data
from attnflow.studies.tools.check import BadInput

Item = TypeVar("Item")
Part = TypeVar("Part")

_FOLDER: contextvars.ContextVar[pathlib.Path | None] = contextvars.ContextVar("attnflow_parts", default=None)


def parts(compute: Callable[[Item], Part], items: Iterable[Item], label: str, progress: bool = False, *, like: Any = None) -> list[Part]:
    """`[compute(item) for item in items]`, with a progress bar; inside `kept`, what is in the folder is read and the rest is written there.

    **Arguments:** `label` is what the bar shows, and tells the loops of a study apart: no two may share it. `compute` must depend on
    the item and the spec alone, not on the parts before. `like` says what a part is: by default plain data (numbers, strings, arrays, and
    tuples, lists and dictionaries of such); a dataclass, an example of a module, or a tuple or list of these; see
    `attnflow.studies.tools.data`.
    """
    from rich.progress import track

    items = list(items)
    return [
        _part(lambda item=item: compute(item), f"{label} {i}", like) for i, item in enumerate(track(items, label, disable=not progress))
    ]


@contextlib.contextmanager
def kept(folder: pathlib.Path) -> Iterator[None]:
    """Keep the parts computed in here in a folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    token = _FOLDER.set(folder)
    try:
        yield
    finally:
        _FOLDER.reset(token)


def _part(compute: Callable[[], Part], name: str, like: Any) -> Part:
    folder = _FOLDER.get()
    if folder is None:
        return compute()
    file = folder / f"{re.sub('[^A-Za-z0-9]+', '-', name)}.npz"
    if not file.exists():
        content = data.to_bytes(compute(), like)
        # Under another name first: a kill leaves a whole part or none.
        draft = folder / f".{uuid.uuid4().hex}"
        with draft.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        draft.rename(file)
    # A part that was computed just now is read as well: then a run in one go and one that goes on have the same arrays in memory.
    try:
        return data.from_bytes(file.read_bytes(), like)
    except Exception as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise BadInput(
            f"{str(file)!r} is not a part of this run, or is damaged ({why}); delete it, and --resume computes it again"
        ) from error
