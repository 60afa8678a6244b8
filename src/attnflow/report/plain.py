"""Values as JSON can hold them."""

import dataclasses
import json
import math
import os
import pathlib
import uuid
from typing import Any

import jax
import numpy as np


def plain(value: object) -> Any:
    """The same in dictionaries, lists, numbers and strings; null stands for a number that is not finite."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def write_json(file: pathlib.Path, content: object) -> None:
    write_text(file, json.dumps(plain(content), indent=2, allow_nan=False) + "\n")


def write_text(file: pathlib.Path, text: str) -> None:
    """Write under another name and rename, so that a kill leaves a whole file or none."""
    draft = file.with_name(f".{uuid.uuid4().hex}")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, file)
