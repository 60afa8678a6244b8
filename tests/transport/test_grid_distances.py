"""Distances of grids: against closed forms, SciPy and POT, and against the other pictures of the same law."""

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


def line(mass, low=0.0, width=1.0):
    """A grid with these masses, in cells of this width."""
    mass = np.asarray(mass, dtype=float)
    return af.Grid(mass / mass.sum() / width, [af.Interval(low, low + width * len(mass), len(mass))])


def circle(mass):
    mass = np.asarray(mass, dtype=float)
    return af.Grid(mass / mass.sum() * len(mass) / (2 * np.pi), [af.Circle(len(mass))])


def normal(cells, low=-9.0, high=9.0, mean=0.0):
    return af.Grid.from_density(lambda x: jnp.exp(-((x[:, 0] - mean) ** 2) / 2) / np.sqrt(2 * np.pi), [af.Interval(low, high, cells)])


def on_circle(angles, weights=None):
    return af.Particles(np.stack([np.cos(angles), np.sin(angles)], axis=1), weights=weights, space=af.Sphere())


def bumps(cells, center, concentration):
    """A von Mises law."""
    peak = np.array([np.cos(center), np.sin(center)])
    return af.Grid.from_density(
        lambda x: jnp.exp(concentration * (x @ peak - 1)) / (2 * np.pi * np.exp(-concentration) * np.i0(concentration)), [af.Circle(cells)]
    )


def split(mu, parts):
    """Angles or points, and masses, when each cell of a grid is so many equally spaced tokens."""
    axis = mu.axes[0]
    inside = axis.width * ((np.arange(parts) + 0.5) / parts - 0.5)
    return (np.asarray(axis.centers)[:, None] + inside[None]).reshape(-1), np.repeat(np.asarray(mu.mass) / parts, parts)


def emd(mu, nu, costs):
    """The reference of exact distances: POT on costs made here."""
    return np.sqrt(ot.emd2(*(np.exp(np.asarray(m.log_weights)) for m in (mu, nu)), costs, numItermax=10**6))


def check_slope(f, mass, rng, compiled=True):
    """The derivative of a function of masses, against a central difference."""
    mass, h = jnp.asarray(mass), 1e-5
    along = rng.normal(size=mass.shape) * (mass > 0)
    both = jax.jit(jax.value_and_grad(f)) if compiled else jax.value_and_grad(f)
    ahead, behind = (both(mass + sign * h * along)[0] for sign in (1, -1))
    np.testing.assert_allclose(jnp.vdot(both(mass)[1], along), (ahead - behind) / (2 * h), rtol=1e-5)


@pytest.mark.long
def test_a_uniform_law_on_the_line():
    """To N(m, s^2): `(c-m)^2 + L^2/12 + s^2 - s L / pi^1/2`, however many cells; to one token `(c-y)^2 + L^2/12`."""
    for low, length, m, s in ((-1.0, 4.0, 0.5, 2.0), (-1.0, 4.0, 40.0, 1e-3), (0.0, 1e-3, 0.0, 1.0), (-1.0, 4.0, 0.5, 0.0)):
        square = (low + length / 2 - m) ** 2 + length**2 / 12 + s**2 - s * length / np.sqrt(np.pi)
        for cells in (2, 60):
            mu = af.Grid.uniform([af.Interval(low, low + length, cells)])
            np.testing.assert_allclose(af.wasserstein2(mu, af.Gaussian([m], [[s**2]])), np.sqrt(square), rtol=1e-10)
            np.testing.assert_allclose(
                af.wasserstein2(af.Particles([[m]]), mu), np.hypot(low + length / 2 - m, length / 12**0.5), rtol=1e-13
            )
    # Half the mass goes to each of two tokens: 1/2 to the left of 1 goes to 0, the rest to 5.
    mu, two = af.Grid.uniform([af.Interval(0.0, 2.0, 60)]), af.Particles([[5.0], [0.0]])
    np.testing.assert_allclose(af.wasserstein2(mu, two) ** 2, 0.5 / 3 + 0.5 * (3.5**2 + 1 / 12), rtol=1e-13)


