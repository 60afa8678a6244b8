"""`solve` on densities: agreement with the Gaussian picture and with tokens, mass, positivity, steps, storage, bad input."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af


def normal(cells, half=10.0, variance=1.0):
    def density(x):
        return jnp.exp(-(x[:, 0] ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)

    return af.Grid.from_density(density, [af.Interval(-half, half, cells)])


LAWS = {
    "softmax": af.simple_attention(0.3, 1),
    "L2": af.Attention(af.squared_distance(np.eye(1), np.eye(1)), np.eye(1)),
    "Sinkhorn": af.Attention(af.dot_product(np.eye(1), np.eye(1)), np.eye(1), af.Sinkhorn()),
    "contracting": af.Attention(af.dot_product(np.eye(1), np.eye(1)), -np.eye(1)),
}


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.long
def test_a_gaussian_on_a_grid_follows_the_covariance_equation(name):
    """Error h^2 in the cell (GT 14, 15)."""
    law, errors = LAWS[name], []
    exact = af.solve(law, af.Gaussian([0.0], [[1.0]]), t1=0.5, save_at=2, rtol=1e-10, atol=1e-12).final.cov[0, 0]
    for cells in (60, 120):
        path = af.solve(law, normal(cells), t1=0.5, save_at=2)
        assert path.status.kind == "reached"
        assert abs(float(path.final.mass.sum()) - 1) < 1e-13
        assert float(path.final.mass.min()) >= 0
        errors.append(abs(float(path.final.cov[0, 0] - exact)))
    assert errors[1] < 5e-4 * float(exact)
    assert errors[1] < 0.3 * errors[0], errors


@pytest.mark.long
def test_the_approach_to_blow_up():
    """S = 1/(1 - t) leaves every bound at t = 1. Beyond S = 2 a token is drawn by tails farther out than itself, in the end by those that
    no box and no floating-point number holds, so the grid can only follow for a while."""
    path = af.solve(af.simple_attention(0.5, 1), normal(600, half=60.0), t1=0.8, save_at=[0.5, 0.8])
    assert float(path[0].cov[0, 0]) == pytest.approx(2, rel=1e-3)
    assert float(path[1].cov[0, 0]) == pytest.approx(5, rel=1.5e-2)


@pytest.mark.long
def test_a_given_step_is_the_longest_not_the_only_one():
    """A step that would empty cells is cut as without it: masses stay non-negative."""
    law = LAWS["contracting"]
    free, bound = (af.solve(law, normal(120), t1=4.0, save_at=2, step=step) for step in (None, 2.0))
    assert float(bound.final.mass.min()) >= 0
    assert bound.stats["accepted_steps"] >= free.stats["accepted_steps"] / 2
    np.testing.assert_allclose(bound.final.cov, free.final.cov, rtol=1e-3)
    fine = af.solve(law, normal(120), t1=4.0, save_at=2, step=0.01)
    assert fine.stats["accepted_steps"] >= 400


@pytest.mark.long
def test_no_recompilation_between_runs():
    law = af.simple_attention(0.3, 1)
    counted = []

    class Counted(af.Field):
        def at(self, mu, t=0.0, sums=None):
            counted.append(1)
            return law.at(mu, t, sums)

    field = Counted()
    af.solve(field, normal(64), t1=0.2, save_at=3)
    first = len(counted)
    af.solve(field, normal(64, variance=0.8), t1=0.3, save_at=3)
    assert len(counted) == first


@pytest.mark.long
def test_tokens_and_grid_agree_on_the_circle(key):
    law = af.simple_attention(3.0, 2)
    mu = af.Grid.from_density(lambda x: (1 + 0.5 * x[:, 0] + 0.3 * x[:, 0] * x[:, 1]) / (2 * np.pi), [af.Circle(400)])
    grid = af.solve(law, mu, t1=1.0, save_at=2).final
    tokens = af.solve(law, mu.quantiles(1500), t1=1.0, save_at=2).final
    np.testing.assert_allclose(grid.mean, tokens.mean, atol=2e-4)
    np.testing.assert_allclose(grid.cov, tokens.cov, atol=2e-4)


@pytest.mark.long
def test_tokens_and_grid_agree_on_the_sphere(key):
    law = af.simple_attention(2.0, 3)

    def density(x):
        return (1 + 0.5 * x[:, 0] + 0.3 * x[:, 1] * x[:, 2]) / (4 * np.pi)

    fine = af.Grid.from_density(density, [af.Icosphere(16)])
    tokens = af.solve(law, fine.particles(), t1=0.8, save_at=2, rtol=1e-5).final
    errors = []
    for frequency in (4, 8):
        grid = af.solve(law, af.Grid.from_density(density, [af.Icosphere(frequency)]), t1=0.8, save_at=2).final
        errors.append(float(jnp.abs(grid.mean - tokens.mean).max()))
        assert abs(float(grid.mass.sum()) - 1) < 1e-13
        assert float(grid.mass.min()) >= 0
    assert errors[1] < 0.4 * errors[0]
    assert errors[1] < 6e-3


@pytest.mark.long
@pytest.mark.parametrize("dim", [3, 6])
def test_a_zonal_grid_follows_tokens(dim, key):
    law = af.simple_attention(2.0, dim)
    start = _tilted(dim)
    path = af.solve(law, start, t1=1.0, save_at=2)
    tokens = af.solve(law, start.sample(4000, key=key), t1=1.0, save_at=2, rtol=1e-4).final
    assert float(path.final.mean[0]) == pytest.approx(float(tokens.mean[0]), abs=0.03)
    np.testing.assert_allclose(jnp.diagonal(path.final.cov)[:2], jnp.diagonal(tokens.cov)[:2], atol=0.02)


def _tilted(dim):
    mu = af.Grid.uniform([af.Zonal(dim, 120)])
    mass = mu.mass * jnp.exp(mu.points[:, 0])
    return mu.with_state(mass / mass.sum())


@pytest.mark.long
def test_a_masked_grid_keeps_its_order_and_the_first_cell_moves_alone():
    law = af.simple_attention(1.0, 1, mask=af.Causal())
    mu = af.Grid.from_density(lambda x, s: jnp.exp(-((x[:, 0] - s) ** 2) / 2) / np.sqrt(2 * np.pi), [af.Order(8), af.Interval(-9, 9, 120)])
    final = af.solve(law, mu, t1=0.4, save_at=2).final
    np.testing.assert_allclose(final.mass.sum(axis=1), 1 / 8, atol=1e-14)
    alone = af.Grid(np.asarray(mu.density[0]), [af.Interval(-9, 9, 120)])
    by_itself = af.solve(af.simple_attention(1.0, 1), alone, t1=0.4, save_at=2).final
    np.testing.assert_allclose(final.mass[0] * 8, by_itself.mass, atol=5e-5)


@pytest.mark.long
def test_perceptron_heads_and_schedules_on_a_grid(rng):
    hidden, out = rng.normal(size=(5, 1)), rng.normal(size=(1, 5)) * 0.3
    field = af.MultiHead([LAWS["softmax"], LAWS["L2"]]).then(af.Perceptron(hidden, out, activation=jnp.tanh))
    timed = af.Scheduled(_cooling)
    for each in (field, timed):
        grid = af.solve(each, normal(200), t1=0.5, save_at=2).final
        tokens = af.solve(each, normal(200).quantiles(1000), t1=0.5, save_at=2).final
        np.testing.assert_allclose(grid.mean, tokens.mean, atol=3e-3)
        np.testing.assert_allclose(grid.cov, tokens.cov, rtol=3e-3)


def _cooling(t):
    return af.Attention(af.Quadratic((0.2 + 0.3 * t) * jnp.eye(1)), jnp.eye(1))


@pytest.mark.long
def test_noise_is_the_same_in_three_pictures(key):
    """S' = 2 a S^2 + sigma^2."""
    law, sigma = af.simple_attention(0.2, 1), 0.5
    exact = af.solve(law, af.Gaussian([0.0], [[1.0]]), t1=1.0, save_at=2, noise=sigma).final.cov[0, 0]
    grid = af.solve(law, normal(200), t1=1.0, save_at=2, noise=sigma).final
    assert float(grid.cov[0, 0]) == pytest.approx(float(exact), rel=1e-3)
    assert abs(float(grid.mass.sum()) - 1) < 1e-13
    tokens = af.solve(law, normal(400).quantiles(6000), t1=1.0, save_at=2, noise=sigma, key=key, step=0.05).final
    assert float(tokens.cov[0, 0]) == pytest.approx(float(exact), rel=0.03)


