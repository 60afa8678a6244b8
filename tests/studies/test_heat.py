"""The rates of the heat schemes: against closed forms in NumPy, between the pictures, and that each check can fail."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.stats import norm

import attnflow as af
from attnflow.studies import heat

SPEC = dataclasses.replace(heat.FAST, plane_steps=(1, 2, 3), plane_nodes=66)


@pytest.fixture(scope="module")
def result(small) -> heat.Result:
    """With the mixture in the plane."""
    name = "mixture in the plane"
    plane = heat.measure(name, heat.laws()[name], SPEC.t1, SPEC.plane_steps, SPEC.plane_nodes)
    return heat.Result(SPEC, [*small.rates, plane])


def test_every_check_holds(result):
    checks = heat.checks(result)
    assert len(checks) == 18
    assert [check for check in checks if not check.ok] == []


@pytest.mark.parametrize(("row", "variance"), [(0, 1.0), (1, 0.25)])
def test_gaussians_by_recursion(result, row, variance):
    """For N(0, s^2) a bridge step is s <- s (2 - M), a Euler step s <- s + eps / (2 s), and W2 is the difference of the deviations."""
    rates = result.rates[row]
    np.testing.assert_allclose(rates.eps, [0.125, 0.0625, 0.03125])
    for i, count in enumerate(SPEC.steps):
        eps, bridge, euler, worst = SPEC.t1 / count, math.sqrt(variance), math.sqrt(variance), np.zeros(2)
        for k in range(1, count + 1):
            bridge *= 2 - (math.sqrt(bridge**4 + eps**2 / 4) - eps / 2) / bridge**2
            euler += eps / (2 * euler)
            if k == 1:
                assert rates.one_step[i] == pytest.approx(abs(bridge - euler) / eps, rel=1e-5)
            worst = np.maximum(worst, np.abs(np.array([bridge, euler]) - math.sqrt(variance + k * eps)))
        np.testing.assert_allclose([rates.bridge[i], rates.euler[i]], worst, rtol=1e-5)


def test_tokens_and_gaussians_agree(result):
    """The same law in two pictures: as a mixture of equal components, on tokens, and as a Gaussian."""
    law = af.GaussianMixture([0.5, 0.5], [[0.0], [0.0]], [[[1.0]], [[1.0]]])
    # As many tokens as the mixture on the line has: what was compiled for that serves again.
    count = len(heat._tokens(heat.laws()["mixture on the line"], SPEC.nodes).points)
    nodes = next(n for n in range(count, 2 * count) if np.sum(np.linspace(-8.5, 8.5, n) ** 2 / 2 < -math.log(heat._LIGHT)) == count)
    tokens = heat.measure("N(0, 1)", law, SPEC.t1, (2,), nodes)
    np.testing.assert_allclose(tokens.bridge, result.rates[0].bridge[:1], rtol=1e-6)
    np.testing.assert_allclose(tokens.one_step, result.rates[0].one_step[:1], rtol=1e-6)
    assert tokens.coefficient == pytest.approx(1 / 8, rel=1e-9)


def test_the_exact_flow_keeps_quantiles():
    law = heat.laws()["mixture on the line"]
    tokens = heat._tokens(law, SPEC.nodes)
    end = heat._moved(heat._moved(tokens, law, 0.125), af.heat_flow(law, 0.125), 0.125).points[:, 0]
    below = lambda x, t: (norm.cdf(x, -2, math.sqrt(1 + t)) + norm.cdf(x, 2, math.sqrt(1 + t))) / 2  # noqa: E731
    np.testing.assert_allclose(below(end, 0.25), below(tokens.points[:, 0], 0.0), atol=1e-9)


def test_the_limit_of_one_step_by_differences(result):
    """c is 1/(8 s^3) for N(0, s^2); for the mixture the derivatives are differences of its logarithm here."""
    assert [rates.coefficient for rates in result.rates[:2]] == pytest.approx([1 / 8, 1.0], rel=1e-12)
    x = np.linspace(-11, 11, 4401)
    density = (norm.pdf(x, -2) + norm.pdf(x, 2)) / 2
    score = np.gradient(np.log(density), x)
    field = np.gradient(np.gradient(score, x) / 8 + score**2 / 16, x)
    assert result.rates[2].coefficient == pytest.approx(math.sqrt(np.sum(density * field**2) * (x[1] - x[0])), rel=1e-3)


def test_each_check_can_fail(result):
    first, last = result.rates[0], result.rates[-1]

    def failed(rates: heat.Rates) -> list[str]:
        return [check.name.split(": ")[1] for check in heat.checks(heat.Result(SPEC, [rates])) if not check.ok]

    assert failed(first) == []
    assert failed(dataclasses.replace(first, bridge=first.euler)) == ["order of the bridge"]
    assert failed(dataclasses.replace(first, euler=first.bridge)) == ["order of Euler"]
    assert failed(dataclasses.replace(first, one_step=first.one_step * first.eps)) == [
        r"order of $W_2/\varepsilon$ between Euler and bridge",
        r"$W_2/\varepsilon^2$ between Euler and bridge",
    ]
    assert failed(dataclasses.replace(first, coefficient=2 * first.coefficient)) == [r"$W_2/\varepsilon^2$ between Euler and bridge"]
    assert failed(dataclasses.replace(last, aliasing=last.bridge.min())) == ["aliasing of the tokens over the smallest error"]


def test_the_estimate_of_aliasing_says_when_tokens_are_too_few():
    law = heat.laws()["mixture in the plane"]
    estimates = [heat._aliasing(law, heat._tokens(law, nodes), 0.5, 1 / 8) for nodes in (20, SPEC.plane_nodes)]
    assert estimates[0] > 0.01
    assert estimates[1] < 1e-4


def test_the_figures(result, tmp_path):
    rates, one_step = heat.figure(result).values()
    assert [ax.get_title() for ax in rates.axes] == list(heat.laws())
    np.testing.assert_array_equal(rates.axes[0].lines[1].get_xydata(), np.stack([result.rates[0].eps, result.rates[0].bridge], axis=1))
    assert len(one_step.axes[0].lines) == 8
    for name, figure in heat.figure(result).items():
        figure.savefig(tmp_path / f"{name}.pdf", dpi=50)
        assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.slow
def test_the_last_orders_at_full_size(full):
    for numbers in heat.measured(full).values():
        assert numbers["last order"]["bridge"] == pytest.approx(2, abs=0.03)
        assert numbers["last order"]["euler"] == pytest.approx(1, abs=0.03)