@pytest.mark.long
def test_the_grid_of_a_gaussian_is_second_order():
    """`mu_h` has the standard deviation 1 + h^2/24 and a density that is constant in each cell: W2 is 0.0559 h^2."""
    law = af.Gaussian([0.0], [[1.0]])
    errors = np.array([af.wasserstein2(normal(cells), law) for cells in (30, 60, 240)])
    np.testing.assert_allclose(errors[:-1] / errors[1:], [4, 16], rtol=0.02)
    np.testing.assert_allclose(errors[-1], 0.0559 * (18 / 240) ** 2, rtol=1e-3)
    # A mixture of one law twice is that law.
    twice = af.GaussianMixture([0.3, 0.7], [[0.0], [0.0]], [[[1.0]], [[1.0]]])
    np.testing.assert_allclose(af.wasserstein2(twice, normal(60)), errors[1], rtol=1e-8)


def test_a_grid_and_a_mixture_against_quadrature(rng):
    """Each cell by adaptive quadrature: `integral (x - L(F(x)))^2 rho(x) dx` with L the quantile function of the cell."""
    weights, means, scales = np.array([0.3, 0.7]), np.array([-2.0, 1.5]), np.array([1.0, 0.1])
    mixture = af.GaussianMixture(weights, means[:, None], (scales**2)[:, None, None])
    mass = np.array([0.1, 0.0, 0.5, 0.0, 0.0, 0.4])
    levels = np.append(0.0, np.cumsum(mass))
    cdf = lambda x: weights @ norm.cdf(x, means, scales)  # noqa: E731
    ends = [-12.0, *(brentq(lambda x, u=u: cdf(x) - u, -12, 12, xtol=1e-14) for u in levels[1:-1]), 12.0]

    def gap(x, i):
        return (x + 3 - i - (cdf(x) - levels[i]) / mass[i]) ** 2 * (weights @ norm.pdf(x, means, scales))

    total = sum(
        quad(gap, ends[i], ends[i + 1], args=(i,), points=[p for p in (1.2, 1.5, 1.8) if ends[i] < p < ends[i + 1]], epsabs=1e-12)[0]
        for i in np.flatnonzero(mass)
    )
    np.testing.assert_allclose(af.wasserstein2(line(mass, low=-3.0), mixture) ** 2, total, rtol=1e-9)


def test_a_shift_by_whole_cells(rng):
    mass = rng.uniform(size=20) ** 6
    mass[[3, 4, 9]] = 0
    mu = line(np.append(mass, np.zeros(40)), width=0.25)
    for cells in (1, 7, 40):
        moved = mu.with_state(jnp.roll(mu.mass, cells))
        np.testing.assert_allclose(af.wasserstein2(mu, moved), 0.25 * cells, rtol=1e-13)
        assert float(af.wasserstein2(moved, mu)) == float(af.wasserstein2(mu, moved))
    assert float(af.wasserstein2(mu, mu)) == 0
    # The same law in finer cells, and in another box.
    finer = line(np.concatenate([np.repeat(mass, 2), np.zeros(20)]), width=0.125)
    np.testing.assert_allclose(af.wasserstein2(mu, finer), 0, atol=1e-7)


def test_two_grids_on_the_line_against_scipy_and_pot(rng):
    left, right = rng.uniform(size=6) ** 3, rng.uniform(size=9)
    left[2] = 0
    mu, nu, cloud = line(left, -1.0, 0.5), line(right, 0.3, 0.2), af.Particles(rng.normal(size=(7, 1)), weights=rng.uniform(size=7))
    for other in (nu, cloud):
        (x, p), (y, q) = split(mu, 200), split(other, 200) if other is nu else (np.asarray(other.points[:, 0]), np.asarray(other.weights))
        np.testing.assert_allclose(af.wasserstein2(mu, other) ** 2, ot.emd2_1d(x, y, p, q), rtol=1e-5)
    levels, finer = (np.append(0.0, np.cumsum(np.asarray(m.mass))) for m in (mu, nu))
    inverse = lambda u: np.interp(u, levels, -1 + 0.5 * np.arange(7)) - np.interp(u, finer, 0.3 + 0.2 * np.arange(10))  # noqa: E731
    breaks = np.unique(np.concatenate([levels, finer]))
    exact = sum(quad(lambda u: inverse(u) ** 2, a, b, epsabs=1e-14)[0] for a, b in itertools.pairwise(breaks))
    np.testing.assert_allclose(af.wasserstein2(mu, nu) ** 2, exact, rtol=1e-10)