@pytest.mark.long
def test_noise_does_not_bound_the_step():
    mu = af.Grid.from_density(lambda x: (1 + 0.5 * x[:, 0]) / (2 * np.pi), [af.Circle(300)])
    still = af.ResNet(np.zeros((2, 2)))
    path = af.solve(still, mu, t1=4.0, save_at=2, noise=1.0)
    assert path.stats["accepted_steps"] <= 40
    assert float(path.final.mean[0]) == pytest.approx(0.25 * np.exp(-2.0), rel=1e-3)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.cases
def test_brownian_motion_on_the_sphere(dim, key):
    """E x(t) = e^{-(d-1) sigma^2 t / 2} x(0): with the Ito reading of P_x dB the tokens would leave the sphere or slow down."""
    start = af.Particles(np.eye(dim)[:1].repeat(4000, axis=0), space=af.Sphere())
    still = af.ResNet(np.zeros((dim, dim)))
    final = af.solve(still, start, t1=1.0, save_at=2, noise=0.8, key=key, step=0.02).final
    np.testing.assert_allclose(jnp.linalg.norm(final.points, axis=1), 1, atol=1e-14)
    assert float(final.mean[0]) == pytest.approx(np.exp(-(dim - 1) * 0.32), abs=0.03)


@pytest.mark.long
def test_the_same_key_gives_the_same_numbers_also_after_a_break(key, tmp_path):
    law, start = af.simple_attention(1.0, 2), af.samplers.sphere(20, 2, key=key)
    run = {"t1": 1.0, "save_at": 5, "noise": 0.3, "key": jax.random.key(3), "step": 0.1}
    first = af.solve(law, start, **run)
    np.testing.assert_array_equal(first.states, af.solve(law, start, **run).states)
    other = af.solve(law, start, **(run | {"key": jax.random.key(4)}))
    assert float(jnp.abs(other.final.points - first.final.points).max()) > 0.01
    kept = af.solve(law, start, **run, out=tmp_path / "run")
    np.testing.assert_array_equal(kept.states, first.states)


