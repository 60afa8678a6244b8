"""Distances between measures against POT, SciPy and closed forms."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import ot
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.spatial.distance import cdist
from scipy.stats import energy_distance, norm

import attnflow as af


def cloud(rng, n, d, empty=(), **options):
    """Weighted tokens, some of them without mass."""
    weights = rng.uniform(size=n)
    weights[list(empty)] = 0
    return af.Particles(rng.normal(size=(n, d)), weights=weights, **options)


def check_derivative(f, *arguments, compiled=True):
    """The derivative of a scalar function along a random direction, against a central difference."""
    rng, h = np.random.default_rng(1), 1e-5
    along = [rng.normal(size=np.shape(a)) for a in arguments]
    both = jax.value_and_grad(f, argnums=tuple(range(len(arguments))))
    both = jax.jit(both) if compiled else both
    ahead, behind = (both(*(a + sign * h * v for a, v in zip(arguments, along)))[0] for sign in (1, -1))
    slope = sum(np.vdot(g, v) for g, v in zip(both(*map(jnp.asarray, arguments))[1], along))
    np.testing.assert_allclose(slope, (ahead - behind) / (2 * h), rtol=1e-5)


def on_circle(angles, weights=None):
    return af.Particles(np.stack([np.cos(angles), np.sin(angles)], axis=1), weights=weights, space=af.Sphere())


def emd(mu, nu, costs):
    """The reference of all exact distances: POT on costs made here."""
    w = [np.full(len(m.points), 1 / len(m.points)) if m.weights is None else np.asarray(m.weights) for m in (mu, nu)]
    return np.sqrt(ot.emd2(*w, costs, numItermax=10**6))


# A mixture with a narrow component, and its quantile function by SciPy.
WEIGHTS, MEANS, SCALES = np.array([0.3, 0.7]), np.array([-2.0, 1.5]), np.array([1.0, 0.1])
MIXTURE = af.GaussianMixture(WEIGHTS, MEANS[:, None], (SCALES**2)[:, None, None])


def norm_pdf(t):
    return np.exp(-(t**2) / 2) / np.sqrt(2 * np.pi)


def density(t):
    return WEIGHTS @ (norm_pdf((t - MEANS) / SCALES) / SCALES)


def mixture_quantile(u):
    return brentq(lambda x: WEIGHTS @ norm.cdf(x, MEANS, SCALES) - u, -12, 12, xtol=1e-14)


def test_clouds_on_the_line(rng):
    mu, nu = cloud(rng, 30, 1, empty=(3, 4)), cloud(rng, 50, 1)
    np.testing.assert_allclose(af.wasserstein2(mu, nu), emd(mu, nu, cdist(mu.points, nu.points) ** 2), rtol=1e-12)
    np.testing.assert_allclose(af.wasserstein2(mu, af.Particles(mu.points + 2.0, weights=mu.weights)), 2.0, rtol=1e-12)
    x, y = af.Particles(rng.normal(size=(30, 1))), af.Particles(rng.normal(size=(30, 1)))
    np.testing.assert_allclose(af.wasserstein2(x, y), emd(x, y, cdist(x.points, y.points) ** 2), rtol=1e-12)
    assert float(af.wasserstein2(x, x)) == 0
    assert np.isfinite(jax.grad(lambda p: af.wasserstein2(af.Particles(p), x))(x.points)).all()


def test_a_law_and_a_cloud_on_the_line(rng):
    g = af.Gaussian([0.5], [[4.0]])
    np.testing.assert_allclose(af.wasserstein2(g, af.Particles([[1.0]])), np.sqrt(0.5**2 + 4), rtol=1e-14)
    # N(0, s^2) and two tokens +-a: E(|x| - a)^2 = s^2 + a^2 - 2 a s (2/pi)^1/2.
    two = af.Particles([[3.5], [-2.5]])
    np.testing.assert_allclose(af.wasserstein2(two, g), np.sqrt(4 + 9 - 12 * np.sqrt(2 / np.pi)), rtol=1e-14)
    # A Gaussian without spread is a token.
    nu = cloud(rng, 30, 1, empty=(0, 29))
    point = af.wasserstein2(af.Gaussian([0.5], [[0.0]]), nu)
    np.testing.assert_allclose(point, af.wasserstein2(af.Particles([[0.5]]), nu), rtol=1e-14)


def test_a_mixture_and_a_cloud_on_the_line(rng):
    """Every cell by adaptive quadrature; tokens without mass have no cell, however far they are."""
    x, weights = rng.normal(size=12), rng.uniform(size=12)
    x[5], x[6], weights[[5, 6]] = 1e6, -1e6, 0
    nu = af.Particles(x[:, None], weights=weights)
    rows = np.argsort(x)[1:-1]
    ends = [mixture_quantile(u) for u in np.cumsum(weights[rows] / weights.sum())[:-1]]
    total = sum(
        quad(lambda t, y=y: (t - y) ** 2 * density(t), a, b, points=[p for p in (1.2, 1.5, 1.8) if a < p < b], epsabs=1e-13)[0]
        for y, a, b in zip(x[rows], [-12, *ends], [*ends, 12])
    )
    np.testing.assert_allclose(af.wasserstein2(MIXTURE, nu), np.sqrt(total), rtol=1e-10)


def test_many_tokens_keep_their_digits():
    """Thousands of narrow cells, each by adaptive quadrature: the closed form of a cell is a difference of nearly equal numbers."""
    edges = norm.ppf(np.arange(2001) / 2000)
    tokens = norm.ppf((np.arange(2000) + 0.5) / 2000)
    cells = [quad(lambda t, y=y: (t - y) ** 2 * norm_pdf(t), a, b, epsabs=0)[0] for y, a, b in zip(tokens, edges, edges[1:])]
    np.testing.assert_allclose(af.wasserstein2(af.Gaussian([0.0], [[1.0]]), af.Particles(tokens[:, None])) ** 2, sum(cells), rtol=1e-9)


@pytest.mark.long
def test_two_mixtures_on_the_line():
    def moved(scale, shift):
        return af.GaussianMixture(WEIGHTS, scale * MEANS[:, None] + shift, (scale * SCALES[:, None, None]) ** 2)

    # An increasing affine map is optimal: |(a-1) x + b| in the mean square.
    m, second = float(MIXTURE.mean[0]), float(MIXTURE.cov[0, 0] + MIXTURE.mean[0] ** 2)
    for scale, shift in ((1.0, 3.0), (2.5, -1.0), (1.0, 1e-7)):
        expected = np.sqrt((scale - 1) ** 2 * second + 2 * (scale - 1) * shift * m + shift**2)
        np.testing.assert_allclose(af.wasserstein2(MIXTURE, moved(scale, shift)), expected, rtol=1e-8)
    g, same = af.Gaussian([1.0], [[2.0]]), af.GaussianMixture([0.2, 0.8], [[3.0], [3.0]], [[[0.5]], [[0.5]]])
    np.testing.assert_allclose(af.wasserstein2(g, same), np.sqrt(4 + 0.5), rtol=1e-12)
    # The optimal map from the mixture to g is x -> 1 + 2^1/2 Phi^-1(F(x)).
    tail = lambda x, side: norm.isf(WEIGHTS @ norm.cdf(side * (x - MEANS) / SCALES))  # noqa: E731
    gap = lambda x: (x - 1 - np.sqrt(2) * (tail(x, -1) if x > 1.5 else -tail(x, 1))) ** 2 * density(x)  # noqa: E731
    ends = [-11, -6, -2, 0, 0.7, 1.1, 1.3, 1.5, 1.7, 2, 2.3, 4, 6]
    expected = sum(quad(gap, a, b, epsabs=1e-13, epsrel=1e-11, limit=200)[0] for a, b in itertools.pairwise(ends))
    np.testing.assert_allclose(af.wasserstein2(MIXTURE, g) ** 2, expected, rtol=1e-9)


@pytest.mark.long
def test_derivatives_on_the_line(rng):
    """In tokens and weights, and in the weights, means and variances of a mixture."""
    x, w, y = rng.normal(size=(30, 1)), rng.uniform(0.5, 1, size=30), af.Particles(rng.normal(size=(50, 1)))
    law = np.array([0.4, 0.6]), np.array([[-1.0], [1.0]]), np.array([[[0.5]], [[0.3]]])

    def of_cloud(x, w):
        mu = af.Particles(x, weights=w)
        return af.wasserstein2(mu, y) + af.wasserstein2(mu, af.Gaussian([0.5], [[4.0]]))

    def of_both(x, w, *law):
        mu = af.GaussianMixture(*law)
        return af.wasserstein2(mu, af.Particles(x, weights=w)) + af.wasserstein2(mu, MIXTURE)

    check_derivative(of_cloud, x, w)
    check_derivative(of_both, x, w, *law)


def test_gaussians(rng):
    g, h = af.Gaussian([0.0, 1.0], np.diag([1.0, 4.0])), af.Gaussian([1.0, 1.0], np.diag([9.0, 1.0]))
    np.testing.assert_allclose(af.wasserstein2(g, h), np.sqrt(1 + 4 + 1), rtol=1e-12)
    A, B = rng.normal(size=(2, 3, 3))
    S, T = A @ A.T + 0.1 * np.eye(3), B @ B.T + 0.1 * np.eye(3)
    mu, nu = af.Gaussian(A[0], S), af.Gaussian(B[0], T)
    np.testing.assert_allclose(af.bures(mu, nu), ot.gaussian.bures_wasserstein_distance(A[0], B[0], S, T), rtol=1e-9)
    # Nearby laws keep their digits: S^1/2 grows by 1e-11.
    near = af.wasserstein2(mu, af.Gaussian(A[0], (1 + 1e-11) ** 2 * S))
    np.testing.assert_allclose(near, 1e-11 * np.sqrt(np.trace(S)), rtol=1e-3)
    slope = jax.grad(lambda A: af.bures(af.Gaussian(A[0], A @ A.T), nu))
    check_derivative(lambda A: jnp.sum(slope(A) ** 2), A)


@pytest.mark.long
def test_the_circle(rng):
    a, b, p, q = rng.uniform(-9, 9, size=30), rng.normal(size=50), rng.uniform(size=30) ** 3, rng.uniform(size=50)
    p[4] = 0
    mu, nu = on_circle(a, p), on_circle(b, q)
    arcs = np.abs(np.angle(np.exp(1j * (a[:, None] - b[None]))))
    np.testing.assert_allclose(af.wasserstein2(mu, nu), emd(mu, nu, arcs**2), rtol=1e-12)
    turns = ot.wasserstein_circle(a / (2 * np.pi) % 1, b / (2 * np.pi) % 1, p / p.sum(), q / q.sum(), p=2)[0]
    np.testing.assert_allclose(af.wasserstein2(mu, nu), 2 * np.pi * np.sqrt(turns), rtol=1e-8)
    # Evenly spaced tokens see a rotation up to the spacing only.
    even = 2 * np.pi * np.arange(30) / 30
    for angle, expected in ((0.05, 0.05), (-0.1, 0.1), (2 * np.pi / 30 + 0.02, 0.02), (np.pi / 30, np.pi / 30)):
        np.testing.assert_allclose(af.wasserstein2(on_circle(even), on_circle(even + angle)), expected, rtol=1e-9)
    for angle in (1e-9, 3.0, np.pi):
        np.testing.assert_allclose(af.wasserstein2(on_circle(np.array([0.2])), on_circle(np.array([0.2 + angle]))), angle, rtol=1e-6)

    def turned(a, p):
        return af.wasserstein2(af.Particles(jnp.stack([jnp.cos(a), jnp.sin(a)], axis=1), weights=p, space=af.Sphere()), nu)

    check_derivative(turned, a, p + 0.1)


@pytest.mark.parametrize("space", [af.Euclidean(), af.Sphere()])
@pytest.mark.long
def test_clouds_in_space(rng, space):
    mu, nu = (af.Particles(space.nearest(c.points), c.weights, space=space) for c in (cloud(rng, 30, 3, empty=(3, 4)), cloud(rng, 50, 3)))
    costs = cdist(mu.points, nu.points) if isinstance(space, af.Euclidean) else np.arccos(np.asarray(mu.points @ nu.points.T))
    np.testing.assert_allclose(af.wasserstein2(mu, nu), emd(mu, nu, costs**2), rtol=1e-12)

    def moved(x, w):
        return af.wasserstein2(af.Particles(space.nearest(x), weights=w, space=space), nu)

    check_derivative(moved, mu.points, mu.weights + 0.01, compiled=False)


@pytest.mark.long
def test_the_simplex_at_any_scale(rng):
    """A shift is optimal, however small and wherever the cloud is; one token; S^1 as a great circle of S^2."""
    x, v = rng.normal(size=(30, 3)), np.array([1.0, 2.0, 2.0])
    for size in (1e-12, 1.0, 1e12):
        np.testing.assert_allclose(af.wasserstein2(af.Particles(size * x), af.Particles(size * (x + v))), 3 * size, rtol=1e-12)
    np.testing.assert_allclose(af.wasserstein2(af.Particles(x[:1]), af.Particles(x[:1] + v)), 3, rtol=1e-12)
    near, rows = x + 1e-9 * rng.normal(size=(30, 3)), rng.permutation(30)
    expected = np.sqrt(np.mean(np.sum((near - x) ** 2, axis=1)))
    np.testing.assert_allclose(af.wasserstein2(af.Particles(x), af.Particles(near[rows])), expected, rtol=1e-10)
    assert float(af.wasserstein2(af.Particles(x), af.Particles(x))) == 0
    mu, nu = on_circle(rng.normal(size=30)), on_circle(rng.normal(size=50))
    lifted = [af.Particles(np.pad(m.points, ((0, 0), (0, 1))), space=af.Sphere()) for m in (mu, nu)]
    np.testing.assert_allclose(af.wasserstein2(mu, nu), af.wasserstein2(*lifted), rtol=1e-12)


def test_the_simplex_says_when_it_fails(rng, monkeypatch):
    from attnflow.transport.distances import discrete

    mu, nu = cloud(rng, 30, 3), cloud(rng, 50, 3)
    with pytest.raises(TypeError, match=r"runs on the host, not inside jit, .*; use sliced_wasserstein2, or sinkhorn_divergence"):
        jax.jit(af.wasserstein2)(mu, nu)
    with monkeypatch.context() as patch:
        patch.setattr(discrete, "_PIVOTS", 3)
        with pytest.raises(RuntimeError, match="stopped short of the optimum: numItermax reached"):
            af.wasserstein2(mu, nu)
    independent = np.outer(mu.weights, nu.weights)
    log = {"warning": None, "G": independent, "v": np.zeros(50)}
    monkeypatch.setattr(ot, "emd2", lambda *args, **options: (0.0, log))
    with pytest.raises(RuntimeError, match=r"the plan of POT is not optimal: its cost .* is off by up to"):
        af.wasserstein2(mu, nu)
    many = af.Particles(np.zeros((5001, 2)))
    with pytest.raises(ValueError, match="at most 25000000 pairs of tokens, got 5001 x 5001; use sliced_wasserstein2, or sinkhorn_div"):
        af.wasserstein2(many, many)


@pytest.mark.long
def test_sliced(rng, key):
    mu, nu, theta = cloud(rng, 30, 3, empty=(3, 4)), cloud(rng, 50, 3), rng.normal(size=(20, 3))
    unit = theta / np.linalg.norm(theta, axis=1, keepdims=True)
    expected = ot.sliced_wasserstein_distance(
        np.asarray(mu.points), np.asarray(nu.points), np.asarray(mu.weights), np.asarray(nu.weights), projections=unit.T
    )
    np.testing.assert_allclose(af.sliced_wasserstein2(mu, nu, theta), expected, rtol=1e-10)
    line = af.Particles(mu.points[:, :1], mu.weights), af.Particles(nu.points[:, :1])
    np.testing.assert_allclose(af.sliced_wasserstein2(*line, 3, key=key), af.wasserstein2(*line), rtol=1e-12)
    check_derivative(lambda x: af.sliced_wasserstein2(af.Particles(x), nu, theta), mu.points)


def test_sliced_laws(rng, key):
    theta = rng.normal(size=(20, 3))
    unit = theta / np.linalg.norm(theta, axis=1, keepdims=True)
    m, root = rng.normal(size=3), rng.normal(size=(3, 3))
    g, h = af.Gaussian(m, 4 * np.eye(3)), af.Gaussian(m, np.eye(3))
    np.testing.assert_allclose(af.sliced_wasserstein2(g, h, 20, key=key), 1.0, rtol=1e-12)
    # A law to one token: the square is the mean square distance along each direction.
    y, mix = rng.normal(size=3), af.GaussianMixture([0.5, 0.5], [m, -m], [root @ root.T, np.eye(3)])
    spread = np.einsum("ki,ij,kj->k", unit, np.asarray(mix.cov), unit) + (unit @ (np.asarray(mix.mean) - y)) ** 2
    np.testing.assert_allclose(af.sliced_wasserstein2(mix, af.Particles(y[None]), theta), np.sqrt(spread.mean()), rtol=1e-10)


def test_the_standard_error_of_drawn_directions(rng):
    """Two tokens: SW2^2 = E <theta, v>^2 = |v|^2 / d, and the spread over keys is the one that the docstring states."""
    d, k, v = 5, 64, np.array([[1.0, 2.0, 0.0, 0.0, 2.0]])
    draw = jax.jit(lambda key: af.sliced_wasserstein2(af.Particles(v), af.Particles(0 * v), k, key=key))
    draws = np.array([draw(key) for key in jax.random.split(jax.random.key(0), 200)])
    np.testing.assert_allclose(np.mean(draws**2), 9 / d, rtol=5 * np.sqrt((2 * d - 2) / ((d + 2) * k * 200)))
    np.testing.assert_allclose(draws.std() / draws.mean(), np.sqrt((d - 1) / (2 * (d + 2) * k)), rtol=0.2)


def test_energy_distance(rng):
    x, y, p, q = rng.normal(size=(30, 1)), rng.normal(size=(50, 1)), rng.uniform(size=30), rng.uniform(size=50)
    p[3], x[7] = 0, x[8]
    expected = energy_distance(x[:, 0], y[:, 0], p, q)
    np.testing.assert_allclose(af.energy_distance(af.Particles(x, weights=p), af.Particles(y, weights=q)), expected, rtol=1e-12)
    # In space: over all pairs, in several tiles.
    mu, nu = cloud(rng, 600, 3, empty=(3, 4)), cloud(rng, 300, 3)
    mean = lambda a, b: np.asarray(a.weights) @ cdist(a.points, b.points) @ np.asarray(b.weights)  # noqa: E731
    np.testing.assert_allclose(af.energy_distance(mu, nu), np.sqrt(2 * mean(mu, nu) - mean(mu, mu) - mean(nu, nu)), rtol=1e-10)
    assert float(af.energy_distance(mu, mu)) == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.cases
def test_derivatives_of_the_energy_distance(rng, d):
    """Tokens that coincide, where |x - x'| has no derivative, move together."""
    nu = cloud(rng, 50, d)
    check_derivative(lambda x: af.energy_distance(af.Particles(x[jnp.array([0, 0, 0, 1, 2, 3])]), nu), rng.normal(size=(4, d)))


