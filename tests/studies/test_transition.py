"""The study of the transition of noisy attention at a small size: its checks, that they can fail, and its figure."""

import dataclasses

import numpy as np
import pytest

from attnflow.studies import transition

SPEC = dataclasses.replace(transition.FAST, tokens=500)


@pytest.fixture(scope="module")
def result(small) -> transition.Result:
    """On the circle only; runs are made at full size."""
    runs = transition.Runs(0.79, 0.7905, 0.78, 0.8, 0.801, 1e-6)
    return dataclasses.replace(small, spec=SPEC, runs=runs)


def test_every_check_holds(result):
    assert [check for check in transition.checks(result) if not check.ok] == []
    assert len(transition.checks(result)) == 16


def test_the_critical_beta(result):
    """Extrapolated from 48 and 96 cells."""
    assert result.curvatures[0].critical == pytest.approx(2.44692, abs=1e-3)


def test_a_continuous_transition_and_a_jump(result):
    """Below the critical beta states have less free energy than the uniform density all along; beyond it those that begin at the
    bifurcation have more, and the jump lies between bifurcation and fold."""
    below, _, beyond = result.diagrams
    assert below.jump is None
    assert (below.excess[1:] < 0).all()
    assert (beyond.excess[2:4] > 0).all()
    assert beyond.jump is not None
    assert 1 < beyond.jump[0] < beyond.folds[0, 0]
    assert beyond.jump[1] > beyond.folds[0, 1]


def test_each_check_can_fail(result):
    c, (below, _, beyond), runs = result.curvatures[0], result.diagrams, result.runs
    wrong = dataclasses.replace(
        result,
        curvatures=[dataclasses.replace(c, critical=2.4, growing=1, values=2 * c.values)],
        diagrams=[
            dataclasses.replace(beyond, beta=below.beta),
            dataclasses.replace(
                beyond, growth=beyond.order - 0.9, folds=np.repeat(beyond.folds, 2, axis=0), excess=-np.ones_like(beyond.excess)
            ),
        ],
        runs=transition.Runs(runs.newton, 0.7, 0.7, runs.stable, 0.0, 0.8),
    )
    ok = [check.name for check in transition.checks(wrong) if check.ok]
    assert ok == [rf"$S^{{1}}$, $\beta = {beyond.beta:.4g}$: critical noise"]


def test_the_figure(result):
    other = [dataclasses.replace(d, dim=3) for d in result.diagrams]
    left, middle, right = transition.figure(dataclasses.replace(result, diagrams=result.diagrams + other)).axes
    assert len(left.get_legend().get_texts()) == 5
    assert middle.get_title() == "$S^{2}$"
    np.testing.assert_array_equal(right.lines[1].get_ydata(), result.curvatures[0].values)