@pytest.mark.long
def test_the_quantiles_of_a_grid_come_close():
    """n tokens are within 1/n of a law whose density has a lower bound; of the uniform law exactly `L / (12^1/2 n)`."""
    sloped = af.Grid.from_density(lambda x: (1 + x[:, 0]) / 4, [af.Interval(0.0, 2.0, 60)])
    for mu in (sloped, bumps(60, 1.0, 1.0)):
        near = [float(af.wasserstein2(mu, mu.quantiles(n))) for n in (20, 200)]
        np.testing.assert_allclose(near[0] / near[1], 10, rtol=0.05)
    flat = af.Grid.uniform([af.Interval(0.0, 2.0, 60)])
    np.testing.assert_allclose(af.wasserstein2(flat, flat.quantiles(200)), 2 / np.sqrt(12) / 200, rtol=1e-11)


@pytest.mark.long
def test_derivatives_in_the_masses(rng):
    """On the line, against each picture. Levels that meet, here 1/2 where one law leaves a gap and the other does not, change nothing."""
    others = (line(rng.uniform(size=9)), af.Particles(rng.normal(size=(5, 1))), af.Gaussian([1.0], [[2.0]]))
    base, even = line(np.ones(6), low=-2.0), line([0, 0, 0, 1, 1, 1, 1, 0, 0])

    def to_all(mass):
        mu = base.with_state(mass / jnp.sum(mass))
        return sum(af.wasserstein2(mu, other) for other in others)

    check_slope(to_all, rng.uniform(0.2, 1, size=6), rng)
    check_slope(lambda mass: af.wasserstein2(base.with_state(mass / jnp.sum(mass)), even), [0, 1.0, 0, 0, 1, 0], rng)


@pytest.mark.long
def test_derivatives_on_the_circle(rng):
    """In the masses of the cells. If both laws leave an arc empty, the best shift is where these arcs meet."""
    ring, spread, arc = circle(np.ones(12)), rng.uniform(0.2, 1, size=20), np.where(np.arange(20) < 8, 1.0, 0.0)
    gaps, wrapped = np.zeros(12), np.zeros(12)
    gaps[[1, 3]], wrapped[[0, 1, 2, 11]] = 1, [1, 0.3, 0.2, 0.5]

    @jax.jit
    def value_and_slope(mass, other):
        to = lambda mass: af.wasserstein2(ring.with_state(mass / jnp.sum(mass)), circle_of(other))  # noqa: E731
        return jax.value_and_grad(to)(mass)

    def circle_of(mass):
        return af.Grid.uniform([af.Circle(20)]).with_state(mass / jnp.sum(mass))

    for mass, other in ((rng.uniform(0.2, 1, size=12), spread), (gaps, arc), (wrapped, arc)):
        along, h = rng.normal(size=12) * (mass > 0), 1e-5
        ahead, behind = (value_and_slope(mass + sign * h * along, other)[0] for sign in (1, -1))
        np.testing.assert_allclose(np.vdot(value_and_slope(mass, other)[1], along), (ahead - behind) / (2 * h), rtol=1e-5)
    tokens = on_circle(rng.uniform(0, 6, size=5))
    check_slope(lambda mass: af.wasserstein2(ring.with_state(mass / jnp.sum(mass)), tokens), rng.uniform(0.2, 1, size=12), rng)


