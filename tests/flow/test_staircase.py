"""Mergers in physical time against quadrature, against `solve`, and against the exponents of the theory."""

import itertools

import jax
import numpy as np
import pytest
from scipy.integrate import quad

import attnflow as af
from attnflow.flow.mergers import until_merger


def circle(*angles, weights=None):
    angles = np.array(angles)
    return af.Particles(np.stack([np.cos(angles), np.sin(angles)], axis=1), weights, space=af.Sphere())


@pytest.mark.parametrize("beta", [4.0, 60.0, 2000.0])
@pytest.mark.parametrize("kind", ["softmax", "unnormalized"])
@pytest.mark.cases
def test_two_tokens_meet_when_the_integral_says(beta, kind):
    angle, radius, (a, m) = 1.2, 1e-5, (0.3, 0.7)
    normalize = af.Softmax() if kind == "softmax" else af.Unnormalized(-3.0)
    found = af.staircase(af.simple_attention(beta, 2, normalize), circle(0, angle, weights=np.array([a, m])), radius=radius)

    def slowness(u):
        # One over the rate of the angle, without the factor e^{beta (1 - cos angle)}, or e^{3 - beta cos angle}.
        e = np.exp(-beta * (1 - np.cos(u)))
        pull = m / (a + m * e) + a / (m + a * e) if kind == "softmax" else a + m
        return np.exp(beta * (np.cos(angle) - np.cos(u))) / (pull * np.sin(u))

    edges = np.geomspace(radius, angle, 200)
    total = sum(quad(slowness, low, high, epsrel=1e-11)[0] for low, high in itertools.pairwise(edges))
    exact = np.log(total) + (beta * (1 - np.cos(angle)) if kind == "softmax" else 3.0 - beta * np.cos(angle))
    assert found.ending == "one cluster"
    assert abs(found.log_times[0] - exact) < 1.5e-3
    assert abs(found.log_times[0] - exact) < 3 * found.errors[0] + 1e-6


@pytest.mark.long
def test_five_tokens_merge_like_those_that_solve_moves():
    beta, radius = 4.0, 1e-3
    mu = circle(0.0, 0.9, 2.1, 3.3, 4.9)
    law = af.simple_attention(beta, 2)
    found = af.staircase(law, mu, radius=radius)
    ts = np.linspace(0, 50, 5001)
    states = np.asarray(af.solve(law, mu, t1=50.0, save_at=ts, rtol=1e-10, atol=1e-12).states)
    first = found.pairs[0]
    gap = np.linalg.norm(states[:, first[0]] - states[:, first[1]], axis=1)
    met = ts[np.argmax(gap <= radius)]
    assert np.exp(found.log_times[0]) == pytest.approx(met, abs=0.02)
    # The energy of the record is that of the path.
    record = np.interp(np.log(20.0), found.log_t, found.energy)
    at = np.argmin(np.abs(ts - 20))
    exact = 2 * beta * float(af.energy(mu.with_state(jax.numpy.asarray(states[at])), beta, log_scale=-beta))
    assert record == pytest.approx(exact, abs=2e-3)


@pytest.mark.long
def test_closest_pairs_merge_first_and_at_the_time_of_the_theory():
    beta, mu = 1000.0, circle(0.0, 0.9, 2.1, 3.3, 4.9)
    found = af.staircase(af.simple_attention(beta, 2), mu)
    assert found.pairs.tolist() == [[0, 1], [2, 3], [0, 4], [0, 2]]
    np.testing.assert_array_equal(found.labels, [[0, 1, 2, 3, 4], [0, 0, 2, 3, 4], [0, 0, 2, 2, 4], [0, 0, 2, 2, 0], [0] * 5])
    assert len(found.plateaus) == 5
    assert found.count[-1] == 2
    np.testing.assert_array_equal([len(p.points) for p in found.plateaus], [5, 4, 3, 2, 1])
    for k in range(4):
        before = found.plateaus[k]
        cosines = np.asarray(before.points @ before.points.T) - 2 * np.eye(len(before.points))
        assert found.cosines[k] == pytest.approx(cosines.max(), abs=1e-9)
        masses = [float(np.mean(found.labels[k] == found.labels[k][token])) for token in found.pairs[k]]
        expected = float(af.theory.merger_log_time(found.cosines[k], beta, (masses[0], masses[1])))
        assert found.log_times[k] == pytest.approx(expected, abs=0.05)
    # A staircase: energy climbs, and on each plateau it is the sum of squared masses.
    assert np.all(np.diff(found.energy) > -1e-12)
    np.testing.assert_allclose(found.energy[-1], 1, atol=1e-9)
    plateau = np.exp(2 * np.asarray(found.plateaus[2].log_weights)).sum()
    assert np.abs(found.energy - plateau).min() < 1e-12


