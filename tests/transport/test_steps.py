"""Steps of gradient flows: exact solutions against each other, schemes against exact solutions, orders, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm, solve_continuous_lyapunov
from scipy.stats import norm

import attnflow as af

MIX = af.GaussianMixture([0.3, 0.7], [[-2.0], [1.0]], [[[1.0]], [[0.5]]])
TARGET = af.Gaussian([0.0], [[1.0]])


def slope(flow, start, exact, counts=(8, 16, 32)):
    """The order of a flow on a Gaussian, to time 1."""
    errors = []
    for count in counts:
        mu = start
        for _ in range(count):
            mu = flow.step(mu, 1 / count).measure
        errors.append(float(af.bures(mu, exact)))
    return np.polyfit(np.log(1 / np.asarray(counts)), np.log(errors), 1)[0]


def test_ornstein_uhlenbeck_solves_its_equations(rng):
    """`m' = -1/2 T^-1 (m - n)`, `S' = I - 1/2 (T^-1 S + S T^-1)`: by the matrix exponential and the stationary Lyapunov equation."""
    a, b = rng.normal(size=(2, 2, 2))
    T, S, t = a @ a.T + np.eye(2), b @ b.T + 0.1 * np.eye(2), 0.7
    n, m = np.array([1.0, -1.0]), np.array([0.5, 2.0])
    drift = -0.5 * np.linalg.inv(T)
    still = solve_continuous_lyapunov(drift, -np.eye(2))
    E = expm(drift * t)
    found = af.ornstein_uhlenbeck(af.Gaussian(m, S), af.Gaussian(n, T), t)
    np.testing.assert_allclose(found.mean, n + E @ (m - n), rtol=1e-10)
    np.testing.assert_allclose(found.cov, still + E @ (S - still) @ E.T, rtol=1e-10)
    mix = af.ornstein_uhlenbeck(af.GaussianMixture([1, 3], [m, n], [S, T]), af.Gaussian(n, T), t)
    np.testing.assert_allclose(mix.means, [found.mean, n], rtol=1e-10)
    np.testing.assert_allclose(mix.covs, [found.cov, T], rtol=1e-10)


@pytest.mark.parametrize("target", [None, TARGET])
@pytest.mark.long
def test_tokens_that_move_with_the_law_keep_their_quantile(target):
    """Characteristics, an ODE, against `F_t^-1(F_0(x))`; and the quantile function against SciPy's distribution function."""
    levels, t = (np.arange(9) + 0.5) / 9, 0.7
    start = af.quantiles(MIX, levels)
    below = 0.3 * norm.cdf(start, -2, 1) + 0.7 * norm.cdf(start, 1, np.sqrt(0.5))
    np.testing.assert_allclose(below, levels, rtol=1e-10)
    later = af.heat_flow(MIX, t) if target is None else af.ornstein_uhlenbeck(MIX, target, t)
    moved = af.characteristics(MIX, start[:, None], t, target)
    np.testing.assert_allclose(moved[:, 0], af.quantiles(later, levels), atol=1e-9)
    np.testing.assert_array_equal(af.characteristics(MIX, start[:, None], 0.0, target), start[:, None])


@pytest.mark.long
def test_orders_of_the_fokker_planck_steps():
    """Split bridge steps are of second order, those of the surrogate and of explicit Euler with the true score of first."""
    start = af.Gaussian([1.0], [[0.25]])
    exact = af.ornstein_uhlenbeck(start, TARGET, 1.0)
    true = lambda mu, eps: af.Affine(-jnp.linalg.inv(mu.cov), jnp.linalg.solve(mu.cov, mu.mean))  # noqa: E731
    assert slope(af.FokkerPlanck(TARGET), start, exact) == pytest.approx(2, abs=0.15)
    assert slope(af.FokkerPlanck(TARGET, true), start, exact) == pytest.approx(1, abs=0.1)
    assert slope(af.KullbackLeibler(TARGET), start, exact) == pytest.approx(1, abs=0.1)


def test_tokens_follow_the_gaussian_picture():
    """One step of every flow on quadrature tokens of a Gaussian has the moments of the Gaussian's own step."""
    start, eps = af.Gaussian([0.5], [[0.3]]), 0.1
    tokens = af.quadrature(start, 400)
    flows = [
        af.Heat(),
        af.Heat(af.kernel_score),
        af.ReverseHeat(),
        af.FokkerPlanck(TARGET),
        af.FokkerPlanck(TARGET, af.richardson_score),
        af.KullbackLeibler(TARGET),
    ]
    for flow in flows:
        closed, moved = flow.step(start, eps).measure, flow.step(tokens, eps).measure
        np.testing.assert_allclose(moved.mean, closed.mean, atol=1e-8)
        np.testing.assert_allclose(moved.cov, closed.cov, atol=1e-8)
    np.testing.assert_array_equal(af.sinkhorn_step(af.Heat(), tokens, eps).points, af.Heat().step(tokens, eps).measure.points)
    np.testing.assert_allclose(
        af.euler_step(af.kernel_score(tokens, eps), tokens, eps).points, af.Heat(af.kernel_score).step(tokens, eps).measure.points
    )


