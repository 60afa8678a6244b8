"""Phase diagrams at a small size: where they cross, the curve, and that each check can fail."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af
from attnflow.studies import phase

SPEC = phase.FAST


@pytest.fixture(scope="module")
def result(small) -> phase.Result:
    """Both laws in a large dimension; the diagram of random values is made up."""
    return dataclasses.replace(small, random=[dataclasses.replace(small.diagrams[0], name="GOE")])


def test_the_transition_follows_the_curve(result):
    assert [check.name for check in phase.checks(result) if not check.ok] == []
    assert result.orthonormal < 1e-4


def test_the_curve_at_beta_zero_is_known(result):
    """`g = (e^{2t} - 1) / (e^{2t} + n - 1) = 1 - delta` at `e^{2t} = 1 + n (1/delta - 1)`."""
    exact = 0.5 * np.log(1 + 6 * (1 / SPEC.delta - 1))
    assert result.curves["softmax"][0] == pytest.approx(exact, abs=1e-4)


def test_crossing():
    rows = np.array([[0.0, 0.25, 0.75, 1.0], [0.0, 0.1, 0.2, 0.3], [0.6, 0.0, 0.0, 1.0]])
    np.testing.assert_array_equal(phase.crossing(np.arange(4.0), rows, 0.5), [1.5, np.nan, 0.0])


def test_pairs_that_are_together():
    angles = jnp.array([0.0, 0.01, 1.0, 1.01, 1.02])
    mu = af.Particles(jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1), space=af.Sphere())
    assert float(phase.together(mu, 1e-3)) == pytest.approx(8 / 20)


def test_random_weights_can_be_swept():
    make = functools.partial(phase.random_member, n=4, dim=2, weights="resampled", layers=2)
    found = af.sweep(make, {"beta": [1.0]}, 2, 1.5, save_at=2, observe={"mean": lambda mu: mu.mean}, rtol=1e-5)
    field, mu = make(jax.random.key(1), jnp.asarray(1.0))
    alone = af.solve(field, mu, 1.5, save_at=2, rtol=1e-5).final.mean
    np.testing.assert_allclose(found["mean"][0, 1, -1], alone, atol=1e-4)


def test_each_check_can_fail(result):
    def failed(**change):
        return [check.name.split(":")[0] for check in phase.checks(dataclasses.replace(result, **change)) if not check.ok]

    late = {kind: 2 * times for kind, times in result.curves.items()}
    assert failed(curves=late) == ["SA, $d = 48$", "USA, $d = 48$"]
    never = [dataclasses.replace(diagram, share=0 * diagram.share) for diagram in result.diagrams]
    assert failed(diagrams=never) == ["SA, $d = 48$", "USA, $d = 48$"]
    assert failed(orthonormal=0.1) == ["orthonormal tokens"]


def test_the_figure(result, tmp_path):
    page = phase.figure(result)
    assert len(page.axes) == 4
    np.testing.assert_array_equal(page.axes[1].lines[0].get_xdata(), result.curves["unnormalized"])
    page.savefig(tmp_path / "phase.pdf", dpi=50)
    assert set(phase.measured(result)["transitions"]) == {"SA, d = 48", "USA, d = 48", "GOE, d = 48"}