@pytest.mark.long
def test_the_circle_against_pot(rng):
    left, right = rng.uniform(size=12) ** 2, rng.uniform(size=20) ** 2
    for empty in (slice(0, 0), slice(3, 7)):
        left[empty], right[empty] = 0, 0
        mu, nu, cloud = circle(left), circle(right), on_circle(rng.uniform(0, 6, size=7), rng.uniform(size=7))
        (x, p), (y, q) = split(mu, 40), split(nu, 24)
        exact = ot.wasserstein_circle(x / (2 * np.pi), y / (2 * np.pi), p, q, p=2)[0]
        np.testing.assert_allclose(af.wasserstein2(mu, nu), 2 * np.pi * np.sqrt(exact), rtol=1e-3)
        np.testing.assert_allclose(af.wasserstein2(mu, nu), af.wasserstein2(nu, mu), rtol=1e-13)
        np.testing.assert_allclose(af.wasserstein2(mu, cloud), af.wasserstein2(cloud, on_circle(x, p)), rtol=1e-3)


@pytest.mark.parametrize("concentration", [200.0, 600.0])
@pytest.mark.long
def test_a_turn_by_whole_cells(concentration):
    """A law on a short arc turns as on a line, however little mass there is elsewhere; a turn by half goes both ways round."""
    mu = bumps(512, 0.3, concentration)
    for cells in (1, 7, 170):
        turned = mu.with_state(jnp.roll(mu.mass, cells))
        np.testing.assert_allclose(af.wasserstein2(mu, turned), 2 * np.pi * cells / 512, rtol=1e-9)
    np.testing.assert_allclose(af.wasserstein2(mu, mu), 0, atol=1e-7)
    away = af.wasserstein2(mu, mu.with_state(jnp.roll(mu.mass, 256)))
    angles, weights = split(mu, 4)
    np.testing.assert_allclose(away, af.wasserstein2(on_circle(angles, weights), on_circle(angles + np.pi, weights)), rtol=1e-4)
    # The uniform law does not see a turn; to a token all arcs count: pi^2 / 3.
    flat = af.Grid.uniform([af.Circle(12)])
    np.testing.assert_allclose(af.wasserstein2(flat, af.Grid.uniform([af.Circle(20)])), 0, atol=1e-7)
    np.testing.assert_allclose(af.wasserstein2(flat, on_circle([1.0])), np.pi / np.sqrt(3), rtol=1e-12)


@pytest.mark.long
def test_the_plane(rng):
    """Cells as tokens: a shift by whole cells is exact, empty cells do not count, POT agrees."""
    mass = np.zeros((80, 80))
    mass[10:18, 10:16] = rng.uniform(size=(8, 6))
    axes = [af.Interval(0.0, 8.0, 80), af.Interval(0.0, 16.0, 80)]
    mu = af.Grid(mass / mass.sum() / 0.02, axes)
    moved = mu.with_state(jnp.roll(mu.mass, (3, 2), (0, 1)))
    np.testing.assert_allclose(af.wasserstein2(mu, moved), np.hypot(0.3, 0.4), rtol=1e-10)
    cloud = af.Particles(rng.normal(size=(9, 2)))
    np.testing.assert_allclose(af.wasserstein2(mu, cloud), emd(mu, cloud, cdist(mu.points, cloud.points) ** 2), rtol=1e-9)
    with pytest.raises(ValueError, match="at most 25000000 pairs of tokens, got 6400 x 6400"):
        af.wasserstein2(af.Grid.uniform(axes), af.Grid.uniform(axes))
    small = af.Grid.uniform([af.Interval(0.0, 1.0, 3), af.Interval(0.0, 1.0, 3)])
    check_slope(lambda m: af.wasserstein2(small.with_state(m / m.sum()), cloud), rng.uniform(0.2, 1, size=(3, 3)), rng, compiled=False)


def test_the_sphere(rng, key):
    mu = af.Grid.from_density(lambda x: (1 + x @ np.array([0.6, 0.0, 0.8])) / (4 * np.pi), [af.Icosphere(4)])
    nu = af.samplers.sphere(60, 3, key=key)
    arcs = np.arccos(np.clip(np.asarray(mu.points @ nu.points.T), -1, 1))
    np.testing.assert_allclose(af.wasserstein2(mu, nu), emd(mu, nu, arcs**2), rtol=1e-9)
    np.testing.assert_allclose(af.wasserstein2(nu, mu), af.wasserstein2(mu, nu), rtol=1e-9)


