"""The study of bridge and Langevin pair: its numbers, its figure, and that each check can fail."""

import dataclasses

import numpy as np
import pytest

from attnflow.studies import langevin

SPEC = langevin.FAST


@pytest.fixture(scope="module")
def result(small) -> langevin.Result:
    """Two of the laws."""
    chosen = [comparison for comparison in small.comparisons if comparison.law in ("N(0, 1)", "0.3 N(-2, 1) + 0.7 N(1, 2)")]
    return langevin.Result(SPEC, chosen)


def test_the_number_of_checks(result):
    assert len(langevin.checks(result)) == 6


def test_smaller_than_eps_squared(result):
    """o(eps^2): over eps^2 it falls at least by 2.5 at every halving."""
    for numbers in langevin.measured(result).values():
        assert (numbers["over eps^2"][1:] < numbers["over eps^2"][:-1] / 2.5).all()


def test_each_check_can_fail(result):
    first, other = result.comparisons
    wrong = dataclasses.replace(first, divergence=first.divergence * (1 + 0.1 * SPEC.eps[-1] / first.eps))
    failed = [check.name for check in langevin.checks(langevin.Result(SPEC, [wrong, other])) if not check.ok]
    assert failed == [
        "$N(0, 1)$: grid against closed form",
        r"$N(0, 1)$: divergence over the constant times $\varepsilon^4$ in the limit",
        r"$N(0, 1)$: divergence over $\varepsilon^4/1152$ in the limit",
    ]
    slow = dataclasses.replace(other, divergence=other.eps**3.5, constant=1.0)
    names = [check.name for check in langevin.checks(langevin.Result(SPEC, [first, slow])) if not check.ok]
    assert names[0] == r"$0.3 N(-2, 1) + 0.7 N(1, 2)$: order at the smallest $\varepsilon$"


def test_the_figure(result):
    left, right = langevin.figure(result).axes
    np.testing.assert_array_equal(left.lines[0].get_ydata(), result.comparisons[0].divergence)
    assert len(left.get_legend().get_texts()) == 2
    assert "the same over" in right.get_ylabel()
