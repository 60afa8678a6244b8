"""Checks, and fits of power laws."""

import math

import numpy as np
import pytest
from scipy import stats

from attnflow.studies import Check
from attnflow.studies.tools.fit import power_law, student


def test_a_check_of_a_number_that_is_not_there_fails():
    assert not Check("time", math.nan, 1.0, math.inf).ok
    assert Check("time", 1.25, 1.0, 0.25).ok
    assert not Check("time", 1.25, 1.0, 0.2).ok


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 30])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_quantiles_of_student(freedom, confidence):
    assert student(freedom, confidence) == pytest.approx(stats.t.ppf((1 + confidence) / 2, freedom), rel=1e-12)


def test_the_fit_is_the_regression_of_scipy(rng):
    x = np.geomspace(0.01, 1, 7)
    y = 3 * x**1.7 * np.exp(0.1 * rng.normal(size=7))
    fit, line = power_law(x, y), stats.linregress(np.log(x), np.log(y))
    assert (fit.slope, fit.intercept) == pytest.approx((line.slope, line.intercept))
    assert fit.half_width == pytest.approx(stats.t.ppf(0.975, 5) * line.stderr)
    # At x = 1 the logarithm of the line is its intercept, so the band is the interval of the intercept.
    low, high = fit.band(np.array([1.0]))
    assert np.log(high / low)[0] / 2 == pytest.approx(stats.t.ppf(0.975, 5) * line.intercept_stderr)
    np.testing.assert_allclose(fit(x), np.exp(line.intercept) * x**line.slope)


def test_the_interval_holds_the_slope_as_often_as_it_says(rng):
    x, hits = np.geomspace(1, 10, 5), 0
    for _ in range(500):
        fit = power_law(x, x**2 * np.exp(0.05 * rng.normal(size=5)), confidence=0.8)
        hits += abs(fit.slope - 2) <= fit.half_width
    assert hits == pytest.approx(400, abs=3 * math.sqrt(500 * 0.8 * 0.2))


def test_two_points_have_no_confidence():
    with pytest.raises(ValueError, match="at least 3 points, got 2"):
        power_law([1, 2], [1, 2])