def test_two_zonal_grids():
    """Mass moves along meridians: the plan of POT on rings of tokens costs the same."""
    mass = np.zeros(12)
    mass[[2, 3, 5]] = 0.2, 0.3, 0.5
    mu = af.Grid.uniform([af.Zonal(3, 12)]).with_state(jnp.asarray(mass))
    nu = mu.with_state(jnp.roll(mu.mass, 4))
    turn = 2 * np.pi * np.arange(8) / 8

    def rings(mu):
        angle = np.asarray(mu.axes[0].centers)[:, None] + 0 * turn[None]
        points = np.stack([np.cos(angle), np.sin(angle) * np.cos(turn), np.sin(angle) * np.sin(turn)], axis=-1).reshape(-1, 3)
        return af.Particles(points, np.repeat(np.asarray(mu.mass), 8), space=af.Sphere())

    np.testing.assert_allclose(af.wasserstein2(mu, nu), 4 * np.pi / 12, rtol=1e-12)
    np.testing.assert_allclose(af.wasserstein2(rings(mu), rings(nu)), 4 * np.pi / 12, rtol=1e-9)


@pytest.mark.long
def test_sliced(rng, key):
    mu, nu = line(rng.uniform(size=6)), line(rng.uniform(size=4), low=1.0)
    np.testing.assert_allclose(af.sliced_wasserstein2(mu, nu, np.array([[1.0], [-2.0]])), af.wasserstein2(mu, nu), rtol=1e-12)
    gaussian = af.Gaussian([0.0, 0.0], np.eye(2))
    plane = [af.Interval(-6.0, 6.0, 40)] * 2
    mu = af.Grid.from_density(lambda x: jnp.exp(-jnp.sum(x**2, axis=1) / 2) / (2 * np.pi), plane)
    # Along an axis tokens are 0.3 apart: 0.3 / 12^1/2 is left out; along other directions the middles of cells fill the line.
    np.testing.assert_allclose(af.sliced_wasserstein2(mu, gaussian, np.eye(2)), 0.3 / np.sqrt(12), rtol=1e-2)
    assert float(af.sliced_wasserstein2(mu, gaussian, 16, key=key)) < 0.03


@pytest.mark.long
def test_energy_distance(rng):
    """Uniform laws: `E|x-y| = L/3` within one; on the line exact, elsewhere that of the cells as tokens."""
    first, second = af.Grid.uniform([af.Interval(0.0, 1.0, 6)]), af.Grid.uniform([af.Interval(1.0, 2.0, 9)])
    np.testing.assert_allclose(af.energy_distance(first, second), np.sqrt(2 - 2 / 3), rtol=1e-13)
    np.testing.assert_allclose(af.energy_distance(af.Particles([[0.0]]), first), np.sqrt(1 - 1 / 3), rtol=1e-13)
    mu, nu = line(rng.uniform(size=6)), line(rng.uniform(size=9), low=1.5, width=0.3)
    (x, p), (y, q) = split(mu, 300), split(nu, 300)
    np.testing.assert_allclose(af.energy_distance(mu, nu), energy_distance(x, y, p, q), rtol=1e-5)
    check_slope(lambda m: af.energy_distance(mu.with_state(m / jnp.sum(m)), nu), rng.uniform(0.2, 1, size=6), rng)
    ring, cloud = bumps(60, 1.0, 2.0), on_circle(rng.normal(size=20))
    np.testing.assert_allclose(af.energy_distance(ring, cloud), af.energy_distance(ring.particles(), cloud), rtol=1e-12)


def test_mmd_of_the_grid_of_a_gaussian():
    """The kernel is smooth, and so is the density: the middles of cells see no difference."""
    law, moved = af.Gaussian([0.0], [[1.0]]), af.Gaussian([1.0], [[1.0]])
    np.testing.assert_allclose(af.mmd(normal(60), law, 0.7), 0, atol=1e-7)
    np.testing.assert_allclose(af.mmd(normal(60, mean=1.0), normal(60, -8, 8), 0.7), af.mmd(moved, law, 0.7), rtol=1e-9)
    with pytest.raises(ValueError, match=r"a cell is wider than the kernel, whose width is 0.1: the axis needs at least 180 cells, got 60"):
        af.mmd(normal(60), law, 0.1)