@pytest.mark.long
def test_speed_and_end_of_time():
    mu = circle(0.0, 1.0, 3.0)
    law = af.simple_attention(50.0, 2)
    whole = af.staircase(law, mu)
    fast = af.staircase(af.Attention(law.logit, 3.0 * np.eye(2)), mu)
    np.testing.assert_allclose(fast.log_times, whole.log_times - np.log(3), atol=1e-9)
    cut = af.staircase(law, mu, log_t1=0.5 * (whole.log_times[0] + whole.log_times[1]))
    assert cut.ending == "t1"
    np.testing.assert_allclose(cut.log_times, whole.log_times[:1], atol=1e-12)


@pytest.mark.long
def test_pairs_that_meet_together_are_two_mergers_and_tokens_that_start_together_none():
    # A mirror image: the pairs at 0 and at pi close at the same time.
    mirrored = af.staircase(af.simple_attention(200.0, 2), circle(-0.2, 0.2, np.pi - 0.2, np.pi + 0.2), log_t1=20.0)
    assert {tuple(pair) for pair in mirrored.pairs.tolist()} == {(0, 1), (2, 3)}
    assert mirrored.log_times[0] == pytest.approx(mirrored.log_times[1], abs=1e-3)
    double = af.staircase(af.simple_attention(50.0, 2), circle(0.0, 0.0, 1.0))
    assert len(double.log_times) == 1
    np.testing.assert_array_equal(double.labels, [[0, 0, 2], [0, 0, 0]])
    np.testing.assert_allclose(np.exp(double.plateaus[0].log_weights), [2 / 3, 1 / 3], rtol=1e-14)
    weighted = af.staircase(af.simple_attention(50.0, 2), circle(0.0, 1.0, weights=np.array([2.0, 1.0]) / 3))
    np.testing.assert_allclose(double.log_times, weighted.log_times, atol=1e-9)


@pytest.mark.long
def test_opposite_tokens_rest_in_a_saddle():
    found = af.staircase(af.simple_attention(5.0, 3), af.Particles(np.array([[1.0, 0, 0], [-1.0, 0, 0]]), space=af.Sphere()))
    assert found.ending == "saddle"
    assert len(found.log_times) == 0


def test_other_sharpness_does_not_compile_again():
    mu = circle(0.0, 0.5, 2.0)
    af.staircase(af.simple_attention(20.0, 2), mu)
    size = until_merger._cache_size()
    af.staircase(af.simple_attention(33.0, 2), circle(0.1, 0.7, 2.5))
    assert until_merger._cache_size() == size


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"radius": 0.0}, "radius must be positive"),
        ({"radius": 1.0}, "below 0.1"),
        ({"log_t1": float("nan")}, "log_t1"),
        ({"law": af.Attention(af.dot_product(np.eye(2), np.eye(2)), np.diag([1.0, 2.0]))}, "multiple of I"),
        ({"law": af.Attention(af.dot_product(np.eye(2), np.eye(2)), -np.eye(2))}, "multiple of I"),
        ({"law": af.simple_attention(1.0, 3)}, "acts on R"),
    ],
)
def test_bad_input(change, words):
    given = {"law": af.simple_attention(1.0, 2), "mu": circle(0.0, 1.0)} | change
    with pytest.raises(ValueError, match=words) as caught:
        af.staircase(**given)
    assert "\n" not in str(caught.value)


def test_other_laws_and_measures_are_refused():
    with pytest.raises(TypeError, match="simple_attention"):
        af.staircase(af.simple_attention(1.0, 2, af.Sinkhorn()), circle(0.0, 1.0))
    with pytest.raises(TypeError, match="tokens on the sphere"):
        af.staircase(af.simple_attention(1.0, 2), af.Particles(np.eye(2)))


def test_single_precision_gives_the_same_stairs():
    """Tokens of single precision, and JAX without double precision, are computed in double."""
    angles = np.array([0.0, 0.5, 1.4, 2.5])
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    exact = points.astype(float) / np.linalg.norm(points.astype(float), axis=1)[:, None]
    expected = af.staircase(af.simple_attention(40.0, 2), af.Particles(exact, space=af.Sphere()))
    found = [af.staircase(af.simple_attention(40.0, 2), af.Particles(points, space=af.Sphere()))]
    with jax.enable_x64(False):
        found.append(af.staircase(af.simple_attention(40.0, 2), af.Particles(points, space=af.Sphere())))
    assert len(expected.log_times) == 3
    for run in found:
        np.testing.assert_allclose(run.log_times, expected.log_times, atol=1e-4)
        np.testing.assert_array_equal(run.pairs, expected.pairs)
        assert run.plateaus[0].points.dtype == np.float32
