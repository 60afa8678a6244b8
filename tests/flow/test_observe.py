"""Observables and early stops inside `solve`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af


@pytest.fixture
def mu(key):
    return af.samplers.hemisphere(10, 3, key=key)


@pytest.mark.long
def test_compiled_observables_are_those_of_the_frames(mu):
    observe = {"energy": lambda m: af.energy(m, 2.0), "mean": lambda m: m.mean}
    path = af.solve(af.simple_attention(2.0, 3), mu, t1=2.0, save_at=7, observe=observe)
    np.testing.assert_array_equal(path.observed["energy"].ts, path.ts)
    np.testing.assert_allclose(path.observed["energy"].values, [float(af.energy(m, 2.0)) for m in path], rtol=1e-14)
    np.testing.assert_allclose(path.observed["mean"].values, np.asarray(path.states).mean(axis=1), atol=1e-15)


@pytest.mark.long
def test_host_observables_are_called_at_every_frame(mu):
    seen = []
    observe = {"count": af.OnHost(lambda m: seen.append(m) or len(seen)), "energy": lambda m: af.energy(m, 2.0)}
    path = af.solve(af.simple_attention(2.0, 3), mu, t1=2.0, save_at=7, observe=observe)
    assert len(seen) == len(path) == 7
    np.testing.assert_array_equal(path.observed["count"].values, np.arange(1, 8))
    np.testing.assert_array_equal(path.observed["count"].ts, path.ts)
    for m, frame in zip(seen, path):
        np.testing.assert_array_equal(m.points, frame.points)
    # Without the states too, and where a run stops on the way.
    seen.clear()
    short = af.solve(
        af.simple_attention(2.0, 3), mu, t1=2.0, save_at=7, observe=observe, keep_states=False, until=lambda m, rate, t: t > 1.0
    )
    assert len(short) == 1
    assert len(seen) == len(short.observed["count"].values) == len(short.observed["energy"].values) > 3
    np.testing.assert_array_equal(seen[-1].points, short.final.points)


@pytest.mark.long
def test_tokens_of_a_hemisphere_reach_consensus(mu):
    path = af.solve(af.simple_attention(1.0, 3), mu, t1=1000.0, until=af.Consensus(1e-3))
    assert path.status.kind == "consensus"
    assert 1 < path.status.time < 50
    spread = lambda m: float(jnp.linalg.norm(m.points - m.mean[None], axis=1).max())  # noqa: E731
    assert spread(path.final) <= 1e-3
    assert float(path.ts[-1]) == path.status.time
    # It stops at the first step that is there: a little earlier the tokens are not together yet.
    before = af.solve(af.simple_attention(1.0, 3), mu, t1=0.8 * path.status.time, save_at=1)
    assert spread(before.final) > 1e-3


def test_a_gaussian_becomes_steady():
    path = af.solve(af.simple_attention(-1.0, 2), af.Gaussian([0.0, 0.0], np.eye(2)), t1=1e6, until=af.Steady(1e-4))
    assert path.status.kind == "steady"
    # S^-1 = 1 + 2t, so |S'| = 2 / (1 + 2t)^2 falls to 1e-4 at t = (sqrt(2e4) - 1) / 2.
    assert path.status.time == pytest.approx((np.sqrt(2e4) - 1) / 2, rel=0.3)
    assert path.status.time >= (np.sqrt(2e4) - 1) / 2 * (1 - 1e-6)


def test_a_condition_of_ones_own(mu):
    path = af.solve(af.simple_attention(1.0, 3), mu, t1=10.0, save_at=101, until=lambda m, rate, t: t > 2.0)
    assert path.status.kind == "stopped"
    assert 2.0 < path.status.time < 4.0
    np.testing.assert_allclose(path.ts[:20], np.linspace(0, 10, 101)[:20])


def test_bad_input_is_named(mu):
    law = af.simple_attention(1.0, 3)
    with pytest.raises(TypeError, match=r"observe\['energy'\] must be a function of the measure, got 3"):
        af.solve(law, mu, t1=1.0, observe={"energy": 3})
    with pytest.raises(TypeError, match=r"field must be a law or a field, with a method at\(mu, t, sums\), got"):
        af.solve(1.0, mu, t1=1.0)
    with pytest.raises(ValueError, match="speed must be positive, got 0"):
        af.Steady(0.0)
    with pytest.raises(ValueError, match="radius must be positive, got -1"):
        af.Consensus(-1.0)
    with pytest.raises(ValueError, match="inside jit and grad solve has no host observables"):
        jax.jit(lambda x: af.solve(law, mu.with_state(x), t1=1.0, until=af.Steady()).final.points)(mu.points)