@pytest.mark.long
def test_sinkhorn_divergence_of_the_grid_of_a_gaussian():
    exact = af.sinkhorn_divergence(af.Gaussian([1.0], [[1.0]]), af.Gaussian([0.0], [[1.0]]), 1.0)
    np.testing.assert_allclose(af.sinkhorn_divergence(normal(60, mean=1.0), normal(60, -8, 8), 1.0), exact, rtol=1e-7)


def test_moments():
    mu = normal(60, mean=0.5)
    np.testing.assert_allclose(af.bures(af.Gaussian.matching(mu), af.Gaussian([0.5], [[1.0]])), 0, atol=1e-9)
    np.testing.assert_allclose(af.bures(mu, af.Gaussian([2.5], [[4.0]])), np.sqrt(4 + 1), rtol=1e-9)
    # Of all laws with these moments Gaussians are the closest.
    nu = af.Grid.uniform([af.Interval(-1.0, 4.0, 60)])
    assert float(af.bures(mu, nu)) < float(af.wasserstein2(mu, nu))
    sphere = af.Gaussian.matching(af.Grid.uniform([af.Zonal(4, 64)]))
    np.testing.assert_allclose(sphere.cov, np.eye(4) / 4, atol=1e-3)


def test_precision_follows_the_input(rng):
    mu, nu = line(rng.uniform(size=6)), line(rng.uniform(size=9), low=2.0)
    single = [jax.tree.map(lambda leaf: leaf.astype(np.float32) if leaf.dtype == np.float64 else leaf, m) for m in (mu, nu)]
    rough = af.wasserstein2(*single)
    assert rough.dtype == jnp.float32
    np.testing.assert_allclose(rough, af.wasserstein2(mu, nu), rtol=1e-5)
    assert af.wasserstein2(single[0], nu).dtype == jnp.float64


def test_bad_input_is_named(rng):
    plane, ring, zonal = (
        af.Grid.uniform([af.Interval(0.0, 1.0, 3)] * 2),
        af.Grid.uniform([af.Circle(12)]),
        af.Grid.uniform([af.Zonal(3, 8)]),
    )
    ordered = af.Grid.uniform([af.Order(3, length=9), af.Interval(0.0, 1.0, 6)])
    flat = af.Grid.uniform([af.Interval(0.0, 1.0, 6)])
    for distance in (af.wasserstein2, af.sliced_wasserstein2, af.energy_distance, lambda a, b: af.mmd(a, b, 1.0)):
        with pytest.raises(
            ValueError, match=r"does not see the order of tokens, .*: af.Grid\(mu.mass.sum\(axis=0\) / mu.axes\[1\].width, "
        ):
            distance(flat, ordered)
        with pytest.raises(ValueError, match=r"a Zonal grid is a band, not a place for a token; draw tokens with .sample\(n, key=key\)"):
            distance(af.Grid.uniform([af.Icosphere(2)]), zonal)
        with pytest.raises(ValueError, match="both measures must live on one space, got Euclidean and Sphere"):
            distance(plane, ring)
        with pytest.raises(ValueError, match=r"both measures must live in one space, got R\^1 and R\^2"):
            distance(flat, plane)
    assert float(af.wasserstein2(flat, af.Grid(ordered.mass.sum(axis=0) / ordered.axes[1].width, ordered.axes[1:]))) == pytest.approx(
        0, abs=1e-8
    )
    with pytest.raises(ValueError, match=r"both measures must live in one space, got R\^3 and R\^4"):
        af.wasserstein2(zonal, af.Grid.uniform([af.Zonal(4, 8)]))
    with pytest.raises(TypeError, match=r"in R\^2 wasserstein2 is for two clouds or two Gaussians, got Grid and Gaussian; draw tokens"):
        af.wasserstein2(plane, af.Gaussian([0.0, 0.0], np.eye(2)))
    with pytest.raises(TypeError, match=r"a bridge is for Particles or a Grid in R\^d, .*, got Grid on the Sphere"):
        af.sinkhorn_divergence(ring, ring, 1.0)
    with pytest.raises(ValueError, match="does not see the order of tokens"):
        af.sinkhorn_divergence(ordered, flat, 1.0)
