"""Low temperature at a small size: closed forms, which projector it is, and that each check can fail."""

import dataclasses

import numpy as np
import pytest

import attnflow as af
from attnflow.studies import cold

SPEC = dataclasses.replace(cold.FAST, tokens=(16, 512))


@pytest.fixture(scope="module")
def result() -> cold.Result:
    """The circle, and tokens on S^2."""
    return cold.run(SPEC)


def test_every_check_holds(result):
    assert [check for check in cold.checks(result) if not check.ok] == []


def test_the_uniform_law_is_known(result):
    """`1 - I_1(b) / I_0(b)`, and 1/2 in the limit."""
    uniform, curved = result.laplace
    exact = 1 - np.asarray(af.theory.uniform_mean(np.array(SPEC.betas)[:, None] * [[1.0, 0.0]]))[:, 0]
    np.testing.assert_allclose(uniform.error, exact, rtol=1e-9)
    assert (uniform.constant, uniform.limit) == pytest.approx((0.5, 0.5), rel=1e-3)
    # |grad log (1 + cos^2 a)| = |sin 2a| / (1 + cos^2 a) is largest where cos^2 a = 1/3: 1/sqrt(2).
    assert curved.constant == pytest.approx(np.hypot(0.5, 0.5**0.5), rel=1e-3)
    assert curved.limit == pytest.approx(curved.constant, rel=5e-3)


def test_grid_and_tokens_leave_the_limit_alike(result):
    grid, _, many = (flow.error for flow in result.flows)
    np.testing.assert_allclose(many[:2] / grid[:2], 1, atol=0.05)
    assert result.flows[0].fit.slope == pytest.approx(-1, abs=0.15)


def test_the_projector_is_the_spectral_one(result):
    end = result.concentration
    assert end.straight < 1e-6
    assert end.oblique[-1] < 0.01 < 0.1 < end.apart
    assert end.orthogonal[-1] == pytest.approx(end.apart, rel=0.05)
    assert end.cold[60.0].min() < 0.25 < end.cold[2.0].min()


def test_each_check_can_fail(result):
    end = result.concentration
    decay = dataclasses.replace(
        end, oblique=0.7 * np.exp(-1.5 * end.ts), orthogonal=np.full_like(end.ts, end.apart), cold={20.0: end.ts + 1, 90.0: end.ts + 0.3}
    )
    one, few, many = result.flows
    few, many = dataclasses.replace(few, error=np.full(4, 0.1)), dataclasses.replace(many, error=1 / one.betas)
    exact = [dataclasses.replace(one, error=1 / one.betas), few, many]
    good = dataclasses.replace(result, flows=exact, concentration=decay)

    def failed(**change):
        return [check.name.split(": ")[1] for check in cold.checks(dataclasses.replace(good, **change)) if not check.ok]

    assert failed() == []
    law = result.laplace[0]
    assert failed(laplace=[dataclasses.replace(law, error=law.error**0.5)]) == [
        r"rate of $\lvert m - x \rvert$ in $\beta$",
        r"limit of $\beta \lvert m - x \rvert$",
    ]
    assert failed(flows=[dataclasses.replace(exact[0], error=exact[0].betas ** -0.5), *exact[1:]]) == [
        r"rate of $W_2$ at $t_1$ in $\beta$",
        r"$W_2$ at the smallest $\beta$, most tokens over grid",
        r"$W_2$ at the largest $\beta$, grid over fewest tokens",
    ]
    swapped = dataclasses.replace(decay, oblique=decay.orthogonal, orthogonal=decay.oblique, straight=1.0, cold={20.0: end.ts + 1})
    assert failed(concentration=swapped) == [
        r"tokens of the limit flow against $e^{tM} x / \lvert e^{tM} x \rvert$",
        "$W_2$ to the spectral push-forward at the end",
        "$W_2$ to the orthogonal one, over the distance of the two",
        "rate of approach in $t$",
        r"least $W_2$ over $t$, largest over smallest $\beta$",
    ]


def test_the_figure(result, tmp_path):
    page = cold.figure(result)
    _, middle, right = page.axes
    np.testing.assert_array_equal(middle.lines[0].get_ydata(), result.flows[0].error)
    assert len(right.get_legend().get_texts()) == 4
    page.savefig(tmp_path / "cold.pdf", dpi=50)
    assert len(cold.measured(result)["flow"]) == 3
