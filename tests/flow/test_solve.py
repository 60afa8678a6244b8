"""The solver itself: frames, status, segments, no retrace, and one clear error for each bad input."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af

TRACES = []


class Counting(eqx.Module):
    """A law that notes each time it is traced."""

    law: af.Attention | af.MultiHead

    def at(self, mu, t=0.0, sums=None):
        TRACES.append(1)
        return self.law.at(mu, t, sums)


def law(beta=1.0):
    return af.simple_attention(beta, 3)


@pytest.mark.long
def test_frames_are_where_they_were_asked_for(key):
    mu = af.samplers.sphere(5, 3, key=key)
    np.testing.assert_allclose(af.solve(law(), mu, t1=2.0, save_at=5).ts, [0, 0.5, 1, 1.5, 2])
    np.testing.assert_allclose(af.solve(law(), mu, t1=2.0, t0=1.0, save_at=3).ts, [1, 1.5, 2])
    np.testing.assert_allclose(af.solve(law(), mu, t1=2.0, save_at=1).ts, [2])
    np.testing.assert_allclose(af.solve(law(), mu, t1=2.0, save_at=[0.0, 0.3, 1.7]).ts, [0, 0.3, 1.7, 2])
    np.testing.assert_allclose(af.solve(law(), mu, t1=2.0, save_at=np.array([0.3, 2.0])).ts, [0.3, 2])
    np.testing.assert_array_equal(af.solve(law(), mu, t1=2.0, save_at=[0.3, np.nextafter(2.0, 1)]).ts, [0.3, 2])


@pytest.mark.long
def test_time_may_end_at_zero(key):
    """An autonomous flow does not know when it begins."""
    mu = af.samplers.sphere(5, 3, key=key)
    before, after = (af.solve(law(), mu, t1=t0 + 2.0, t0=t0, save_at=5) for t0 in (-2.0, 0.0))
    assert before.status.kind == "reached"
    assert before.stats["accepted_steps"] == after.stats["accepted_steps"]
    np.testing.assert_allclose(before.ts, [-2, -1.5, -1, -0.5, 0])
    np.testing.assert_allclose(before.states, after.states, atol=1e-12)


def test_frames_do_not_depend_on_how_they_are_grouped(key):
    mu = af.samplers.sphere(7, 3, key=key)
    fine = af.solve(law(4.0), mu, t1=4.0, save_at=41, rtol=1e-11, atol=1e-12)
    coarse = af.solve(law(4.0), mu, t1=4.0, save_at=[1.0, 2.0, 4.0], rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(fine.states[jnp.array([10, 20, 40])], coarse.states, atol=1e-8)


@pytest.mark.long
def test_fixed_steps_do_not_see_the_frames(key):
    mu = af.samplers.sphere(200, 3, key=key)
    steps = {"t1": 1.05, "step": 0.1, "solver": diffrax.Heun()}
    few, many = (af.solve(law(), mu, save_at=save_at, **steps) for save_at in ([0.5, 0.55], 40))
    assert few.stats["accepted_steps"] == many.stats["accepted_steps"] == 11
    np.testing.assert_allclose(few.final.points, many.final.points, atol=1e-15)
    np.testing.assert_allclose(many.ts, np.linspace(0, 1.05, 40))
    np.testing.assert_allclose(few.ts, [0.5, 0.55, 1.05])
    single = jax.jit(lambda x: af.solve(law(), mu.with_state(x), save_at=3, **steps).final.points)(mu.points)
    np.testing.assert_allclose(single, many.final.points, atol=1e-14)


@pytest.mark.long
def test_a_path_is_a_sequence_of_measures(key):
    mu = af.Particles(af.samplers.sphere(6, 3, key=key).points, weights=np.arange(1.0, 7.0), space=af.Sphere())
    path = af.solve(law(), mu, t1=1.0, save_at=4)
    assert len(path) == len(list(path)) == 4
    np.testing.assert_array_equal(path[0].points, mu.points)
    np.testing.assert_array_equal(path[-1].points, path.final.points)
    np.testing.assert_array_equal(path.final.weights, mu.weights)
    assert isinstance(path.final.space, af.Sphere)
    assert "4 frames of Particles" in repr(path)
    with pytest.raises(IndexError, match="the path has 4 frames, got index 4"):
        path[4]


@pytest.mark.long
def test_xarray_has_named_axes_and_how_it_ended(key):
    mu = af.Particles(np.eye(3), weights=[1, 2, 3], order=[0, -0.5, 7])
    data = af.solve(law(), mu, t1=1.0, save_at=4).to_xarray()
    assert data["points"].dims == ("time", "token", "coordinate")
    assert set(data) == {"points", "weights", "order"}
    assert data.attrs["status"] == "reached"
    np.testing.assert_allclose(data["points"].sel(time=0.0), np.eye(3))
    sinkhorn = af.solve(af.simple_attention(1.0, 3, af.Sinkhorn()), mu, t1=1.0, save_at=4).to_xarray()
    assert sinkhorn.attrs["sinkhorn.error"] < 1e-10
    gaussian = af.solve(law(), af.Gaussian(np.ones(3), 0.01 * np.eye(3)), t1=1.0, save_at=4).to_xarray()
    assert gaussian["cov"].dims == ("time", "coordinate", "coordinate_")


def test_tokens_that_blow_up():
    """USA on R: x' = x e^{x^2} for one token; from x0 the time is (E1(x0^2)) / 2 with E1 the exponential integral."""
    from scipy.special import exp1

    path = af.solve(af.simple_attention(1.0, 1, af.Unnormalized()), af.Particles([[0.8]]), t1=5.0, rtol=1e-10, atol=1e-10)
    assert path.status.kind == "blow-up"
    assert path.status.time == pytest.approx(exp1(0.64) / 2, rel=1e-8)
    assert np.isfinite(path.states).all()


