"""Spectral sums on and off the circle: derivatives in every direction, and what is known of the lengths of tokens, against NumPy."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af
from attnflow.sums import Atoms, Pairs, Rows, Transform, average, fitted
from attnflow.sums.engines.circle import rings
from attnflow.sums.engines.plan import Extent, _modes, _with_exact_rows
from attnflow.sums.mask import Sight

N = 150
ORDER = np.arange(N) / N


def softmax(q, k, b, causal=False):
    """`log sum_j e^{<q_i, k_j> + b_j}` and the mean of the keys, of all keys or of those up to the query, in NumPy."""
    logits = q @ k.T + b[None]
    logits = np.where(np.tri(*logits.shape) > 0, logits, -np.inf) if causal else logits
    top = logits.max(axis=1, keepdims=True)
    p = np.exp(logits - top)
    total = p.sum(axis=1, keepdims=True)
    return (np.log(total) + top)[:, 0], p @ k / total


def slope(f, h=1e-3):
    """`f'(0)` by differences, of sixth order."""
    return sum(c * (f(i * h) - f(-i * h)) for i, c in ((1, 0.75), (2, -0.15), (3, 1 / 60))) / h


def bend(f, h=2e-2):
    """`f''(0)` by differences, of sixth order."""
    return (sum(c * (f(i * h) + f(-i * h)) for i, c in ((1, 1.5), (2, -0.15), (3, 1 / 90))) - 49 / 18 * f(0.0)) / h**2


def on_circle(rng, n=N, turn=0.3, r=4.0):
    """Queries of length r, keys of length 1, biases of which one is minus infinity."""
    t = rng.uniform(0, 2 * np.pi, n)
    q, k = (np.stack([np.cos(a), np.sin(a)], axis=1) for a in (t, t + turn))
    b = 0.5 * rng.normal(size=n)
    b[n // 2] = -np.inf
    return r * q, k, b


def paired(out, cotangents):
    return sum((a * c).sum() for a, c in zip(out, cotangents))


@pytest.mark.parametrize("causal", [False, True], ids=["free", "causal"])
@jax.numpy_rank_promotion("allow")  # the derivative rules of jax-finufft broadcast silently
@pytest.mark.long
def test_derivatives_on_the_circle_in_every_direction(causal, rng):
    """Of log-sums and means, forward and reverse: a random change, and changes of the length of one query and of one key."""
    rows, cotangents = on_circle(rng), (rng.normal(size=N), rng.normal(size=(N, 2)))
    plan = Transform(1e-11, (96,), 1e-14, True, causal=causal)
    sight = Sight(af.Causal(), jnp.asarray(ORDER), jnp.asarray(ORDER)) if causal else None

    def loss(q, k, b):
        return paired(plan.softmax(Rows(q, k, b, sight=sight)), cotangents)

    changes = [[rng.normal(size=part.shape) for part in rows]]
    for which, row in ((0, 7), (1, 7), (1, 0)):
        changes.append([np.zeros_like(part) for part in rows[:2]] + [np.zeros(N)])
        changes[-1][which][row] = rows[which][row]

    @jax.jit
    def derivatives(primals, change):
        return jax.jvp(loss, primals, change)[1], jax.grad(loss, (0, 1, 2))(*primals)

    forward, gradient = derivatives(tuple(map(jnp.asarray, rows)), tuple(map(jnp.asarray, changes[0])))
    found = [forward, *(paired(gradient, change) for change in changes)]
    exact = [slope(lambda h, to=to: paired(softmax(*(p + h * c for p, c in zip(rows, to)), causal), cotangents)) for to in changes]
    np.testing.assert_allclose(found, [exact[0], *exact], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("causal", [False, True], ids=["free", "causal"])
@jax.numpy_rank_promotion("allow")
@pytest.mark.long
def test_second_derivatives_on_the_circle_are_right_and_third_ones_refused(causal, rng):
    rows, cotangents = on_circle(rng), (rng.normal(size=N), rng.normal(size=(N, 2)))
    plan = Transform(1e-11, (96,), 1e-14, True, causal=causal)
    sight = Sight(af.Causal(), jnp.asarray(ORDER), jnp.asarray(ORDER)) if causal else None
    change = [0.5 * rng.normal(size=part.shape) for part in rows]

    def along(h):
        moved = (jnp.asarray(p) + h * jnp.asarray(c) for p, c in zip(rows, change))
        return paired(plan.softmax(Rows(*moved, sight=sight)), cotangents)

    exact = bend(lambda h: paired(softmax(*(p + h * c for p, c in zip(rows, change)), causal), cotangents))
    for second in (jax.grad(jax.grad(along)), lambda h: jax.jvp(jax.grad(along), (h,), (jnp.ones(()),))[1]):
        np.testing.assert_allclose(jax.jit(second)(0.0), exact, rtol=1e-6)
    with pytest.raises(ValueError, match=r"derivatives in the tokens up to order 2, got one of order 3; use sums=af.Streamed\(\)"):
        jax.grad(jax.grad(jax.grad(along)))(0.0)


@pytest.mark.parametrize("causal", [False, True], ids=["free", "causal"])
@jax.numpy_rank_promotion("allow")
@pytest.mark.long
def test_derivatives_of_a_law_on_the_circle(causal, rng):
    """In the query matrix, the temperature, the points and the weights: the velocity of tokens at rest in the plane."""
    x, other = on_circle(rng)[1], rng.normal(size=(N, 2))
    weights, Q, T = np.linspace(1, 2, N) / N, np.eye(2), np.array(0.2)

    def velocity(Q, T, x, weights, sums):
        law = af.Attention(af.dot_product(Q, jnp.eye(2), temperature=T), jnp.eye(2), mask=af.Causal() if causal else None)
        mu = af.Particles(x, weights, order=ORDER)
        return jnp.vdot(jnp.asarray(other), mu.rate(law.at(mu, sums=sums)))

    def exact(Q, T, x, weights):
        return (other * softmax(x @ Q.T / T, x, np.log(weights / weights.sum()), causal)[1]).sum()

    at = (Q, T, x, weights)
    law = af.Attention(af.dot_product(Q, np.eye(2), temperature=T), np.eye(2), mask=af.Causal() if causal else None)
    plan = af.plan(law, af.Particles(x, weights, order=ORDER), af.Spectral(1e-10))
    assert isinstance(plan, Transform)
    assert plan.circle
    gradient = jax.jit(jax.grad(lambda *at: velocity(*at, plan), (0, 1, 2, 3)))(*map(jnp.asarray, at))
    for i, part in enumerate(at):
        change = rng.normal(size=part.shape) * part.mean() if i != 2 else x * rng.normal(size=(N, 1))
        along = slope(lambda h, i=i, change=change: exact(*at[:i], at[i] + h * change, *at[i + 1 :]), 1e-4)
        np.testing.assert_allclose((gradient[i] * change).sum(), along, rtol=1e-7)


@pytest.mark.parametrize("place", ["line", "plane", "tilted", "exact rows", "space", "sphere"])
@jax.numpy_rank_promotion("allow")
@pytest.mark.long
def test_derivatives_of_the_gaussian_series(place, rng):
    """In one to three dimensions and on S^2, off it too: what is balanced, tilted or boxed is held still, as it may be."""
    d = {"line": 1, "space": 3, "sphere": 3}.get(place, 2)
    k = rng.normal(size=(N, d))
    k = k / np.linalg.norm(k, axis=1, keepdims=True) if place == "sphere" else k
    q, b = k[::-1] @ (np.eye(d) + 0.2 * rng.normal(size=(d, d))) + 0.3, 0.5 * rng.normal(size=N)
    atoms = Atoms(jnp.asarray(k), jnp.asarray(b))
    plan = fitted(Pairs(af.dot_product(np.eye(d), np.eye(d)), jnp.asarray(q), atoms), af.Spectral(1e-10 if d < 3 else 1e-8))
    assert isinstance(plan, Transform)
    plan = dataclasses.replace(plan, tilted=place == "tilted", exact=16 if place == "exact rows" else 0)
    rows, cotangents = (q, k, b), (rng.normal(size=N), rng.normal(size=(N, d)))
    change = [rng.normal(size=part.shape) for part in rows]

    @jax.jit
    def derivatives(primals, change):
        def loss(*rows):
            return paired(plan.softmax(Rows(*rows)), cotangents)

        return jax.jvp(loss, primals, change)[1], jax.grad(loss, (0, 1, 2))(*primals)

    forward, gradient = derivatives(tuple(map(jnp.asarray, rows)), tuple(map(jnp.asarray, change)))
    exact = slope(lambda h: paired(softmax(*(p + h * c for p, c in zip(rows, change))), cotangents), 1e-4)
    np.testing.assert_allclose(forward, exact, rtol=1e-7 if d < 3 else 1e-5)
    np.testing.assert_allclose(paired(gradient, change), exact, rtol=1e-7 if d < 3 else 1e-5)


def test_the_error_of_equal_lengths_is_bounded_by_what_is_known(rng):
    """Round-off counts for nothing; a token off the circle, and a length that is no number, do."""
    q, k, b = on_circle(rng, r=9.0)
    known = jax.jit(lambda q, k: (rings(q, k).error, rings(q, k).fill(1e-9, 1e-12, jnp.zeros(()))))
    assert tuple(known(q, k)) == (0.0, 0.5)
    for which, off in ((0, 9e-8), (1, 9e-8), (1, 1e-11)):
        moved = [q.copy(), k.copy()]
        moved[which][11] *= 1 + off
        error, fill = known(*moved)
        exact, equal = softmax(*moved, b), softmax(q, k, b)
        assert max(np.abs(e - f).max() for e, f in zip(exact, equal)) <= error <= 11 * off
        assert (fill > 1) == (off > 1e-9)
    k[0] = np.nan
    assert known(q, k)[1] > 1


@pytest.mark.parametrize("side", ["keys", "queries"])
@pytest.mark.long
def test_one_token_off_the_circle(side, rng):
    """By 9e-8, which no sample of rows need meet: another plan serves it, and the plan of the circle gives NaN."""
    x, logit = on_circle(rng)[1], af.dot_product(3 * np.eye(2), 3 * np.eye(2))
    b, off = np.full(N, -np.log(N)), x.copy()
    off[11] *= 1 + 9e-8
    queries, keys = (off, x) if side == "queries" else (x, off)
    plan = fitted(Pairs(logit, jnp.asarray(x), Atoms(jnp.asarray(x), jnp.asarray(b))), af.Spectral())
    assert plan.circle
    atoms = Atoms(jnp.asarray(keys), jnp.asarray(b))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = fitted(Pairs(logit, jnp.asarray(queries), atoms), af.Spectral())
    assert not getattr(other, "circle", False)
    found, exact = average(logit, jnp.asarray(queries), atoms, other), softmax(9 * queries, keys, b)
    assert max(np.abs(f - e).max() for f, e in zip(found, exact)) <= 1e-9
    assert np.isnan(average(logit, jnp.asarray(queries), atoms, plan)[0]).all()
    report = plan.report(Rows(jnp.asarray(9 * queries), jnp.asarray(keys), jnp.asarray(b)))["sums"]
    assert report["fill"] > 1
    assert report["error"] >= np.abs(softmax(9 * queries, keys, b)[0] - softmax(9 * x, x, b)[0]).max() > 1e-8


@pytest.mark.long
def test_what_is_known_of_the_lengths_is_in_the_report(rng):
    """A token off by little enough for the tolerance: the circle serves, and the error that is reported covers it at every row."""
    q, k, b = on_circle(rng, r=9.0)
    off = k.copy()
    off[11] *= 1 + 1e-11
    plan = fitted(Pairs(af.dot_product(3 * np.eye(2), 3 * np.eye(2)), jnp.asarray(k), Atoms(jnp.asarray(k), jnp.asarray(b))), af.Spectral())
    found, exact = plan.softmax(Rows(jnp.asarray(q), jnp.asarray(off), jnp.asarray(b))), softmax(q, off, b)
    report = plan.report(Rows(jnp.asarray(q), jnp.asarray(off), jnp.asarray(b)))["sums"]
    assert 9e-11 <= report["error"] <= plan.tolerance
    assert max(np.abs(f - e).max() for f, e in zip(found, exact)) <= report["error"]


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
@pytest.mark.long
def test_a_run_on_the_circle_stays_on_its_plan(dtype, monkeypatch):
    """Retraction leaves round-off only, at large logits and under rotations too: nothing is planned again."""
    from attnflow.flow import solve as flow

    made = []
    monkeypatch.setattr(flow, "planned", lambda *args, make=flow.planned: made.append(1) or make(*args))
    turn = np.array([[np.cos(1.0), -np.sin(1.0)], [np.sin(1.0), np.cos(1.0)]])
    mu = af.samplers.sphere(N, 2, key=jax.random.key(3), dtype=dtype)
    law = af.Attention(af.dot_product(turn.astype(dtype), np.eye(2, dtype=dtype), temperature=dtype(1 / 60)), np.eye(2, dtype=dtype))
    path = af.solve(law, mu, t1=1.0, save_at=3, sums=af.Spectral())
    assert path.status.kind == "reached"
    assert path.stats["engine"].startswith("spectral (circle")
    assert path.stats["sums"]["fill"] <= 0.5
    assert len(made) == 1


@pytest.mark.long
def test_tokens_that_leave_the_circle_are_never_planned_on_it():
    x = af.samplers.sphere(N, 2, key=jax.random.key(1)).points
    law = af.Attention(af.squared_distance(np.eye(2), np.eye(2)), np.eye(2))
    path, exact = (af.solve(law, af.Particles(x), t1=0.2, save_at=2, sums=sums) for sums in (af.Spectral(), af.Dense()))
    assert path.status.kind == "reached"
    assert path.stats["engine"].startswith("spectral (Gaussian")
    np.testing.assert_allclose(path.final.points, exact.final.points, atol=1e-7)


def test_the_numbers_of_a_plan_on_the_host_overflow_quietly():
    """Sums that are lost altogether have an infinite error and no share; a box may be larger than any number."""
    plan, share = Transform(1e-9, (32, 32), 2e-15, False), np.array([0.0, np.nan, 0.5])
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        atoms, logit = Atoms(jnp.ones((3, 2)), jnp.zeros(3)), af.dot_product(np.eye(2), np.eye(2))
        assert _with_exact_rows(plan, Pairs(logit, atoms.points, atoms), np.inf, share)[1].startswith("the sums of 2 queries are too small")
        for side in (1e308, np.inf, np.nan):
            assert min(_modes(plan, Extent(jnp.array([side, side]), *[jnp.zeros(())] * 3))) >= 2**60


EXTREMES = ["steep", "zero spread", "huge", "huge circle", "one token", "zero weights", "loose"]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.long
def test_planning_leaks_no_numpy_warning(name, dtype, rng):
    """Sums that are lost altogether, overflow, nothing to spread: NumPy stays quiet, and the sums are right or the plan refused."""
    x, weights = rng.normal(size=(64, 2)), np.ones(64)
    scale, temperature, tolerance = 1.0, 1.0, None
    if name == "steep":
        temperature = 1e-3
    if name == "zero spread":
        x = np.ones_like(x)
    if name.startswith("huge"):
        x = x / np.linalg.norm(x, axis=1, keepdims=True) if name == "huge circle" else x
        scale = float(np.sqrt(np.finfo(dtype).max))
    if name == "one token":
        x, weights = x[:1], weights[:1]
    if name == "zero weights":
        weights[:60] = 0
    if name == "loose":
        tolerance = 1e3
    with np.errstate(divide="ignore"):
        atoms = Atoms(jnp.asarray(scale * x, dtype), jnp.asarray(np.log(weights / weights.sum()), dtype))
    identity = np.eye(2, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("error", RuntimeWarning)
        logit = af.dot_product(identity, identity, temperature=dtype(temperature))
        engine = fitted(Pairs(logit, atoms.points, atoms), af.Spectral(tolerance))
    if name.startswith("huge"):
        assert not isinstance(engine, Transform)
    elif name != "loose":
        y = np.asarray(atoms.points, np.float64)
        exact, found = softmax(y / temperature, y, np.asarray(atoms.log_weights, np.float64)), average(logit, atoms.points, atoms, engine)
        np.testing.assert_allclose(found[0], exact[0], rtol=4 * np.finfo(dtype).eps, atol=1e-9 if dtype is np.float64 else 1e-4)
