"""The masked mean field at a small size: what is exact, how differences are measured, and that each check can fail."""

import dataclasses
import math

import numpy as np
import pytest

import attnflow as af
from attnflow.studies import masked

SPEC = masked.Spec(t1=0.3, cells=(20, 40, 80, 160), order_cells=(4, 8, 16, 32), tokens=(100, 200, 400), repeats=1)


def power(slope: float, cells=(8.0, 16.0, 32.0)) -> masked.Refinement:
    return masked.Refinement("line", np.array(cells), np.array(cells) ** -slope)


@pytest.fixture(scope="module")
def result() -> masked.Result:
    """Tokens against one grid; the rates of grids are made up."""
    causal, start = masked.law(af.Causal()), masked.grid(8, 40, SPEC)
    end = masked._flow(causal, start, SPEC)
    distances, cloud, alone = masked._tokens(causal, start, end, SPEC)
    drift = float(np.abs(np.asarray(end.mass.sum(axis=1) - start.mass.sum(axis=1))).max())
    refinements = [power(2.0), power(2.0), power(1.0)]
    return masked.Result(SPEC, refinements, distances, start, end, cloud, drift, alone, masked._first_cell(start, end, SPEC))


def test_what_is_exact(result):
    assert result.drift < 1e-15
    assert result.first_token < 1e-7
    assert result.first_cell < 1e-4


def test_tokens_come_close_to_the_grid(result):
    """Within a few standard deviations of x over the root of the number of tokens in a band."""
    for n, errors in zip(SPEC.tokens, result.distances[:, 0]):
        assert (errors < 4 / math.sqrt(n / 4)).all()


def test_the_law_given_the_order(result):
    """The mean of x given the order, from the density in closed form; bands of tokens and grids add up to the whole."""
    for low, high in ((0.0, 0.25), (0.5, 0.75)):
        s = np.linspace(low, high, 2001)
        expected = np.sum((0.5 + s) * 0.8 * np.cos(np.pi * s)) / np.sum(0.5 + s)
        assert float(masked.given_order(result.start, low, high).mean[0]) == pytest.approx(expected, abs=0.01)
        band = masked.given_order(result.cloud, low, high)
        inside = (np.asarray(result.cloud.sequence) >= low) & (np.asarray(result.cloud.sequence) <= high)
        np.testing.assert_allclose(band.mean, np.asarray(result.cloud.points)[inside].mean(axis=0), rtol=1e-12)


def test_the_difference_of_two_grids():
    """Densities `1 + x` by cell, and the same with 0.1 more and less in neighboring fine cells, which coarse cells do not see."""
    coarse = np.tile(1 + (np.arange(4) + 0.5) / 4, (3, 1))
    fine = np.tile(1 + (np.arange(8) + 0.5) / 8, (3, 1)) + 0.1 * np.tile([1, -1], (3, 4))
    found = masked._refinement("line", (4, 8, 16), [coarse, fine, np.repeat(fine, 2, axis=1) * 1.5], axis=1)
    np.testing.assert_allclose(found.differences, [0, 0.5], atol=1e-14)
    np.testing.assert_array_equal(found.cells, [4, 8])


def test_each_check_can_fail(result):
    good = dataclasses.replace(result, distances=np.array(SPEC.tokens)[:, None, None] ** -0.5 * np.ones((1, 1, 4)))

    def failed(**change):
        return [check.name.split(":")[1].strip() for check in masked.checks(dataclasses.replace(good, **change)) if not check.ok]

    assert failed() == []
    assert failed(distances=good.distances**2) == ["rate in $n$ of $W_2$ given the order"]
    assert failed(refinements=[power(1.0), power(2.0), power(1.0)]) == ["order in the cells of the line"]
    assert failed(refinements=[power(2.0), power(1.0), power(2.0)]) == [
        "order in the cells of order",
        "the same if a token sees its whole cell",
    ]
    assert failed(drift=1e-9) == ["largest change of the marginal in $s$"]
    assert failed(first_token=0.1) == [r"the first one moves alone, $\lvert x(t) - e^{tV} x(0) \rvert$"]
    assert failed(first_cell=0.1) == ["$W_2$ of the first cell of order to its flow without a mask"]


def test_the_figure(result, tmp_path):
    page = masked.figure(result)
    assert len(page.axes) == 4
    np.testing.assert_array_equal(page.axes[2].lines[1].get_ydata(), result.errors[:, 1])
    page.savefig(tmp_path / "masked.pdf", dpi=50)
    assert masked.measured(result)["first token"] == result.first_token