@pytest.mark.long
def test_a_cloud_tends_to_a_mixture():
    """Fokker-Planck to 0.3 N(-2, 1) + 0.7 N(1, 1/2), given as a law and as grad log nu; the surrogate goes the same way at first."""
    tokens = af.Particles(af.quantiles(af.Gaussian([0.5], [[0.3]]), (np.arange(400) + 0.5) / 400)[:, None])
    step = jax.jit(lambda x: af.FokkerPlanck(MIX).step(af.Particles(x), 0.2, tolerance=1e-6).measure.points)
    x = tokens.points
    for _ in range(150):
        x = step(x)
    assert float(af.wasserstein2(tokens, MIX)) > 1
    assert float(af.wasserstein2(af.Particles(x), MIX)) < 0.05
    by_law, by_function = (af.KullbackLeibler(nu).step(tokens, 0.02) for nu in (MIX, MIX.log_density))
    np.testing.assert_array_equal(by_law.measure.points, by_function.measure.points)
    inside = slice(40, 360)
    shift = af.FokkerPlanck(MIX.score).step(tokens, 0.02).measure.points - tokens.points
    np.testing.assert_allclose((by_law.measure.points - tokens.points)[inside], shift[inside], atol=0.05 * float(jnp.abs(shift).max()))


def test_the_surrogate_is_rho_over_nu(rng):
    """Its weights, their effective number, and for Gaussians `S^-1 - T^-1`."""
    points, w = rng.normal(size=(400, 1)), rng.uniform(size=400)
    flow = af.KullbackLeibler(af.Gaussian([0.0], [[2.0]]))
    mu = af.Particles(points, weights=w)
    sigma = flow.surrogate(mu)
    expected = w * np.exp(points[:, 0] ** 2 / 4)
    np.testing.assert_allclose(sigma.weights, expected / expected.sum(), rtol=1e-12)
    figures = flow.step(mu, 0.1).figures
    np.testing.assert_allclose(figures["effective_tokens"], expected.sum() ** 2 / (expected**2).sum(), rtol=1e-12)
    g = flow.surrogate(af.Gaussian([1.0], [[0.5]]))
    np.testing.assert_allclose([g.mean[0], g.cov[0, 0]], [2 / 1.5, 1 / 1.5], rtol=1e-12)


def test_reverse_heat_amplifies_and_breaks_down():
    """On a flat density a mode grows by `1 + q / (1 + e^{q/2})`; the variance of N(0, s^2) falls by eps until it is about eps."""
    points, eps = np.linspace(-8, 8, 400), 0.09
    middle, step = slice(150, 250), lambda x: af.ReverseHeat().step(af.Particles(x[:, None]), eps).measure.points[:, 0]
    still = step(points)
    for k in (2.0, 5.0, 9.0):
        wave, q = np.sin(k * points)[middle], eps * k**2
        moved = (step(points + 1e-4 * np.sin(k * points)) - still)[middle]
        np.testing.assert_allclose(np.vdot(moved, wave) / np.vdot(wave, wave) / 1e-4, 1 + q / (1 + np.exp(q / 2)), rtol=1e-4)
    variance = lambda s2, eps: float(af.ReverseHeat().step(af.Gaussian([0.0], [[s2]]), eps).measure.cov[0, 0])  # noqa: E731
    np.testing.assert_allclose((variance(1.0, 0.01) - 0.99) / 0.01**2, 0.5, rtol=0.02)
    np.testing.assert_allclose(variance(0.01, 1.0), 0.01**3, rtol=0.02)


def test_bad_input_is_named(rng):
    mu = af.Particles(rng.normal(size=(400, 1)) * 2)
    with pytest.raises(ValueError, match=r"at least 2 effective tokens, got 1: the target has lighter tails"):
        af.KullbackLeibler(af.Gaussian([0.0], [[0.2]])).step(mu, 0.1)
    with pytest.raises(ValueError, match="the target must be wider than mu"):
        af.KullbackLeibler(TARGET).step(af.Gaussian([0.0], [[2.0]]), 0.1)
    with pytest.raises(TypeError, match="a Gaussian stays one only towards a Gaussian, got GaussianMixture"):
        af.KullbackLeibler(MIX).step(af.Gaussian([0.0], [[0.2]]), 0.1)
    for flow in (af.FokkerPlanck, af.KullbackLeibler):
        with pytest.raises(TypeError, match="target must be a Gaussian, a GaussianMixture or"):
            flow(3.0)
    with pytest.raises(ValueError, match="t must not be negative, got -1"):
        af.ornstein_uhlenbeck(MIX, TARGET, -1.0)
    with pytest.raises(TypeError, match="use gradient_flow on tokens"):
        af.ornstein_uhlenbeck(mu, TARGET, 1.0)
    with pytest.raises(TypeError, match=r"the target must be a Gaussian in R\^1, got GaussianMixture"):
        af.ornstein_uhlenbeck(MIX, MIX, 1.0)
    with pytest.raises(ValueError, match="the target must have a covariance of full rank"):
        af.ornstein_uhlenbeck(MIX, af.Gaussian([0.0], [[0.0]]), 1.0)
    with pytest.raises(ValueError, match="levels must lie between 0 and 1"):
        af.quantiles(MIX, [0.5, 1.0])
    with pytest.raises(TypeError, match=r"on the line, got Particles in R\^1"):
        af.quantiles(mu, [0.5])
