"""The mixture along the heat flow and the coupling of N(0, 1): against SciPy and closed forms, and that each check can fail."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

import attnflow as af
from attnflow.studies import mixture

SPEC = mixture.FAST


def below(x, t):
    s = math.sqrt(1 + t)
    return (stats.norm.cdf(x, -2, s) + stats.norm.cdf(x, 2, s)) / 2


def test_distances_by_scipy(result):
    assert result.sampled.shape == (11, 200)
    for k in (0, 4, 10):
        exact = stats.kstest(result.sampled[k], below, args=(k * 0.05,)).statistic
        assert result.kolmogorov[k] == pytest.approx(exact, rel=1e-9)
    # Where the exact flow takes the tokens, by the definition of a quantile.
    there = mixture.quantile(below(result.grid[0], 0.0), 0.5)
    inside = np.abs(result.grid[0]) < 6
    np.testing.assert_allclose(below(there, 0.5)[inside], below(result.grid[0], 0.0)[inside], atol=1e-12)
    assert result.w2[-1] == pytest.approx(math.sqrt(result.weights @ (result.grid[-1] - there) ** 2))
    assert result.w2[0] < 1e-7


def test_the_variance_grows_by_t(result):
    """Of 1/2 N(-2, 1 + t) + 1/2 N(2, 1 + t) it is 5 + t; the scheme errs by its second order."""
    variances = result.grid**2 @ result.weights
    np.testing.assert_allclose(variances, 5 + SPEC.times, atol=SPEC.eps**2)


def test_the_coupling_is_gaussian(result):
    """The plan over the product of the spacings is the density of N(0, [[1, M], [M, 1]])."""
    x = np.asarray(result.bridge.measure.points)[:, 0]
    slope = math.sqrt(1 + SPEC.eps**2 / 4) - SPEC.eps / 2
    some = np.flatnonzero(np.abs(x) < 2)[::40]
    density = np.asarray(result.bridge.plan())[np.ix_(some, some)] / (x[1] - x[0]) ** 2
    pairs = np.stack(np.meshgrid(x[some], x[some], indexing="ij"), axis=-1)
    np.testing.assert_allclose(density, stats.multivariate_normal(cov=[[1, slope], [slope, 1]]).pdf(pairs), atol=1e-6)


def test_each_check_can_fail(result):
    cold = af.self_bridge(result.bridge.measure, SPEC.eps * 1.01)
    wrong = {
        "quadrature tokens": [dataclasses.replace(result, w2=result.w2 + SPEC.eps**2)],
        "sampled tokens": [dataclasses.replace(result, kolmogorov=result.kolmogorov + 0.2)],
        "bridge of $N(0, 1)$": [dataclasses.replace(result, bridge=cold)],
    }
    for name, results in wrong.items():
        for bad in results:
            failed = [check.name for check in mixture.checks(bad) if not check.ok]
            assert failed == [check.name for check in mixture.checks(result) if check.name.startswith(name)]


def test_the_figures(result):
    flow, coupling = mixture.figure(result).values()
    assert [ax.get_title() for ax in flow.axes[:4]] == ["$t = 0$", "$t = 0.05$", "$t = 0.15$", "$t = 0.5$"]
    line = flow.axes[3].lines[1].get_xydata()
    np.testing.assert_allclose(line[:, 1], (stats.norm.pdf(line[:, 0], -2, 1.5**0.5) + stats.norm.pdf(line[:, 0], 2, 1.5**0.5)) / 2)
    image = coupling.axes[1].images[0].get_array()
    # Along the diagonal: four deviations either side, the ridge near y = x.
    assert abs(image.argmax(axis=0) - image.shape[0] // 2).max() <= 0.1 * image.shape[0]


@pytest.mark.slow
def test_the_distance_at_full_size(full):
    assert full.w2.max() < 1e-5
