"""Late and long runs, blow-ups at t1, steady states in single precision: against SciPy and closed forms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.special import exp1

import attnflow as af
from attnflow.flow.path import Status
from attnflow.flow.steps.clock import clock, depends_on_time

SINGLE, DOUBLE = np.float32, np.float64
BETA, BUDGET = 2.0, 300


def test_a_clock_keeps_what_single_precision_loses():
    """A million and many tenths: `float32` alone would lose each of them in part."""
    now, tenth = clock(jnp.asarray(0.0), None, jnp.float32).put_behind(jnp.float32(1e6)), jnp.float32(0.1)
    for _ in range(50):
        now = now.put_behind(tenth)
    exact = 1e6 + 50 * float(tenth)
    assert float(now.behind) + float(now.rest) == pytest.approx(exact, abs=1e-6)
    assert float(now.local(jnp.float32(1e6 + 6))) == pytest.approx(1e6 + 6 - exact, abs=1e-6)
    plain = np.float32(1e6)
    for _ in range(50):
        plain = np.float32(plain + np.float32(0.1))
    assert abs(float(plain) - exact) > 0.1


def test_a_clock_is_on_the_right_side_of_a_jump():
    """0.1 + 0.2 > 0.3 in double precision, yet the jump at 0.3 is not passed before its own local time."""
    now = clock(jnp.asarray(0.1), jnp.asarray([0.3]), jnp.float64)
    jump = now.local_jumps[0]
    below = jnp.nextafter(jump, -jnp.inf)
    assert float(now.at(below)) < 0.3 <= float(now.at(jump))


def test_what_depends_on_time_is_found():
    x = jnp.ones(3)
    assert depends_on_time(lambda t, x: x * jnp.cos(t), jnp.asarray(0.0), x)
    assert depends_on_time(lambda t, x: jax.jit(lambda t: 2 * t)(t) + x, jnp.asarray(0.0), x)
    assert not depends_on_time(lambda t, x: 2 * x + 1, jnp.asarray(0.0), x)
    assert not depends_on_time(lambda t, x: (jnp.cos(t), x)[1], jnp.asarray(0.0), x)


def tokens(space, rng, dtype):
    x = rng.normal(size=(5, 3))
    x = x / np.linalg.norm(x, axis=1)[:, None] if space == "sphere" else x
    # Brought to single precision first, so that all runs begin at the same points.
    x = x.astype(SINGLE).astype(dtype)
    return af.Particles(x, space=af.Sphere() if space == "sphere" else af.Euclidean())


def by_scipy(space, x, ts):
    """SA on the sphere, V = I; in R^d V = -I."""
    sign = 1 if space == "sphere" else -1

    def rate(t, flat):
        x = flat.reshape(-1, 3)
        p = np.exp(BETA * x @ x.T)
        v = sign * (p / p.sum(1, keepdims=True)) @ x
        return (v - (v * x).sum(1, keepdims=True) * x if space == "sphere" else v).ravel()

    return solve_ivp(rate, (0, ts[-1]), np.asarray(x, float).ravel(), t_eval=ts, rtol=1e-11, atol=1e-12).y.T.reshape(len(ts), -1, 3)


SPANS = [(SINGLE, 0.0, 5e5), (SINGLE, 0.0, 1e9), (SINGLE, 1e8, 1e8 + 5e4), (SINGLE, -1e8, 0.0), (DOUBLE, 0.0, 1e14), (DOUBLE, 1e12, 2e12)]


@pytest.mark.parametrize(("dtype", "t0", "t1"), SPANS)
@pytest.mark.parametrize("space", ["sphere", pytest.param("flat", marks=pytest.mark.long)])
def test_a_late_or_long_run_moves_like_an_early_one(space, dtype, t0, t1, rng):
    mu = tokens(space, rng, dtype)
    law = af.simple_attention(BETA, 3)
    law = law if space == "sphere" else af.Attention(law.logit, -np.eye(3))
    path = af.solve(law, mu, t1=t1, t0=t0, save_at=[t0 + 0.5, t0 + 2.0, t0 + 4.0], max_steps=BUDGET)
    assert path.status.kind in ("budget", "reached")
    assert path.status.time > t0 + 50
    np.testing.assert_allclose(np.asarray(path.ts, float)[:3] - t0, [0.5, 2, 4], atol=1e-3 if abs(t0) > 1e10 else 1e-6)
    exact = by_scipy(space, mu.points, np.array([0.5, 2, 4]))
    np.testing.assert_allclose(path.states[:3], exact, atol=2e-3 if dtype == SINGLE or t0 > 1e10 else 1e-6)


class Turning(eqx.Module):
    """`x' = w(t) J x`: the plane turns at speed 1e-6 up to t = 1e6, and then at speed 1."""

    factor: float = 1.0

    def at(self, mu, t=0.0, sums=None):
        speed = jnp.where(t < 1e6, 1e-6, 1.0).astype(mu.dtype) * self.factor
        return lambda x: speed * jnp.stack([-x[:, 1], x[:, 0]], axis=1)

    @property
    def jumps(self):
        return jnp.array([1e6])


@pytest.mark.parametrize("traced", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_fast_motion_late_in_single_precision(traced):
    """Steps of a fraction, a million after the segment began: the angle is 1 + 10 in the end."""

    def final(x):
        return af.solve(Turning(), af.Particles(x), t1=1e6 + 10, save_at=1).final.points

    x = jnp.asarray([[1.0, 0.0], [0.0, 2.0]], jnp.float32)
    found = jax.jit(final)(x) if traced else final(x)
    c, s = np.cos(11), np.sin(11)
    np.testing.assert_allclose(found, np.asarray(x) @ np.array([[c, s], [-s, c]]), atol=5e-3)


def test_a_field_that_depends_on_a_late_time_warns():
    x = np.array([[1.0, 0.0], [0.0, 2.0]], SINGLE)
    with pytest.warns(UserWarning, match=r"the field depends on time, and float32 tells times near 1e\+08 apart only to 8"):
        af.solve(Turning(), af.Particles(x), t1=1e8 + 1, t0=1e8, save_at=1)


@pytest.mark.parametrize(("dtype", "gap"), [(SINGLE, 1e-3), (DOUBLE, 1e-9)])
def test_steady_fires_in_either_precision(dtype, gap, rng):
    mu = tokens("sphere", rng, dtype)
    path = af.solve(af.simple_attention(BETA, 3), mu, t1=1e3, save_at=3, until=af.Steady())
    assert path.status.kind == "steady"
    x = np.asarray(path.final.points, float)
    v = by_scipy("sphere", x, np.array([1e-6]))[0] - x
    assert np.abs(v).max() / 1e-6 < (2e-3 if dtype == SINGLE else 2e-6)
    assert (1 - x @ x.T).max() < gap


def test_what_counts_as_steady():
    mu = af.Particles(np.full((2, 2), 100.0))
    rate = jnp.full((2, 2), 5e-5)
    assert af.Steady()(mu, rate, 0.0)
    assert not af.Steady()(mu, 3 * rate, 0.0)
    assert not af.Steady(1e-6)(mu, rate, 0.0)
    loose = af.Steady().fitted(jnp.asarray(1e-6), jnp.asarray(1e-9))
    assert loose(mu, 10 * rate, 0.0)
    assert not loose(mu, 30 * rate, 0.0)


def gaussian(dtype, variance=1.0):
    """S^-1(t) = 1/S - 2t: the blow-up is at 1/(2S) (GT 14)."""
    return af.simple_attention(1.0, 1), af.Gaussian(np.zeros(1, dtype), np.full((1, 1), variance, dtype))


@pytest.mark.parametrize(("dtype", "rtol", "reached"), [(DOUBLE, 1e-7, 1e-3), (SINGLE, 1e-4, 2e-2)])
def test_an_end_at_a_blow_up_is_a_blow_up(dtype, rtol, reached):
    law, mu = gaussian(dtype)
    for early in (0.0, 1e-9):
        path = af.solve(law, mu, t1=0.5 * (1 - early), save_at=3)
        assert path.status.kind == "blow-up"
        assert path.status.time == pytest.approx(0.5, rel=20 * rtol)
        assert str(path.status) == "blow-up at t = 0.5"
    path = af.solve(law, mu, t1=0.5 * (1 - reached), save_at=3)
    assert path.status.kind == "reached"
    assert float(path.final.cov[0, 0]) == pytest.approx(1 / reached, rel=100 * rtol / reached)


def test_the_time_of_a_blow_up_does_not_depend_on_when_it_began():
    law, mu = gaussian(DOUBLE)
    path = af.solve(law, mu, t1=1e6 + 3, t0=1e6, save_at=3)
    assert path.status.kind == "blow-up"
    assert path.status.time - 1e6 == pytest.approx(0.5, rel=1e-6)
    assert str(path.status) == "blow-up at t = 1000000.5"


@pytest.mark.parametrize("early", [0.0, 1e-9])
def test_tokens_that_end_at_a_blow_up(early):
    """x' = x e^{x^2}: the size grows like a root of a logarithm only."""
    blown = exp1(0.64) / 2
    path = af.solve(af.simple_attention(1.0, 1, af.Unnormalized()), af.Particles([[0.8]]), t1=blown * (1 - early), save_at=3)
    assert path.status.kind == "blow-up"
    assert path.status.time == pytest.approx(blown, rel=2e-6)