def test_fixed_steps_into_a_blow_up_are_named_too():
    path = af.solve(
        af.simple_attention(1.0, 1, af.Unnormalized()),
        af.Particles([[0.8]]),
        t1=5.0,
        step=0.01,
        solver=diffrax.Heun(),
        save_at=51,
    )
    assert path.status.kind == "blow-up"
    assert np.isfinite(path.states).all()
    assert 0 < path.status.time < 0.4


class Jump(eqx.Module):
    """A sliding mode: the velocity points at the origin from both sides, and never gets smaller."""

    def at(self, mu, t=0.0, sums=None):
        return lambda x: -jnp.where(x >= 0, 1.0, -1.0)


@pytest.mark.long
def test_a_jump_is_not_called_a_blow_up():
    path = af.solve(Jump(), af.Particles([[0.5]]), t1=2.0, rtol=1e-12, atol=1e-14)
    assert path.status.kind in ("stalled", "budget")
    assert path.status.time == pytest.approx(0.5, abs=1e-6)


@pytest.mark.long
def test_a_spent_budget_keeps_what_it_has(key):
    mu = af.samplers.sphere(5, 3, key=key)
    path = af.solve(law(), mu, t1=100.0, step=0.01, solver=diffrax.Euler(), max_steps=120, save_at=101)
    assert path.status.kind == "budget"
    assert float(path.ts[-1]) == path.status.time == pytest.approx(1.2)
    np.testing.assert_allclose(path.ts[:2], [0, 1])


def test_a_velocity_that_is_infinite_at_the_start_is_refused(key):
    with pytest.raises(ValueError, match=r"velocity at t0 must be finite, got (inf|nan).*log_scale"):
        af.solve(af.simple_attention(1e6, 3, af.Unnormalized()), af.samplers.sphere(5, 3, key=key), t1=1.0)


def test_traced_runs_that_do_not_arrive_say_why():
    """A batch of tokens under x' = x e^{x^2}, of which some blow up before t1 at the time (E1(x0^2)) / 2; with too few steps, a budget."""
    from scipy.special import exp1

    def run(x, **options):
        return af.solve(af.simple_attention(1.0, 1, af.Unnormalized()), af.Particles(x[None, None]), t1=0.3, save_at=7, **options)

    starts = jnp.array([0.1, 0.8, 1.2])
    batch = jax.jit(jax.vmap(run))(starts)
    assert batch.status.code.dtype == jnp.int32
    assert batch.status.kind.tolist() == ["reached", "blow-up", "blow-up"]
    assert str(batch.status) == "2 blow-up, 1 reached"
    assert "2 blow-up" in repr(batch)
    np.testing.assert_allclose(batch.status.time, [0.3, exp1(0.64) / 2, exp1(1.44) / 2], rtol=1e-5)
    for i, x in enumerate(starts):
        member, alone = jax.tree.map(lambda leaf, i=i: leaf[i], batch), run(x)
        reached = np.asarray(member.ts) <= float(alone.status.time)
        assert member.status.kind == alone.status.kind
        assert np.isinf(member.states[~reached]).all()
        np.testing.assert_allclose(np.asarray(member.states)[reached], np.asarray(alone.states)[: reached.sum()], rtol=1e-5)
    few = jax.jit(lambda x: run(x, max_steps=2))(jnp.array(0.1))
    assert few.status.kind == "budget"
    assert not np.isnan(few.states).any()
    fixed = jax.jit(lambda x: run(x, step=0.01, solver=diffrax.Heun()))(jnp.array(1.2))
    assert fixed.status.kind == "blow-up"
    assert not np.isnan(fixed.states).any()