@pytest.mark.long
def test_mmd_of_clouds(rng):
    mu, nu, h = cloud(rng, 30, 3, empty=(3, 4)), cloud(rng, 50, 3), 0.7
    mean = lambda a, b: np.asarray(a.weights) @ np.exp(-(cdist(a.points, b.points) ** 2) / (2 * h**2)) @ np.asarray(b.weights)  # noqa: E731
    expected = np.sqrt(mean(mu, mu) + mean(nu, nu) - 2 * mean(mu, nu))
    np.testing.assert_allclose(af.mmd(mu, nu, h), expected, rtol=1e-12)
    check_derivative(lambda x, h: af.mmd(af.Particles(x), af.Gaussian(np.zeros(3), np.eye(3)), h), mu.points, jnp.asarray(h))


@pytest.mark.long
def test_mmd_of_laws_is_that_of_their_tokens():
    """Tokens without sampling noise stand for the laws; and the formula for two Gaussians on the line."""
    h, g = 0.8, af.Gaussian([0.5], [[2.0]])
    mixture_tokens, tokens = af.quadrature(MIXTURE, 200), af.quadrature(g, 200)
    expected = af.mmd(mixture_tokens, tokens, h)
    for pair in ((MIXTURE, g), (g, mixture_tokens)):
        np.testing.assert_allclose(af.mmd(*pair, h), expected, rtol=1e-8)
    kernel = lambda m, s2: h / np.sqrt(h**2 + s2) * np.exp(-(m**2) / (2 * (h**2 + s2)))  # noqa: E731
    expected = np.sqrt(kernel(0, 4) + kernel(0, 0) - 2 * kernel(1.5, 2))
    np.testing.assert_allclose(af.mmd(g, af.Gaussian([2.0], [[0.0]]), h), expected, rtol=1e-12)


