"""Nearby laws and supports at a small size: against closed forms, and that each check can fail."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af
from attnflow.studies import support

SPEC = support.FAST


@pytest.fixture(scope="module")
def result(small) -> support.Result:
    """Softmax on Gaussians, and the support under softmax; a support that is broken is made up."""
    sharp = support._support("sharp softmax", support.laws()["sharp softmax"], SPEC)
    broken = dataclasses.replace(sharp, law="unnormalized", tokens=2 * sharp.bound, radius=2 * sharp.radius)
    return support.Result(SPEC, [found for found in small.stability if found.start == "Gaussian"], [sharp, broken])


def test_the_constant_of_gaussians(result):
    """`m' = (1 + a S) m`, `S' = 2 a S^2`: S(t) = S / (1 - 2 a S t), m(t) = m e^t / (1 - 2 a S t)^(1/2)."""

    def end(m, s, a=0.5, t=SPEC.t1):
        shrink = 1 - 2 * a * s**2 * t
        return np.array([m * np.exp(t) / shrink**0.5, s / shrink**0.5])

    h = min(SPEC.shifts)
    starts = np.array([[0.3, 0.5], [0.3 + h, 0.5 * (1 + h)]])
    exact = np.linalg.norm(end(*starts[0]) - end(*starts[1])) / np.linalg.norm(starts[0] - starts[1])
    found = result.stability[0]
    assert found.gaussian == pytest.approx(exact, rel=1e-5)
    assert found.distances[-1, -1, 1] / found.distances[-1, 0, 1] == pytest.approx(exact, rel=0.01)
    assert (found.constant >= found.distances[-1, -1] / found.distances[-1, 0]).all()


def test_the_first_distance_on_the_line():
    """Against quantiles; for laws one of which is the other moved it is the shift."""
    axes = [af.Interval(-4, 4, 160)]
    mu, nu = (af.Grid.from_density(lambda x, s=s: support.bump(x, s), axes) for s in (0.0, 0.3))
    quantiles = [np.asarray(law.quantiles(4000).points) for law in (mu, nu)]
    assert support.wasserstein1(mu, nu) == pytest.approx(np.abs(quantiles[0] - quantiles[1]).mean(), rel=1e-4)
    moved = mu.with_state(jnp.roll(mu.mass, 7))
    assert support.wasserstein1(mu, moved) == pytest.approx(7 * 8 / 160, rel=1e-12)


def test_supports(result):
    sharp, _ = result.supports
    assert (sharp.tokens <= sharp.bound * (1 + 1e-7)).all()
    assert sharp.radius[0, 0] == pytest.approx(1.5, abs=0.1)
    # Finer cells bring the radius closer to that of tokens.
    assert sharp.tokens[-1] < sharp.radius[1, -1] < sharp.radius[0, -1]


def test_each_check_can_fail(result):
    stable, (sharp, broken) = result.stability[0], result.supports
    sharp, broken = (dataclasses.replace(s, radius=np.stack([s.tokens, s.tokens])) for s in (sharp, broken))
    good = dataclasses.replace(result, supports=[sharp, broken])

    def failed(**change):
        return [check.name for check in support.checks(dataclasses.replace(good, **change)) if not check.ok]

    assert failed() == []
    root = dataclasses.replace(stable, distances=np.concatenate([stable.distances[:, :1], stable.distances[:, 1:] ** 0.5], axis=1))
    assert failed(stability=[root]) == [
        "softmax, Gaussian: power of $W_1$ at the end in $W_1$ at the start",
        "softmax, Gaussian: power of $W_2$ at the end in $W_2$ at the start",
        "softmax: $W_2$ at the end over $W_2$ at the start, of Gaussians",
    ]
    wide = dataclasses.replace(sharp, radius=2 * sharp.radius)
    assert failed(supports=[wide]) == [
        "sharp softmax: radius at the end, grids in the limit over tokens",
        "sharp softmax: largest radius over the bound",
    ]
    kept = dataclasses.replace(broken, bound=broken.tokens)
    assert failed(supports=[kept]) == ["unnormalized: bound over radius of tokens at the end"]


def test_the_figure(result, tmp_path):
    page = support.figure(result)
    np.testing.assert_array_equal(page.axes[0].lines[0].get_ydata(), result.stability[0].distances[:, -1, 1])
    page.savefig(tmp_path / "support.pdf", dpi=50)
    assert len(support.measured(result)["support"]) == 2