def test_a_path_is_a_pytree(key):
    """It goes into `jit` and comes out of it; its words are structure. A status has a code there, and a word outside."""
    mu = af.samplers.sphere(4, 3, key=key)
    path = af.solve(law(), mu, t1=1.0, save_at=3, observe={"mean": lambda m: m.mean})
    same = jax.jit(lambda p: p)(path)
    assert (same.stats["solver"], same.status.kind, str(same.status)) == ("Tsit5", "reached", str(path.status))
    np.testing.assert_array_equal(same.final.points, path.final.points)
    np.testing.assert_array_equal(same.observed["mean"].values, path.observed["mean"].values)
    assert jax.jit(lambda p: p.status.code)(path) == 0
    with pytest.raises(ValueError, match=r"inside jit a status has no word yet, only status\.code"):
        jax.jit(lambda p: p.status.kind == "reached")(path)
    with pytest.raises(ValueError, match="kind must be 'reached', 'blow-up'"):
        af.Status("gone", 1.0)


@pytest.mark.long
def test_inside_jit_the_numbers_are_the_same(key):
    mu = af.samplers.sphere(6, 3, key=key)
    run = lambda points: af.solve(law(2.0), mu.with_state(points), t1=1.5, save_at=5, rtol=1e-11, atol=1e-12).states  # noqa: E731
    np.testing.assert_allclose(jax.jit(run)(mu.points), run(mu.points), atol=1e-9)


@pytest.mark.parametrize("start", ["particles", "gaussian"])
@pytest.mark.long
def test_no_retrace_when_only_values_change(start, key, rng):
    def once(t1, normalize, rtol, scale):
        Q, K, V = scale * rng.normal(size=(3, 3, 3)) / 10
        mu = af.samplers.sphere(6, 3, key=key) if start == "particles" else af.Gaussian(np.zeros(3), np.eye(3))
        heads = af.MultiHead([af.Attention(af.dot_product(Q, K, 1 + scale), V, normalize), af.simple_attention(0.1 * scale, 3)])
        af.solve(Counting(heads), mu, t1=t1, save_at=11, rtol=rtol)

    once(1.0, af.Sinkhorn(tolerance=1e-8), 1e-5, 1.0)
    TRACES.clear()
    once(1.3, af.Sinkhorn(tolerance=1e-7, max_iterations=500), 1e-6, 1.1)
    assert not TRACES


@pytest.mark.long
def test_all_segments_are_one_program(key):
    mu = af.samplers.sphere(300, 3, key=key)
    counting = Counting(law())
    af.solve(counting, mu, t1=1.0, save_at=3)
    two = len(TRACES)
    TRACES.clear()
    af.solve(counting, mu, t1=1.0, save_at=4, step=0.25, solver=diffrax.Euler())
    TRACES.clear()
    path = af.solve(counting, mu, t1=1.0, save_at=4, step=0.125, solver=diffrax.Euler())
    assert path.stats["segments"] == 3
    assert not TRACES
    assert two > 0


@pytest.mark.long
def test_progress_bar_draws(key, capsys):
    af.solve(law(), af.samplers.sphere(5, 3, key=key), t1=1.0, progress=True)
    out = capsys.readouterr().out
    assert "solve" in out
    assert "t = 1 / 1" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"t1": 0.0}, "t1 must be later than t0, got t0 = 0.0, t1 = 0.0"),
        ({"t1": 1.0, "t0": 2.0}, "t1 must be later than t0, got t0 = 2.0, t1 = 1.0"),
        ({"t1": np.nan}, "t1 must be finite, got nan"),
        ({"t1": 1.0, "save_at": 0}, "save_at must be at least 1, got 0"),
        ({"t1": 1.0, "save_at": [0.5, 0.2]}, r"save_at must be increasing, got 0.5 then 0.2 at \[0\]"),
        (
            {"t1": 1.0, "save_at": [0.5, 1.2]},
            r"save_at must lie in \[t0, t1\] = \[0.0, 1.0\], got times from 0.5 to 1.2",
        ),
        ({"t1": 1.0, "rtol": 0.0}, "rtol must be positive, got 0.0"),
        ({"t1": 1.0, "atol": -1e-9}, "atol must be positive, got -1e-09"),
        ({"t1": 1.0, "step": 0.0}, "step must be positive, got 0.0"),
        ({"t1": 1.0, "max_steps": 0}, "max_steps must be at least 1, got 0"),
    ],
)
def test_bad_input_is_named(key, arguments, message):
    with pytest.raises(ValueError, match=message):
        af.solve(law(), af.samplers.sphere(4, 3, key=key), **arguments)
