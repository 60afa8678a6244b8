"""The study of three pictures: its rates at a small size, its figure, and that each check can fail."""

import dataclasses

import numpy as np
import pytest

from attnflow.studies import pictures

CIRCLE = "simple attention on the circle"
SPEC = dataclasses.replace(pictures.FAST, cases=(*pictures.FAST.cases, CIRCLE))


@pytest.fixture(scope="module")
def result(small) -> pictures.Result:
    """With the circle."""
    rates, ends = pictures.compare(CIRCLE, pictures.cases()[CIRCLE], SPEC)
    return dataclasses.replace(small, spec=SPEC, rates=[*small.rates, rates], ends=small.ends | {CIRCLE: ends})


def test_every_check_holds(result):
    assert [check for check in pictures.checks(result) if not check.ok] == []
    assert len(pictures.checks(result)) == 9


def test_each_check_can_fail(result):
    first, other = result.rates
    slow = dataclasses.replace(first, by_cells=first.widths, by_tokens=first.counts**-0.2, drift=1e-9, lowest=-1e-20)
    wrong = dataclasses.replace(result, rates=[slow, other], gaussian={"L2": np.array([4.0, 2.0, 1.0])})
    failed = [check.name for check in pictures.checks(wrong) if not check.ok]
    assert [name.split(": ")[1] for name in failed[:4]] == ["order in the cell", "rate in the tokens", "mass - 1", "mass below zero"]
    assert failed[4].startswith("L2 on $N(0, 1)$")


def test_the_figure(result):
    shown, cells, tokens = pictures.figure(result).axes
    np.testing.assert_array_equal(tokens.lines[0].get_ydata(), result.rates[0].by_tokens)
    np.testing.assert_array_equal(cells.lines[1].get_xdata(), result.rates[1].widths)
    assert "tokens" in shown.get_legend().get_texts()[1].get_text()


@pytest.mark.slow
def test_every_case_at_full_size(full):
    assert len(full.rates) == 5
