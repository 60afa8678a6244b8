"""The study of the uniform law on the circle: small, its checks, its figure, and bad input; at full size if asked."""

import dataclasses

import numpy as np
import pytest

from attnflow.studies import circle


@pytest.fixture(scope="module")
def result():
    """On the circle; rates on spheres are measured at full size."""
    return circle.run(circle.FAST)


def test_every_check_holds(result):
    assert [check for check in circle.checks(result) if not check.ok] == []
    assert len(circle.checks(result)) == 10


def test_three_clusters(result):
    assert circle.predicted(5.0) == 3
    assert result.clusters == 3
    assert result.counts.tolist() == [[1, 1], [3, 3]]


def test_arcs_are_counted_around_the_circle():
    density = np.zeros(12)
    density[[0, 11, 4, 5, 8]] = 3
    assert circle.clusters(density) == 3
    assert circle.clusters(np.ones(12)) == 0


def test_each_check_can_fail(result):
    wrong = dataclasses.replace(result.spheres[0], grid=result.spheres[0].grid * 1.02, law=result.spheres[0].law * (1 + 1e-7))
    broken = dataclasses.replace(result, spheres=[wrong], clusters=4, counts=result.counts + np.array([[2], [0]]))
    assert all(not check.ok for check in circle.checks(broken))


def test_the_figure(result):
    modes, rates, density, counts, _ = circle.figure(result).axes
    np.testing.assert_array_equal(modes.lines[0].get_ydata(), result.amplitudes[:, 0])
    np.testing.assert_array_equal(rates.lines[2].get_ydata(), result.spheres[0].grid)
    assert density.get_xlabel() == "$t$"
    assert len(counts.get_legend().get_texts()) == 2


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"beta": 0.0}, "beta and betas must be positive, got 0.0"),
        ({"betas": ()}, "beta and betas must be positive"),
        ({"amplitude": 1e-3}, "so that there is a linear phase, got 0.001"),
        ({"rough": 1.0}, "rough must lie between 0 and 0.1, got 1.0"),
        ({"cells": 32}, "cells must be at least 64, got 32"),
        ({"draws": 0}, "draws must be at least 1, got 0"),
        ({"dims": (2, 3)}, r"dims must be at least 3, got \[2, 3\]"),
    ],
)
def test_a_bad_spec_is_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        circle.Spec(**bad)


@pytest.mark.slow
def test_at_full_size():
    assert [check for check in circle.checks(circle.run()) if not check.ok] == []
