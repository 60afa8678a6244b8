"""The study of the uniform density on the circle at a small size: clusters, that its checks can fail, and its figure."""

import dataclasses

import numpy as np

from attnflow.studies import circle


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
