"""The study of scores: its split of the error, its checks, and that they can fail."""

import dataclasses

import numpy as np
from scipy.integrate import quad

from attnflow.studies import scores

SPEC = scores.FAST


def failed(result: scores.Result) -> list[str]:
    return [check.name for check in scores.checks(result) if not check.ok]


def test_the_split_of_the_error(rng):
    """Estimates `exact + bias + noise` with known bias and variance."""
    exact, bias = rng.normal(size=(5, 2)), np.array([0.3, -0.4])
    found = exact + bias + 0.5 * rng.normal(size=(3, 1, 4000, 5, 2))
    bias2, variance = scores._split(found, exact)
    np.testing.assert_allclose(bias2, 0.25, atol=0.02)
    np.testing.assert_allclose(variance, 0.5, rtol=0.02)


def test_bias_of_clouds_against_quadrature(result):
    """At a high temperature the mean over small clouds shows the bias for n = infinity, within its error."""
    (e,) = result.errors
    sigma = np.sqrt(e.variance[:2, -1, 0] / SPEC.clouds)
    assert (np.abs(np.sqrt(e.bias2[:2, -1, 0]) - np.sqrt(e.limit[:2, 0])) < 4 * sigma).all()


def test_the_best_temperature():
    u = np.linspace(-3, 3, 9)
    np.testing.assert_allclose(scores._lowest(u, (u - 0.4) ** 2 + 2), (0.4, 2), atol=1e-12)
    assert scores._lowest(u, u) == (-3, -3)


def test_ratios_on_a_flat_density(result):
    """Integrals by SciPy; tokens of a mixture are not flat, but at the smallest eps of the study's range the ratio is near."""
    white = [quad(lambda k, f=f: k**3 * f(k**2) ** 2, 0, 20)[0] for f in (lambda q: np.exp(-q / 2), lambda q: 1 - np.tanh(q / 4))]
    np.testing.assert_allclose(scores.flat_ratios(2)[:2], [1, white[1] / white[0]], rtol=1e-6)
    (e,) = result.errors
    assert 1.4 < e.variance[1, -1, -1] / e.variance[0, -1, -1] < 3


def test_each_kind_of_check_can_fail(result):
    (e,) = result.errors
    swap = [1, 0, 2]
    assert "$R^{1}$: share of bridges that converged" in failed(scores.Result(SPEC, [dataclasses.replace(e, converged=False)]))
    assert "$R^{1}$: power of $n$ in the variance of bridge" in failed(
        scores.Result(SPEC, [dataclasses.replace(e, variance=e.variance[:, ::-1])])
    )
    swapped = failed(scores.Result(SPEC, [dataclasses.replace(e, limit=e.limit[swap], bias2=e.bias2[swap], variance=e.variance[swap])]))
    assert "$R^{1}$: bias of bridge over the theory's" in swapped
    assert "$R^{1}$: best error of the bridge over that of the kernel density" in swapped
    assert "$R^{1}$: order of the bias of Richardson" in failed(scores.Result(SPEC, [dataclasses.replace(e, limit=e.limit[[0, 1, 1]])]))


def test_the_figure(result):
    axes = scores.figure(result).axes
    assert len(axes) == 3
    np.testing.assert_array_equal(axes[0].lines[0].get_ydata(), result.errors[0].total[0, -1])
    np.testing.assert_array_equal(axes[2].lines[1].get_ydata(), result.errors[0].best[0][1])
