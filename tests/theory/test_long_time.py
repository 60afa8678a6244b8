"""Predictions for long times against simulation, quadrature and limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

import attnflow as af
from attnflow import theory


def test_wendel_by_hand():
    assert theory.wendel(3, 2) == pytest.approx(0.75)
    assert theory.wendel(2, 5) == 1
    assert theory.wendel(5, 1) == pytest.approx(2 / 2**5 * 1)
    with pytest.raises(ValueError, match="at least 1"):
        theory.wendel(0, 2)


@pytest.mark.parametrize("dim", [2, 3, 4, 7])
def test_cap_mass_is_the_integral_of_the_sine(dim):
    whole = quad(lambda a: np.sin(a) ** (dim - 2), 0, np.pi)[0]
    for delta in (0.2, 1.0, 2.0, 3.0):
        assert theory.cap_mass(dim, delta) == pytest.approx(quad(lambda a: np.sin(a) ** (dim - 2), 0, delta)[0] / whole, rel=1e-10)
    assert theory.cap_mass(dim, 4.0) == 1


def test_strong_centers_on_the_circle_and_the_sphere(rng):
    assert theory.strong_centers(2, 0.3) == pytest.approx(np.pi / 0.3)
    assert theory.strong_centers(3, 0.3) == pytest.approx(1 / np.sin(0.15) ** 2)
    counts = []
    for _ in range(200):
        x = rng.normal(size=(100, 3))
        mu = af.Particles(x / np.linalg.norm(x, axis=1, keepdims=True), space=af.Sphere())
        counts.append(af.renyi_centers(mu, 0.8, strong=True).sum())
    expected = theory.strong_centers(3, 0.8, 100)
    assert abs(np.mean(counts) - expected) < 4 * np.std(counts) / np.sqrt(200)


@pytest.mark.parametrize("kind", ["softmax", "unnormalized"])
def test_merger_time_is_the_integral_for_large_beta(kind):
    beta, c, (a, m) = 400.0, 0.3, (0.2, 0.3)
    u = np.arccos(c)
    rate = a / m + m / a if kind == "softmax" else a + m
    shift = 1 - c if kind == "softmax" else -c

    def slowness(x):
        # e^{beta(1 - cos x)} over its value at the start.
        return np.exp(beta * (c - np.cos(x))) / (rate * np.sin(x))

    exact = np.log(quad(slowness, u - 0.2, u, epsrel=1e-12)[0]) + beta * shift
    assert theory.merger_log_time(c, beta, (a, m), kind=kind) == pytest.approx(exact, abs=10 / beta)


def test_window_is_half_over_the_rate_in_the_limit():
    found = [theory.window_time(1.0, 10.0**k, 2.0) for k in (10, 40, 160, 300)]
    assert np.all(np.diff(np.abs(np.array(found) - 0.25)) < 0)
    assert found[-1] == pytest.approx(0.25, abs=0.01)


def test_context_cosine_is_that_of_attention():
    n, r, beta = 7, 0.4, 3.0
    gram = np.full((n, n), r) + (1 - r) * np.eye(n)
    x = np.linalg.cholesky(gram)
    out = np.asarray(af.simple_attention(beta, n).at(af.Particles(x))(af.Particles(x).points))
    cosine = out[0] @ out[1] / (np.linalg.norm(out[0]) * np.linalg.norm(out[1]))
    assert theory.context_cosine(n, r, beta) == pytest.approx(cosine, rel=1e-12)


def test_trichotomy_is_the_limit_of_the_exact_cosine():
    r = 0.4
    critical = theory.critical_sharpness(r)
    for gamma in (0.5 * critical, critical, 1.5 * critical):
        n = 10**40
        assert theory.context_cosine(n, r, gamma * 40 * np.log(10)) == pytest.approx(float(theory.context_limit(r, gamma)), abs=1e-6)


def test_stability_constant_bounds_what_is_measured(rng):
    A, V = 0.3 * rng.normal(size=(2, 2)), 0.5 * rng.normal(size=(2, 2))
    law = af.Attention(af.dot_product(A, np.eye(2)), V)
    x = rng.uniform(-0.5, 0.5, size=(12, 2))
    y = x + 1e-3 * rng.normal(size=x.shape)
    ends = [np.asarray(af.solve(law, af.Particles(points), t1=1.0, save_at=2).final.points) for points in (x, y)]
    ratio = np.linalg.norm(ends[1] - ends[0]) / np.linalg.norm(y - x)
    radius = max(np.linalg.norm(x, axis=1).max(), np.linalg.norm(y, axis=1).max())
    assert ratio <= float(theory.stability_constant(law.logit.A, law.value, radius, 1.0))


@pytest.mark.long
def test_misalignment_falls_at_the_rate_of_the_gap(key):
    B, V = np.eye(3), np.diag([2.0, 0.5, -1.0])
    assert float(theory.concentration_rate(B, V)) == pytest.approx(1.5)
    assert float(theory.concentration_rate(2 * B, V)) == pytest.approx(1.5)
    assert np.isinf(float(theory.concentration_rate(B, B)))
    start = af.samplers.sphere(50, 3, key=key)
    Pi = theory.spectral_projector(V @ B.T)
    # With B = I the clock is that of y' = V y: a coordinate over the first falls at its own gap.
    path = af.solve(af.ZeroTemperature(af.dot_product(B, B), V), start, t1=1.0, save_at=2, rtol=1e-9, atol=1e-11)
    x = np.asarray(start.points)
    exact = np.mean((x[:, 1] ** 2 * np.exp(-3.0) + x[:, 2] ** 2 * np.exp(-6.0)) / x[:, 0] ** 2)
    assert float(af.misalignment(path.final, Pi)) == pytest.approx(exact, rel=1e-6)
    assert float(af.misalignment(path.final, Pi)) <= np.exp(-3.0) * float(af.misalignment(start, Pi))


def test_theory_returns_arrays_and_is_traced():
    """Every number is a 0-d array; formulas of elementary functions are compiled and differentiated."""
    numbers = [
        theory.wendel(6, 3),
        theory.critical_beta(2),
        *(jax.jit(f)(0.6) for f in (lambda c: theory.merger_log_time(c, 9.0), lambda c: theory.context_cosine(7, c, 2.0))),
        *(jax.jit(f)(0.6) for f in (theory.critical_sharpness, lambda c: theory.context_limit(c, 2.0))),
        *(jax.jit(f)(0.3) for f in (lambda a: theory.cap_mass(4, a), lambda a: theory.strong_centers(3, a, 50))),
        jax.jit(lambda b: theory.window_time(1.0, b))(50.0),
    ]
    assert all(isinstance(number, jax.Array) and number.shape == () for number in numbers)
    # d/da of the share of a cap is the density sin^{d-2}(a) over its integral.
    found = jax.grad(lambda a: theory.cap_mass(4, a))(0.7)
    assert float(found) == pytest.approx(np.sin(0.7) ** 2 / (np.pi / 2))
    z = jnp.array([[3.0, -1.0, 0.5], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(jax.jit(theory.uniform_mean)(z), theory.uniform_mean(z), rtol=1e-14)