def test_precision_follows_the_input(rng):
    mu, nu = cloud(rng, 30, 3), cloud(rng, 50, 3)
    single = [af.Particles(m.points.astype(np.float32), weights=m.weights) for m in (mu, nu)]
    exact, rough = af.wasserstein2(mu, nu), af.wasserstein2(*single)
    assert rough.dtype == jnp.float32
    np.testing.assert_allclose(rough, exact, rtol=1e-5)
    both = af.wasserstein2(single[0], nu)
    assert both.dtype == jnp.float64
    np.testing.assert_allclose(both, exact, rtol=1e-6)


def test_bad_input_is_named(rng, key):
    line, plane, g = cloud(rng, 5, 1), cloud(rng, 5, 2), af.Gaussian([0.0, 0.0], np.eye(2))
    for distance in (af.wasserstein2, af.sliced_wasserstein2, af.energy_distance, lambda a, b: af.mmd(a, b, 1.0)):
        with pytest.raises(ValueError, match=r"both measures must live in one space, got R\^1 and R\^2"):
            distance(line, plane)
        with pytest.raises(
            ValueError, match="both measures must live on one space, got Euclidean and Sphere; give both clouds the same sp"
        ):
            distance(plane, on_circle(np.arange(3.0)))
    with pytest.raises(
        TypeError, match=r"in R\^2 wasserstein2 is for two clouds or two Gaussians, got Particles and Gaussian; draw tokens"
    ):
        af.wasserstein2(plane, g)
    with pytest.raises(TypeError, match="energy_distance is for two clouds, got Gaussian and Particles; draw tokens"):
        af.energy_distance(g, plane)
    with pytest.raises(ValueError, match=r"random directions need a key, got none; give key=jax.random.key\(0\)"):
        af.sliced_wasserstein2(plane, plane)
    with pytest.raises(ValueError, match="directions must be at least 1, got 0"):
        af.sliced_wasserstein2(plane, plane, 0, key=key)
    with pytest.raises(ValueError, match=r"directions must be rows in R\^2 like the measures, got \[3, 3\]"):
        af.sliced_wasserstein2(plane, plane, np.eye(3))
    with pytest.raises(ValueError, match="directions must not be zero, got one in row 1"):
        af.sliced_wasserstein2(plane, plane, np.array([[1.0, 0.0], [0.0, 0.0]]))
    with pytest.raises(ValueError, match="bandwidth must be positive, got 0"):
        af.mmd(plane, plane, 0.0)
    with pytest.raises(ValueError, match=r"a spectral sum is for tokens in R\^1, R\^2 or R\^3, got R\^5"):
        af.mmd(af.Particles(np.eye(5)), af.Particles(np.eye(5)), 1.0, sums=af.Spectral())


def test_a_larger_circle_has_larger_distances(rng):
    """Arc lengths on a circle of radius r are r times those of the angles, and two radii are two spaces."""
    angles = rng.uniform(0, 2 * np.pi, (2, 7))
    points = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    unit = [af.Particles(x, space=af.Sphere()) for x in points]
    large = [af.Particles(3 * x, space=af.Sphere(radius=3.0)) for x in points]
    np.testing.assert_allclose(af.wasserstein2(*large), 3 * af.wasserstein2(*unit), rtol=1e-12)
    with pytest.raises(ValueError, match="must live on one space, got Sphere and Sphere of radius 3"):
        af.wasserstein2(unit[0], large[0])
