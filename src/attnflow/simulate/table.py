"""A table of the file, and the kinds of values that keys have."""

from typing import Annotated, Literal

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Row = Annotated[list[float], msgspec.Meta(min_length=1)]
Matrix = Annotated[list[Row], msgspec.Meta(min_length=1)]
# A number stands for that multiple of the identity, a name for a random matrix.
Weights = float | Literal["gaussian", "goe", "wigner"] | Matrix


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the file: no keys but these."""
