"""Grids: geometry of cells and faces, conservation, positivity, order in the cell, and the way to and from tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af
from attnflow.measures.grid.mesh import mesh
from attnflow.measures.grid.volumes import face_velocity, heat, laplace, outflow, scharfetter_gummel, transport
from attnflow.measures.grid.zonal import rule_around

ALL = {
    "line": [af.Interval(-3, 3, 40)],
    "box": [af.Interval(-3, 3, 14), af.Interval(-2, 4, 11)],
    "circle": [af.Circle(37)],
    "S2": [af.Icosphere(5)],
    "zonal": [af.Zonal(5, 30)],
    "masked": [af.Order(6), af.Interval(-3, 3, 12)],
}


def bumpy(axes, rng):
    where = mesh(axes)
    values = rng.uniform(0, 1, len(where.points)) * (rng.uniform(size=len(where.points)) > 0.3)
    return af.Grid((values / (values @ np.asarray(where.volumes))).reshape(where.shape), axes)


WAYS = {
    "angle": ([af.Circle(16)], lambda a: (1 + 0.5 * jnp.cos(a - 1)) / (2 * jnp.pi), lambda c: (1 + 0.5 * np.cos(c[0] - 1)) / (2 * np.pi)),
    "points of the circle": (
        [af.Circle(16)],
        lambda x: (1 + 0.5 * x[:, 1]) / (2 * jnp.pi),
        lambda c: (1 + 0.5 * np.sin(c[0])) / (2 * np.pi),
    ),
    "coordinate": ([af.Interval(0, 2, 10)], lambda x: x / 2, lambda c: c[0] / 2),
    "points of the line": ([af.Interval(0, 2, 10)], lambda x: x[:, 0] / 2, lambda c: c[0] / 2),
    "coordinates": ([af.Interval(0, 2, 6), af.Interval(0, 1, 4)], lambda x, y: x * y, lambda c: c[0] * c[1]),
    "points of the plane": ([af.Interval(0, 2, 6), af.Interval(0, 1, 4)], lambda x: x[:, 0] * x[:, 1], lambda c: c[0] * c[1]),
    "coordinate and order": ([af.Order(4), af.Interval(0, 2, 6)], lambda x, s: 0 * s + x / 2, lambda c: c[1] / 2),
    "points and order": ([af.Order(4), af.Interval(0, 2, 6)], lambda x, s: 0 * s + x[:, 0] / 2, lambda c: c[1] / 2),
    "a constant": ([af.Interval(0, 2, 10)], lambda x: 0.5, lambda c: 0.5 + 0 * c[0]),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_density_is_a_function_of_points_or_of_coordinates(name):
    """Against the formula on coordinates that NumPy lays out; ten times as much is refused, and taken if it may be normalized."""
    axes, fn, formula = WAYS[name]
    sides = [
        ((np.arange(axis.cells) + 0.5) * (2 * np.pi if isinstance(axis, af.Circle) else getattr(axis, "high", 1)) / axis.cells)
        for axis in axes
    ]
    expected = formula(np.meshgrid(*sides, indexing="ij"))
    np.testing.assert_allclose(af.Grid.from_density(fn, axes).density, expected, rtol=1e-12)
    with pytest.raises(ValueError, match=r"must have mass 1 on these axes, got 10; .*normalize=True"):
        af.Grid.from_density(lambda *x: 10 * fn(*x), axes)
    scaled = af.Grid.from_density(lambda *x: 10 * fn(*x), axes, normalize=True)
    np.testing.assert_allclose(scaled.density, expected, rtol=1e-12)


def test_what_is_no_density_says_what_was_tried():
    with pytest.raises(
        ValueError, match=r"points \[8, 2\] or of the angle \[8\], got: of points \[8, 2\] it gave an array \[3\].*; of the angle"
    ):
        af.Grid.from_density(lambda x: jnp.ones(3), [af.Circle(8)])
    with pytest.raises(ValueError, match="a positive finite mass to be normalized, got 0"):
        af.Grid.from_density(lambda x: 0 * x, [af.Circle(8)], normalize=True)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.cases
def test_rates_conserve_mass_and_a_step_within_the_bound_stays_positive(name, rng):
    mu = bumpy(ALL[name], rng)
    velocity = jnp.asarray(rng.normal(size=mu.points.shape))
    rate = mu.rate(lambda x: velocity)
    assert abs(float(rate.sum())) < 1e-14 * float(jnp.abs(rate).sum())
    bound = 0.5 / float(outflow(mu.mesh, face_velocity(mu.mesh, velocity)))
    assert float((mu.mass + bound * rate).min()) >= -1e-17
    # The bound is sharp within a small factor: far beyond it some cell is emptied.
    assert float((mu.mass + 20 * bound * rate).min()) < 0
    diffused = laplace(mu.mesh, mu.weights)
    assert abs(float(diffused.sum())) < 1e-14 * float(jnp.abs(diffused).sum())


@pytest.mark.parametrize(("axes", "volume"), [(ALL["line"], 6), (ALL["box"], 36), (ALL["circle"], 2 * np.pi), (ALL["S2"], 4 * np.pi)])
def test_cells_fill_the_space(axes, volume):
    where = mesh(axes)
    assert float(where.volumes.sum()) == pytest.approx(volume, rel=1e-12)
    if isinstance(where.space, af.Sphere):
        np.testing.assert_allclose(jnp.linalg.norm(where.points, axis=1), 1, atol=1e-14)
        np.testing.assert_allclose(jnp.sum(where.tangents[:, 0] * where.links.sides(where.points)[0], axis=1), 0, atol=1e-14)


@pytest.mark.parametrize("dim", [3, 4, 5, 9])
def test_zonal_bands_have_the_area_of_the_sphere(dim):
    from scipy.special import gamma

    assert float(mesh([af.Zonal(dim, 40)]).volumes.sum()) == pytest.approx(2 * np.pi ** (dim / 2) / gamma(dim / 2), rel=1e-12)
    # E s^2 = 1 / (dim - 1) on S^{dim-2}, and the fourth moment 3 / ((dim - 1)(dim + 1)).
    cosines, shares = rule_around(dim, 12)
    assert shares @ cosines**2 == pytest.approx(1 / (dim - 1), rel=1e-12)
    assert shares @ cosines**4 == pytest.approx(3 / ((dim - 1) * (dim + 1)), rel=1e-12)
    mu = af.Grid.uniform([af.Zonal(dim, 400)])
    np.testing.assert_allclose(mu.cov, np.eye(dim) / dim, atol=2e-5)


def errors_of_divergence(make, sizes, density, velocity, exact, scheme=transport):
    """L1 errors of -div(rho v) on finer and finer grids."""
    out = []
    for size in sizes:
        where = mesh(make(size))
        rho = density(where.points)
        found = scheme(where, rho * where.volumes, face_velocity(where, velocity(where.points)))
        out.append(float(jnp.sum(jnp.abs(found - exact(where.points) * where.volumes))))
    return np.array(out)


def drift(where, mass, speed):
    """What is left of drift and diffusion together without the diffusion."""
    return scharfetter_gummel(where, mass, speed, jnp.asarray(1.0)) - laplace(where, mass)


@pytest.mark.parametrize("scheme", [transport, drift])
@pytest.mark.long
def test_second_order_on_the_circle(scheme):
    def exact(x):
        # rho = 1 + cos/2 by arc length, v = (sin) e_angle: -(rho v)' = -(cos + cos(2a)/2).
        angle = jnp.arctan2(x[:, 1], x[:, 0])
        return -(jnp.cos(angle) + jnp.cos(2 * angle) / 2) / (2 * np.pi)

    errors = errors_of_divergence(
        lambda n: [af.Circle(n)],
        [64, 128, 256],
        lambda x: (1 + x[:, 0] / 2) / (2 * np.pi),
        lambda x: x[:, 1:] * jnp.stack([-x[:, 1], x[:, 0]], axis=1),
        exact,
        scheme,
    )
    assert np.all(np.log2(errors[:-1] / errors[1:]) > 1.8), errors


@pytest.mark.long
def test_second_order_in_the_plane():
    def rho(x):
        return jnp.exp(-jnp.sum(x**2, axis=1) / 2) / (2 * np.pi)

    def velocity(x):
        return jnp.stack([jnp.sin(x[:, 1]) - x[:, 0], jnp.cos(x[:, 0])], axis=1)

    def exact(x):
        return rho(x) * (jnp.sum(x * velocity(x), axis=1) + 1)

    errors = errors_of_divergence(lambda n: [af.Interval(-7, 7, n), af.Interval(-6, 6, n)], [60, 120, 240], rho, velocity, exact)
    assert np.all(np.log2(errors[:-1] / errors[1:]) > 1.75), errors


@pytest.mark.long
def test_order_on_the_sphere():
    """The truncation error on a Voronoi mesh, in L1."""

    def rho(x):
        return (1 + 0.3 * (3 * x[:, 2] ** 2 - 1) / 2 + 0.2 * x[:, 0] * x[:, 1]) / (4 * np.pi)

    def exact(x):
        # v = grad z = e_z - z x, div v = -2 z; on degree-two harmonics <grad Y, e_z> = dY/dz - 2 z Y.
        second = 0.3 * 1.5 * x[:, 2] ** 2 + 0.2 * x[:, 0] * x[:, 1]
        slope = (0.9 * x[:, 2] - 2 * x[:, 2] * second) / (4 * np.pi)
        return -(slope - 2 * x[:, 2] * rho(x))

    errors = errors_of_divergence(lambda f: [af.Icosphere(f)], [6, 12, 24], rho, lambda x: jnp.array([[0.0, 0, 1]]) - x[:, 2:] * x, exact)
    assert np.all(np.log2(errors[:-1] / errors[1:]) > 1.5), errors


def test_a_uniform_law_that_climbs_a_height_on_bands():
    """Along the gradient of $x_1$ on $S^3$ the uniform density grows by $3 x_1$ of itself: the area of a face is that of its circle."""
    mu = af.Grid.uniform([af.Zonal(4, 64)])
    height = np.asarray(mu.points[:, :1])
    rate = mu.rate(lambda x: jnp.eye(1, 4) - x[:, :1] * x)
    np.testing.assert_allclose(rate / mu.mass, 3 * height[:, 0], atol=5e-3)


@pytest.mark.parametrize(
    ("axes", "degree", "rate"),
    [
        ([af.Circle(256)], 1, 1),
        ([af.Zonal(3, 200)], 1, 2),
        pytest.param([af.Icosphere(20)], 1, 2, marks=pytest.mark.long),
        pytest.param([af.Zonal(6, 200)], 1, 5, marks=pytest.mark.long),
    ],
)
def test_heat_decays_harmonics(axes, degree, rate):
    mu = af.Grid.uniform(axes)
    mu = mu.with_state(mu.mass * (1 + 0.5 * mu.points[:, 0]))
    for time in (1e-3, 0.3):
        found = heat(mu.mesh, mu.weights, jnp.asarray(time))
        assert float(found @ mu.points[:, 0] / (mu.weights @ mu.points[:, 0])) == pytest.approx(np.exp(-rate * time), rel=2e-3)
        assert float(found.sum()) == pytest.approx(1, abs=1e-14)
    # However long: the uniform law, not a sum of round-off.
    np.testing.assert_allclose(heat(mu.mesh, mu.weights, jnp.asarray(50.0)), mu.mesh.volumes / mu.mesh.volumes.sum(), rtol=1e-9)


def test_heat_of_a_spike_is_the_heat_kernel():
    mu = af.Grid(np.eye(1, 401, 200)[0] / 0.05, [af.Interval(-10.025, 10.025, 401)])
    found = mu.with_state(heat(mu.mesh, mu.weights, jnp.asarray(0.5)))
    np.testing.assert_allclose(found.density, np.exp(-(mu.points[:, 0] ** 2) / 2) / np.sqrt(2 * np.pi), atol=2e-4)
    assert float(found.mass.min()) >= 0
    assert float(found.cov[0, 0]) == pytest.approx(1, rel=1e-10)


@pytest.mark.long
def test_deposit_keeps_mass_and_mean(rng, key):
    for axes, cloud in (
        (ALL["line"], af.Particles(rng.uniform(-2.9, 2.9, (50, 1)), weights=rng.uniform(size=50))),
        (ALL["box"], af.Particles(rng.uniform(-1.5, 2.5, (50, 2)))),
    ):
        mu = af.Grid.deposit(cloud, axes)
        assert float(mu.mass.sum()) == pytest.approx(1, abs=1e-14)
        if len(axes) == 2:
            np.testing.assert_allclose(mu.mean, cloud.mean, atol=1e-13)
    for axes, dim in ((ALL["circle"], 2), (ALL["S2"], 3), (ALL["zonal"], 5)):
        cloud = af.samplers.sphere(2000, dim, key=key)
        mu = af.Grid.deposit(cloud, axes)
        assert float(mu.mass.sum()) == pytest.approx(1, abs=1e-13)
        assert float(jnp.abs(mu.mean[0] - cloud.mean[0])) < 0.02
    ordered = af.Particles(rng.uniform(-2, 2, (300, 1)), order=rng.uniform(size=300))
    mu = af.Grid.deposit(ordered, ALL["masked"])
    found = np.histogram(np.asarray(ordered.order), bins=6, range=(0, 1))[0] / 300
    np.testing.assert_allclose(mu.mass.sum(axis=1), found, atol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_positions_fall_into_cells_of_order_exactly(dtype):
    """300 tokens over 100 cells are three a cell: round-off moves none across an edge. The last edge belongs to the last cell."""
    for n, cells in ((300, 100), (98, 49), (7, 3)):
        tokens = af.Particles(np.zeros((n, 1), dtype))
        mu = af.Grid.deposit(tokens, [af.Order(cells, length=n), af.Interval(-1.0, 1.0, 2)])
        expected = [sum(i * cells // n == k for i in range(n)) / n for k in range(cells)]
        np.testing.assert_allclose(mu.mass.sum(axis=1), expected, atol=1e-7 if dtype == np.float32 else 1e-14)
    edge = af.Particles(np.zeros((3, 1)), order=[0, 2.0, 4])
    mu = af.Grid.deposit(edge, [af.Order(2, length=4), af.Interval(-1.0, 1.0, 2)])
    np.testing.assert_allclose(mu.mass.sum(axis=1), [1 / 3, 2 / 3], atol=1e-15)
    single = af.Particles(np.zeros((1, 1), np.float32), order=np.full(1, 0.3, np.float32))
    mu = af.Grid.deposit(single, [af.Order(2, length=0.3), af.Interval(-1.0, 1.0, 2)])
    np.testing.assert_allclose(mu.mass.sum(axis=1), [0, 1], atol=1e-15)


def test_samples_lie_in_the_order_of_their_cells(key):
    mu = af.Grid.uniform([af.Order(3, length=12), af.Interval(0.0, 1.0, 2)])
    np.testing.assert_allclose(mu.density, 1 / 12)
    mu = mu.with_state(jnp.asarray([[0.0, 0.0], [0.5, 0.5], [0.0, 0.0]]))
    order = np.asarray(mu.sample(200, key=key).order)
    assert 4 <= order.min() < 5
    assert 7 < order.max() <= 8


@pytest.mark.parametrize("name", ALL)
@pytest.mark.long
def test_samples_have_the_moments_of_the_grid(name, key):
    mu = af.Grid.uniform(ALL[name])
    mu = mu.with_state(mu.mass * (1 + 0.3 * mu.points[:, 0] / jnp.max(jnp.abs(mu.points[:, 0]))).reshape(mu.mesh.shape))
    mu = mu.with_state(mu.mass / mu.mass.sum())
    cloud = mu.sample(40_000, key=key)
    np.testing.assert_allclose(cloud.mean, mu.mean, atol=5 * float(jnp.sqrt(jnp.max(mu.cov))) / 200)
    np.testing.assert_allclose(cloud.cov, mu.cov, atol=0.03 * float(jnp.max(mu.cov)) + mu.axes[-1].width ** 2 / 10)
    again = mu.sample(40_000, key=key)
    np.testing.assert_array_equal(again.points, cloud.points)


def test_quantiles_of_a_grid():
    mu = af.Grid.from_density(lambda x: jnp.exp(-(x[:, 0] ** 2) / 2) / np.sqrt(2 * np.pi), [af.Interval(-8, 8, 400)])
    from scipy.stats import norm

    np.testing.assert_allclose(mu.quantiles(99).points[:, 0], norm.ppf((np.arange(99) + 0.5) / 99), atol=1e-3)
    turned = af.Grid.uniform([af.Circle(24)]).quantiles(8)
    np.testing.assert_allclose(np.diff(np.unwrap(np.arctan2(*np.asarray(turned.points).T[::-1]))), 2 * np.pi / 8, rtol=1e-12)


def test_push_moves_mass():
    mu = af.Grid.from_density(lambda x: jnp.exp(-(x[:, 0] ** 2) / 2) / np.sqrt(2 * np.pi), [af.Interval(-12, 12, 480)])
    moved = mu.push(lambda x: 1.5 * x + 1)
    assert float(moved.mass.sum()) == pytest.approx(1, abs=1e-13)
    assert float(moved.mean[0]) == pytest.approx(1, abs=1e-9)
    assert float(moved.cov[0, 0]) == pytest.approx(2.25, rel=1e-3)
    ring = af.Grid.from_density(lambda x: (1 + x[:, 0] / 2) / (2 * np.pi), [af.Circle(64)])
    turn = jnp.array([[0.0, -1], [1, 0]])
    np.testing.assert_allclose(ring.push(lambda x: x @ turn.T).mass, jnp.roll(ring.mass, 16), atol=1e-14)


def test_bad_input_is_one_clear_error():
    axes = [af.Interval(0, 1, 4)]
    with pytest.raises(ValueError, match="must not be negative, got -1 in cell 2"):
        af.Grid([1, 2, -1, 2], axes)
    with pytest.raises(ValueError, match=r"mass 1 on these axes, got 2; divide by it"):
        af.Grid([2, 2, 2, 2], axes)
    with pytest.raises(ValueError, match=r"one number per cell, \[4\], got \[3\]"):
        af.Grid([1, 1, 1], axes)
    with pytest.raises(ValueError, match="must be finite, got nan"):
        af.Grid([1, np.nan, 1, 1], axes)
    with pytest.raises(ValueError, match="from low to high, got 1 and 0"):
        af.Interval(1, 0, 10)
    with pytest.raises(ValueError, match="at least 4 cells, got 2"):
        af.Circle(2)
    with pytest.raises(ValueError, match="dim >= 3, got 2; use Circle"):
        af.Zonal(2, 10)
    with pytest.raises(ValueError, match=r"got \[Circle, Interval\]"):
        af.Grid.uniform([af.Circle(8), af.Interval(0, 1, 8)])
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\], got 0.5 to 2; widen"):
        af.Grid.deposit(af.Particles([[0.5], [2.0]]), axes)
    with pytest.raises(ValueError, match="takes tokens of R"):
        af.Grid.deposit(af.Particles([[0.5, 0.1]]), axes)
    with pytest.raises(ValueError, match=r"draw tokens with .sample"):
        af.Grid.uniform([af.Zonal(4, 10)]).particles()
    with pytest.raises(ValueError, match="quantiles are for"):
        af.Grid.uniform(ALL["box"]).quantiles(5)
    assert jax.tree.structure(af.Grid.uniform(axes)) == jax.tree.structure(af.Grid.uniform(axes))
