"""Constraints that are declared in annotations: what fits is converted, what does not is refused in one line."""

import dataclasses
import math
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from attnflow.studies.tools.constraints import (
    DIFFERENT,
    DOUBLING,
    FALLING,
    GEOMETRIC,
    RISING,
    Checked,
    Count,
    Meta,
    Positive,
    Rule,
    Seed,
    converted,
    each_of,
    wanted,
)

EVEN = Annotated[int, Meta(ge=4, multiple_of=2)]


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    n: Any = 3
    t0: float = 0.0
    t1: Positive = 1.0
    sizes: Annotated[tuple[Count, ...], Meta(min_length=2), RISING] = (1, 2)

    def check(self) -> None:
        if self.t1 <= self.t0:
            raise ValueError(f"t1 must be after t0, got {self.t1} and {self.t0}")


def test_fields_are_converted_checked_and_then_compared():
    spec = Spec(t1=2, sizes=[np.int64(3), 5])
    assert (spec.t1, spec.sizes) == (2.0, (3, 5))
    assert (type(spec.t1), type(spec.sizes), type(spec.sizes[0])) == (float, tuple, int)
    assert hash(spec) == hash(Spec(t1=2.0, sizes=(3, 5)))
    with pytest.raises(ValueError, match=r"^t1 must be after t0, got 1\.0 and 2\.0$"):
        Spec(t0=2.0)
    with pytest.raises(ValueError, match=r"^t1 must be positive and finite, got 0$"):
        Spec(t0=2.0, t1=0)


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (int, 1.5, "be a whole number, got 1.5"),
        (int, True, "be a whole number, got true"),
        (Count, "many", "be a whole number of at least 1, got 'many'"),
        (Count, 0, "be at least 1, got 0"),
        (float, math.nan, "be finite, got nan"),
        (float, "a", "be a number, got 'a'"),
        (Positive, math.inf, "be positive and finite, got inf"),
        (Positive, None, "be a positive number, got none"),
        (Positive | None, -1.0, "be a positive number, got -1.0"),
        (Annotated[float, Meta(ge=2)], -math.inf, "be at least 2 and finite, got -inf"),
        (Annotated[float, Meta(ge=2, le=3)], 4, "be from 2 to 3, got 4"),
        (Annotated[float, Meta(gt=0, le=0.5)], 0.0, "lie between 0 and 0.5, got 0.0"),
        (Annotated[float, Meta(gt=1)], 1.0, "be above 1 and finite, got 1.0"),
        (Annotated[float, Meta(le=1, description="as it must")], 2.0, "be at most 1, as it must, got 2.0"),
        (Seed, -1, "be at least 0 and below 4294967296, got -1"),
        (EVEN, 5, "be a multiple of 2 and at least 4, got 5"),
        (Annotated[int, Rule("0 or at least 2", lambda n: n != 1)], 1, "be 0 or at least 2, got 1"),
        (Literal["a", "b", "c"], "d", "be a, b or c, got 'd'"),
        (bool, 1, "be true or false, got 1"),
        (str, 1, "be text, got 1"),
        (tuple[Positive, ...], (1.0, math.inf), "be positive numbers, got [1.0, inf]"),
        (Annotated[tuple[Count, ...], Meta(min_length=1)], (), "be one or more whole numbers of at least 1, got []"),
        (Annotated[tuple[float, ...], Meta(min_length=5)], (1.0,), "be at least 5 numbers, got [1.0]"),
        (Annotated[tuple[EVEN, ...], DOUBLING], (4, 6), "be multiples of 2 of at least 4, each twice the one before, got [4, 6]"),
        (Annotated[tuple[float, ...], RISING], (1.0, 1.0), "be numbers, rising, got [1.0, 1.0]"),
        (Annotated[tuple[float, ...], FALLING], (1.0, 1.0), "be numbers, falling, got [1.0, 1.0]"),
        (Annotated[tuple[float, ...], DIFFERENT], (2.0, 1.0, 2.0), "be numbers, all different, got [2.0, 1.0, 2.0]"),
        (Annotated[tuple[Positive, ...], GEOMETRIC], (1.0, 2.0, 3.0), "be positive numbers, in geometric progression, got [1.0, 2.0, 3.0]"),
        (Annotated[tuple[str, ...], each_of("a", "b")], ("a", "c"), "be names, each a or b, got ['a', 'c']"),
        (list[Literal["a", "b"]], ["c"], "be a list with any of a or b, got ['c']"),
        (list[float], 3, "be a list of numbers, got 3"),
        (tuple[float, ...], (*map(float, range(50)), "x"), "be numbers, got [0.0, 1.0, 2.0"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(hint, value, message):
    with pytest.raises(ValueError) as error:
        converted("x", value, hint)
    assert str(error.value).startswith(f"x must {message}")
    assert len(str(error.value)) < 150


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Annotated[tuple[Positive, ...], GEOMETRIC, FALLING], (0.4, 0.2, 0.1)),
        (Annotated[tuple[EVEN, ...], DOUBLING, DIFFERENT, RISING], (4, 8, 16)),
        (Annotated[tuple[EVEN, ...], DOUBLING], ()),
        (Positive | None, None),
        (tuple[int, int], (1, 2)),
    ],
)
def test_what_fits_comes_back(hint, value):
    assert converted("x", value, hint) == value


def test_types_in_words():
    assert wanted(float | Literal["a", "b"] | list[list[float]]) == "a number, a, b or a matrix [[...], ...]"