class Growing(eqx.Module):
    """`x' = c x`, or the plane that turns at speed c."""

    c: float
    turns: bool = eqx.field(static=True, default=False)

    def at(self, mu, t=0.0, sums=None):
        return lambda x: self.c * (jnp.stack([-x[:, 1], x[:, 0]], axis=1) if self.turns else x)


def test_fast_is_not_a_blow_up():
    x = np.array([[1.0, 0.5]])
    path = af.solve(Growing(5.0), af.Particles(x), t1=100.0, save_at=3)
    assert path.status.kind == "reached"
    np.testing.assert_allclose(path.final.points, x * np.exp(500), rtol=1e-3)
    path = af.solve(Growing(1e3, turns=True), af.Particles(x.astype(SINGLE)), t1=10.0, save_at=3)
    assert path.status.kind == "reached"


class Wild(eqx.Module):
    """A velocity that is not finite where the first coordinate is above 0.9."""

    def at(self, mu, t=0.0, sums=None):
        return lambda x: jnp.where(x[:, :1] > 0.9, jnp.nan, jnp.eye(x.shape[1])[:1] / (0.9 - x[:, :1]) ** 3)


def test_nothing_blows_up_on_a_compact_space():
    start = np.array([[np.cos(0.8), np.sin(0.8)]])
    assert af.solve(Wild(), af.Particles(start, space=af.Sphere()), t1=2.0, save_at=3).status.kind == "stalled"
    assert af.Grid.uniform([af.Interval(-1, 1, 8)]).bounded
    assert not af.Particles(start).bounded


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (Status("blow-up", 0.50000006, 5e-7), "blow-up at t = 0.5"),
        (Status("budget", 123456.789, 0.1), "budget at t = 123456.8"),
        (Status("steady", 123456.789, 20.0), "steady at t = 123500"),
        (Status("reached", 0.1), "reached at t = 0.1"),
    ],
)
def test_times_print_the_digits_they_have(status, text):
    assert str(status) == text


def settling(key, beta, dim=2):
    angles = np.linspace(0, 2.5, 5)
    points = np.zeros((5, dim), SINGLE)
    points[:, 0], points[:, 1] = np.cos(angles), np.sin(angles)
    return af.simple_attention(beta, dim), af.Particles(points, space=af.Sphere())


def settling_in_space(key, beta):
    return settling(key, beta, 3)


@pytest.mark.parametrize("make", [settling, pytest.param(settling_in_space, marks=pytest.mark.long)])
def test_members_of_a_sweep_settle_however_late_the_end_is(make):
    """Tokens on an arc below a half circle meet (GT 4), long before t1."""
    spread = {"spread": lambda mu: jnp.max(jnp.abs(mu.points - mu.points[:1]))}
    data = af.sweep(make, {"beta": [1.0, 2.0]}, seeds=1, t1=1e9, t0=1e8, save_at=2, observe=spread, until=af.Steady())
    assert (data.status == 1).all()
    assert ((data.ended > 1e8 + 2) & (data.ended < 1e8 + 100)).all()
    assert float(data.spread[..., -1].max()) < 3e-3