@pytest.mark.long
def test_a_grid_goes_to_disk_and_back(tmp_path):
    path = af.solve(LAWS["L2"], normal(60), t1=0.3, save_at=4, out=tmp_path / "run", observe={"mean": _mean})
    back = af.load_path(tmp_path / "run")
    np.testing.assert_array_equal(back.states, path.states)
    assert back.measure.axes == path.measure.axes
    np.testing.assert_array_equal(back.final.points, path.final.points)
    assert set(path.to_xarray().mass.dims) == {"time", "x"}


def _mean(mu):
    return mu.mean[0]


@pytest.mark.long
def test_layers_push_a_grid():
    law = af.simple_attention(0.3, 1)
    path = af.layers([law], normal(400), depth=50, step=0.01)
    exact = af.solve(law, af.Gaussian([0.0], [[1.0]]), t1=0.5, save_at=2).final.cov[0, 0]
    assert float(path.final.cov[0, 0]) == pytest.approx(float(exact), rel=0.05)
    assert float(path.final.mass.sum()) == pytest.approx(1, abs=1e-12)


def test_bad_input_is_one_clear_error(key):
    law, mu = LAWS["softmax"], normal(50)
    with pytest.raises(ValueError, match="stepped by its own scheme, got solver"):
        af.solve(law, mu, t1=1.0, solver=diffrax.Tsit5())
    with pytest.raises(ValueError, match="stepped by its own scheme, got rtol"):
        af.solve(law, mu, t1=1.0, rtol=1e-3)
    with pytest.raises(ValueError, match="drawn from a key, got none"):
        af.solve(law, mu.quantiles(5), t1=1.0, noise=0.1)
    with pytest.raises(ValueError, match=r"noise must be positive, got -1.0"):
        af.solve(law, mu, t1=1.0, noise=-1.0)
    with pytest.raises(TypeError, match="key must be a random key"):
        af.solve(law, mu.quantiles(5), t1=1.0, noise=0.1, key=3)
    with pytest.raises(ValueError, match="a key and no noise"):
        af.solve(law, mu.quantiles(5), t1=1.0, key=key)
    with pytest.raises(ValueError, match=r"acts on R\^2, got a measure on R\^1"):
        af.solve(af.simple_attention(1.0, 2), mu, t1=1.0)


def sharpening(t):
    """beta = 1 + 200 t."""
    return af.Attention(af.Quadratic((1 + 200 * t) * jnp.eye(2)), np.eye(2))


def test_a_grid_too_coarse_for_the_kernel_is_refused():
    """As `law.at` does: at beta = 100 the width is 0.1, and the cells of the circle must be at most that."""
    circle, message = af.Grid.uniform([af.Circle(cells=16)]), "a cell is wider than the kernel, whose width is 0.1: the axis needs at least"
    law = af.simple_attention(100.0, 2)
    with pytest.raises(ValueError, match=f"{message} 63 cells, got 16"):
        af.solve(law, circle, t1=1.0, save_at=3)
    with pytest.raises(ValueError, match=f"{message} 63 cells, got 16"):
        af.layers([law], circle, 2)
    line = af.Grid.uniform([af.Interval(-1, 1, 8)])
    with pytest.raises(ValueError, match=f"{message} 20 cells, got 8") as error:
        af.solve(af.Attention(af.squared_distance([[1.0]], [[1.0]], 0.02), [[1.0]]), line, t1=1.0, save_at=3)
    assert "Unnormalized" not in str(error.value)


@pytest.mark.long
def test_a_kernel_that_outgrows_its_cells_ends_the_run():
    """64 cells carry beta up to (64 / 2 pi)^2 = 103.75, so up to t = 0.51."""
    path = af.solve(af.Scheduled(sharpening), af.Grid.uniform([af.Circle(cells=64)]), t1=1.0, save_at=11)
    assert path.status.kind == "unresolved"
    assert 0 <= path.status.time <= 0.51
    assert float(path.ts[-1]) == path.status.time
    fine = af.solve(af.Scheduled(sharpening), af.Grid.uniform([af.Circle(cells=64)]), t1=0.5, save_at=11)
    assert fine.status.kind == "reached"


def test_a_velocity_that_is_not_finite_names_the_law():
    mu = af.Particles(np.eye(3))
    with pytest.raises(ValueError, match=r"must be finite, got (nan|inf) for Scheduled; look at") as error:
        af.solve(af.Scheduled(lambda t: af.Attention(af.Quadratic(jnp.nan * jnp.eye(3)), np.eye(3))), mu, t1=1.0, save_at=3)
    assert "Unnormalized" not in str(error.value)
