"""Spectral sums against exact ones: accuracy asked for and certified, derivatives, plans, masks, what cannot be served."""

import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attnflow as af
from attnflow.numerics.special import scaled_bessel
from attnflow.sums import Atoms, Pairs, Transform, average, fitted, log_integral

N = 400


def cloud(kind, d, rng, n=N):
    """Clouds that make trouble: spread, clustered, coincident, with a few tokens that hold nearly all mass."""
    points, weights = rng.normal(size=(n, d)), np.ones(n)
    if kind == "clustered":
        points = 3 * rng.normal(size=(4, d))[rng.integers(0, 4, n)] + 0.01 * points
    if kind == "coincident":
        points = points[rng.integers(0, 5, n)]
    if kind == "heavy":
        weights = np.exp(5 * rng.normal(size=n))
    if kind == "far":
        points = points + 5.0
    return Atoms(jnp.asarray(points), jnp.log(jnp.asarray(weights / weights.sum())))


def quietly(logit, x, atoms, tolerance):
    """The engine that serves, whichever it is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fitted(Pairs(logit, x, atoms), af.Spectral(tolerance))


def errors(logit, x, atoms, engine):
    """Of the log-sum, and of the mean relative to the size of the cloud, at every row."""
    exact, found = average(logit, x, atoms, af.Dense()), average(logit, x, atoms, engine)
    points = np.asarray(atoms.points)
    size = np.abs(points - points.mean(axis=0)).max() + 1e-300
    return float(np.abs(exact[0] - found[0]).max()), float(np.abs(exact[1] - found[1]).max() / size)


@pytest.mark.long
@pytest.mark.parametrize(("d", "tolerance"), [(1, 1e-12), (2, 1e-9), (3, 1e-5)])
def test_the_tolerance_is_met_on_every_kind_of_cloud(d, tolerance, rng):
    served = 0
    for kind in ("spread", "clustered", "coincident", "heavy", "far"):
        atoms = cloud(kind, d, rng)
        logit = af.dot_product(np.eye(d), np.eye(d)) if kind in ("spread", "far") else af.squared_distance(np.eye(d), np.eye(d))
        engine = quietly(logit, atoms.points, atoms, tolerance)
        served += isinstance(engine, Transform)
        assert max(errors(logit, atoms.points, atoms, engine)) <= tolerance, (kind, engine)
    assert served >= 3


@settings(max_examples=2)
@given(seed=st.integers(0, 2**32 - 1), log_temperature=st.floats(-3, 3))
@pytest.mark.long
def test_random_laws_in_the_plane(seed, log_temperature):
    """Any Q and K, temperatures from 1e-3 to 1e3 of the squared size of the cloud; queries that are not the keys."""
    rng = np.random.default_rng(seed)
    Q, K = rng.normal(size=(2, 2, 2))
    logit = af.dot_product(Q, K, temperature=10.0**log_temperature * np.linalg.norm(Q) * np.linalg.norm(K))
    atoms, x = cloud("spread", 2, rng), jnp.asarray(rng.normal(size=(N // 2, 2)))
    engine = quietly(logit, x, atoms, 1e-9)
    assert max(errors(logit, x, atoms, engine)) <= 1e-9
    np.testing.assert_allclose(log_integral(logit, x, atoms, engine), log_integral(logit, x, atoms, af.Dense()), atol=1e-9)


@pytest.mark.parametrize(("beta", "d"), [(81.0, 2), (9.0, 3)])
@pytest.mark.long
def test_circle_and_sphere(beta, d):
    mu, law = af.samplers.sphere(N, d, key=jax.random.key(1)), af.simple_attention(beta, d)
    exact = law.at(mu, sums=af.Dense())(mu.points)
    plan = af.plan(law, mu, af.Spectral(1e-11))
    assert isinstance(plan, Transform)
    assert plan.circle == (d == 2)
    np.testing.assert_allclose(law.at(mu, sums=plan)(mu.points), exact, atol=1e-11)
    report = law.at(mu, sums=plan).report["sums"]
    assert report["error"] <= 1e-11
    assert report["fill"] <= 1


@pytest.mark.long
def test_single_precision():
    """To 1e-4, its default, on the circle and in the plane; float32 in, float32 out."""
    circle, rng = af.samplers.sphere(N, 2, key=jax.random.key(1), dtype=jnp.float32), np.random.default_rng(3)
    plane = af.Particles(rng.normal(size=(N, 2)).astype(np.float32))
    causal = af.simple_attention(9.0, 2, mask=af.Causal())
    plan = af.plan(causal, circle, af.Spectral())
    order, exact = circle.sequence, af.Particles(np.asarray(circle.points, np.float64))
    found = causal.at(circle, sums=plan)(circle.points, order)
    np.testing.assert_allclose(found, causal.at(exact)(exact.points, exact.sequence), atol=1e-4)
    for mu, law in ((circle, af.simple_attention(9.0, 2)), (plane, af.simple_attention(1.0, 2))):
        plan = af.plan(law, mu, af.Spectral())
        assert isinstance(plan, Transform)
        found = law.at(mu, sums=plan)(mu.points)
        assert found.dtype == jnp.float32
        exact = law.at(af.Particles(np.asarray(mu.points, np.float64)), sums=af.Dense())(mu.points.astype(jnp.float64))
        np.testing.assert_allclose(found, exact, atol=1e-4 * np.abs(mu.points).max())


def test_bessel_numbers():
    from scipy.special import ive

    for r in (0.1, 9.0, 300.0):
        np.testing.assert_allclose(scaled_bessel(r, 128), ive(np.arange(128), r), atol=1e-15)


@pytest.mark.parametrize("place", ["circle", "plane"])
@jax.numpy_rank_promotion("allow")  # the derivative rules of jax-finufft broadcast silently
@pytest.mark.long
def test_derivatives(place, rng):
    """Forward and reverse mode against dense sums. On the circle along it: there the series knows directions only."""
    if place == "circle":
        mu = af.samplers.sphere(60, 2, key=jax.random.key(0))
        step = np.stack([-mu.points[:, 1], mu.points[:, 0]], axis=1) * rng.normal(size=(60, 1))
    else:
        mu = af.Particles(rng.normal(size=(60, 2)))
        step = rng.normal(size=(60, 2))
    law, other = af.simple_attention(3.0, 2), jnp.asarray(rng.normal(size=(60, 2)))
    plan = af.plan(law, mu, af.Spectral(1e-12))

    def rate(points, sums):
        mu_now = mu.with_state(points)
        return jnp.vdot(other, mu_now.rate(law.at(mu_now, sums=sums)))

    exact, found = (jax.jvp(lambda x, s=s: rate(x, s), (mu.points,), (jnp.asarray(step),))[1] for s in (af.Dense(), plan))
    np.testing.assert_allclose(found, exact, rtol=1e-8)
    np.testing.assert_allclose(jnp.vdot(jax.grad(rate)(mu.points, plan), jnp.asarray(step)), exact, rtol=1e-8)
    # Inside jit a plan is used as it is; without one there is nothing to plan from.
    np.testing.assert_allclose(jax.jit(lambda x: rate(x, plan))(mu.points), rate(mu.points, af.Dense()), atol=1e-10)
    with pytest.raises(ValueError, match=r"needs its plan first.*af.plan"):
        jax.jit(lambda x: rate(x, af.Spectral()))(mu.points)


@pytest.mark.long
def test_causal_on_the_circle(rng):
    order = rng.permutation(1100) - 500.0
    mu = af.Particles(af.samplers.sphere(1100, 2, key=jax.random.key(2)).points, order=order, space=af.Sphere())
    law = af.simple_attention(9.0, 2, mask=af.Causal())
    exact = law.at(mu, sums=af.Dense())(mu.points, mu.order)
    plan = af.plan(law, mu, af.Spectral(1e-11))
    assert isinstance(plan, Transform)
    np.testing.assert_allclose(law.at(mu, sums=plan)(mu.points, mu.order), exact, atol=1e-11)
    assert law.at(mu, sums=plan).report["sums"]["error"] <= 1e-11
    # A few early tokens with nearly all the mass: those who see them from afar are lost in the error, which the plan finds out.
    heavy = af.Particles(mu.points, np.where(order < -489, 1.0, 1e-13), order=order, space=af.Sphere())
    steep = af.simple_attention(60.0, 2, mask=af.Causal())
    with pytest.warns(UserWarning, match="too small a part of what they see"):
        found = steep.at(heavy, sums=af.Spectral(1e-9))(heavy.points, heavy.order)
    np.testing.assert_allclose(found, steep.at(heavy, sums=af.Dense())(heavy.points, heavy.order), atol=1e-9)
    # What comes later has no influence.
    first = np.argsort(order)[:500]
    moved = mu.with_state(mu.points.at[np.argsort(order)[500:]].multiply(-1.0))
    np.testing.assert_allclose(law.at(moved, sums=plan)(moved.points, mu.order)[first], exact[first], atol=1e-11)
    assert np.isfinite(law.at(mu, sums=plan)(mu.points, mu.order)).all()
    with pytest.raises(ValueError, match=r"made for a causal mask got another; make it with af.plan"):
        af.simple_attention(9.0, 2).at(mu, sums=plan)(mu.points)
    tied = af.Particles(mu.points, order=np.repeat([-3.0, 2.0], 550), space=af.Sphere())
    assert np.isnan(law.at(tied, sums=plan)(tied.points, tied.order)).all()
    with pytest.warns(UserWarning, match="distinct orders; streamed sums do instead"):
        found = law.at(tied, sums=af.Spectral())(tied.points, tied.order)
    np.testing.assert_allclose(found, law.at(tied, sums=af.Dense())(tied.points, tied.order), atol=1e-12)


@pytest.mark.parametrize("radius", [2.0, 4.0, 8.0, 12.0])
@pytest.mark.long
def test_dot_products_up_to_large_norms(radius, rng):
    """Weights e^{|y|^2/2} from 7 to e^72: what Fourier sums cannot reach falls back, and the error is small all the same."""
    points = rng.normal(size=(N, 2))
    points *= (radius * np.sqrt(rng.uniform(size=N)) / np.linalg.norm(points, axis=1))[:, None]
    atoms, logit = Atoms(jnp.asarray(points), jnp.full(N, -np.log(N))), af.dot_product(np.eye(2), np.eye(2))
    engine = quietly(logit, atoms.points, atoms, 1e-9)
    assert isinstance(engine, Transform) or radius > 4
    assert max(errors(logit, atoms.points, atoms, engine)) <= 1e-9


@pytest.mark.long
def test_sinkhorn_and_energy_on_spectral_sums(rng):
    mu = af.Particles(rng.normal(size=(N, 2)), weights=np.arange(1.0, N + 1))
    law = af.Attention(af.dot_product(np.eye(2), np.eye(2), temperature=0.5), -np.eye(2), af.Sinkhorn(tolerance=1e-9))
    found = law.at(mu, sums=af.Spectral(1e-12))
    assert found.report["sinkhorn"]["converged"]
    np.testing.assert_allclose(found(mu.points), law.at(mu, sums=af.Dense())(mu.points), atol=1e-8)
    np.testing.assert_allclose(af.energy(mu, 0.5, sums=af.Spectral(1e-12)), af.energy(mu, 0.5), rtol=1e-11)


@pytest.mark.long
def test_a_growing_cloud_is_planned_again(rng):
    mu = af.Particles(rng.normal(size=(200, 1)))
    law = af.Attention(af.squared_distance(np.eye(1), np.eye(1)), np.eye(1))
    path, exact = (af.solve(law, mu, t1=1.5, save_at=3, sums=sums) for sums in (af.Spectral(1e-10), af.Dense()))
    assert path.status == exact.status
    assert len(path) == len(exact)
    assert np.ptp(path.final.points) > 3 * np.ptp(mu.points)
    np.testing.assert_allclose(path.states, exact.states, rtol=1e-6)
    assert path.stats["engine"].startswith("spectral (Gaussian")
    assert path.stats["sums"]["error"] <= 1e-10
    # A plan that a cloud has outgrown never gives a number.
    plan = af.plan(law, mu, af.Spectral(1e-10))
    wide = af.Particles(10 * mu.points)
    assert np.isnan(law.at(wide, sums=plan)(wide.points)).all()


@pytest.mark.long
def test_queries_that_a_plan_was_not_made_for_give_nan_or_the_truth(rng):
    """Two queries of another spread than the tokens: their sums are lost in the error of a plan for the tokens."""
    mu = af.Particles(rng.normal(size=(500, 1)))
    law = af.Attention(af.squared_distance(np.eye(1), np.eye(1), temperature=0.01), np.eye(1))
    plan, x = af.plan(law, mu, af.Spectral(1e-9)), jnp.asarray([[0.5], [0.50001]])
    found, exact = np.asarray(law.at(mu, sums=plan)(x)), np.asarray(law.at(mu)(x))
    assert (np.isnan(found) | (np.abs(found - exact) < 1e-7)).all()


@pytest.mark.long
def test_automatic_choice(monkeypatch):
    mu, law = af.samplers.sphere(N, 2, key=jax.random.key(0)), af.simple_attention(4.0, 2)
    assert af.plan(law, mu) is None
    choice = sys.modules["attnflow.sums.engines.choose"]
    monkeypatch.setattr(choice, "SPECTRAL_PAIRS", 100)
    monkeypatch.setattr(choice, "PAIR_SECONDS", {"float64": 1.0})
    assert isinstance(af.plan(law, mu), Transform)
    assert "spectral" in af.solve(law, mu, t1=0.1, save_at=2).stats["engine"]
    monkeypatch.setattr(choice, "PAIR_SECONDS", {"float64": 0.0})
    assert not isinstance(af.plan(law, mu), Transform)


@pytest.mark.long
def test_what_cannot_be_served_is_named(rng):
    mu = af.Particles(rng.normal(size=(50, 2)))
    with pytest.raises(ValueError, match="tolerance must be positive, got 0"):
        af.Spectral(0.0)
    with pytest.raises(ValueError, match=r"R\^1, R\^2 or R\^3, got R\^5; use sums=af.Streamed"):
        af.simple_attention(1.0, 5).at(af.Particles(rng.normal(size=(9, 5))), sums=af.Spectral())(jnp.ones((9, 5)))
    with pytest.raises(ValueError, match="takes no mask but Causal on the circle"):
        af.plan(af.simple_attention(1.0, 2, mask=af.Window(5)), mu, af.Spectral())
    with pytest.raises(ValueError, match=r"serve softmax.*use sums=af.Streamed"):
        af.simple_attention(1.0, 2, af.Hardmax()).at(mu, sums=af.Spectral())(mu.points)
    plan = af.plan(af.simple_attention(1.0, 2), mu, af.Spectral())
    with pytest.raises(ValueError, match=r"cannot be vmapped.*jax.lax.map"):
        jax.vmap(lambda x: af.simple_attention(1.0, 2).at(af.Particles(x), sums=plan)(x))(jnp.stack([mu.points] * 2))
    points = np.asarray(mu.points) * [1e12, 1e12]
    with pytest.warns(UserWarning, match="modes; streamed sums do instead"):
        af.simple_attention(1.0, 2).at(af.Particles(points), sums=af.Spectral())(jnp.asarray(points))
