"""Sums over cells of a grid against the same sums over pairs of tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af
from attnflow.sums import Lattice
from attnflow.sums.engines.lattice import sum_over_axis


def grids(rng):
    ring = af.Grid.from_density(lambda x: (1 + 0.5 * x[:, 0] + 0.2 * x[:, 1]) / (2 * np.pi), [af.Circle(65)])
    plane = af.Grid.from_density(
        lambda x: jnp.exp(-jnp.sum(x**2, axis=1) / 2) / (2 * np.pi), [af.Interval(-6, 6, 40), af.Interval(-7, 7, 45)]
    )
    line = af.Grid.from_density(lambda x: jnp.exp(-(x[:, 0] ** 2) / 2) / np.sqrt(2 * np.pi), [af.Interval(-9, 9, 100)])
    return {"circle": ring, "plane": plane, "line": line}


@pytest.mark.parametrize("name", ["circle", "plane", "line"])
@pytest.mark.parametrize(
    "normalize",
    [af.Softmax(), af.Unnormalized(-1.0), af.Sinkhorn(), af.Hardmax(), af.Sigmoid(), af.Linear()],
    ids=lambda n: type(n).__name__,
)
@pytest.mark.long
def test_laws_on_a_grid_are_those_on_its_cells(name, normalize, rng):
    mu = grids(rng)[name]
    law = af.simple_attention(2.0, mu.dim, normalize)
    tokens = mu.particles()
    scale = float(jnp.max(jnp.abs(law.at(tokens)(mu.points))))
    np.testing.assert_allclose(law.at(mu)(mu.points), law.at(tokens)(mu.points), atol=1e-11 * scale)


@pytest.mark.parametrize("name", ["circle", "plane"])
@pytest.mark.cases
def test_logits_that_are_not_regular_go_through_pairs(name, rng):
    mu = grids(rng)[name]
    mixing = af.Attention(af.dot_product(rng.normal(size=(2, 2)), np.eye(2)), rng.normal(size=(2, 2)))
    turning = af.Attention(af.dot_product(2 * np.array([[0.6, -0.8], [0.8, 0.6]]), np.eye(2)), np.eye(2))
    apart = af.Attention(af.squared_distance(np.diag([1.0, 2.0]), np.eye(2)), np.eye(2))
    for law in (mixing, turning, apart):
        np.testing.assert_allclose(law.at(mu)(mu.points), law.at(mu.particles())(mu.points), atol=1e-12)
    heads = af.MultiHead([mixing, apart])
    np.testing.assert_allclose(heads.at(mu)(mu.points), heads.at(mu.particles())(mu.points), atol=1e-12)


def test_queries_elsewhere(rng):
    mu = grids(rng)["plane"]
    law, x = af.simple_attention(2.0, 2), jnp.asarray(rng.normal(size=(7, 2)))
    np.testing.assert_allclose(law.at(mu)(x), law.at(mu.particles())(x), atol=1e-12)


@pytest.mark.parametrize("spread", [1.0, 38.0])
@pytest.mark.cases
def test_a_sum_over_an_axis_in_log_domain(spread, rng):
    """Also where the weights range over thousands of powers of e."""
    x, y = np.linspace(-spread, spread, 70), np.linspace(-spread, spread, 90)
    logs, values = rng.normal(size=(90, 3)) * spread, rng.normal(size=(2, 90, 3))
    logs[10:50, 1] = -np.inf
    total, means = sum_over_axis(*map(jnp.asarray, (x, y, logs, values)))
    all_logits = x[:, None, None] * y[None, :, None] + logs[None]
    top = all_logits.max(axis=1)
    p = np.exp(all_logits - top[:, None])
    np.testing.assert_allclose(total, np.log(p.sum(axis=1)) + top, rtol=1e-12, atol=1e-11)
    np.testing.assert_allclose(means, np.einsum("mnl,enl->eml", p / p.sum(axis=1, keepdims=True), values), atol=1e-10)


def test_empty_cells_and_sharp_kernels():
    density = np.zeros(512)
    density[100], density[300] = 1.0, 3.0
    mu = af.Grid(density / (density.sum() * 2 * np.pi / 512), [af.Circle(512)])
    law = af.simple_attention(200.0, 2)
    there = np.array([100, 300])
    np.testing.assert_allclose(law.at(mu)(mu.points)[there], law.at(mu.particles())(mu.points)[there], atol=1e-12)
    speed = jnp.linalg.norm(law.at(mu)(mu.points), axis=1)
    assert bool(jnp.all(jnp.isfinite(speed)))
    assert float(speed.max()) <= 1 + 1e-12


@pytest.mark.long
def test_derivatives_of_lattice_sums(rng):
    for mu in grids(rng).values():
        direction = jnp.asarray(rng.normal(size=mu.mass.shape)) * mu.mass

        def speed(mass, grid, like=mu):
            moved = like.with_state(mass) if grid else like.with_state(mass).particles()
            return af.simple_attention(2.0, like.dim).at(moved)(like.points)

        # Tokens are normalized, cells are not: compare along changes that keep the mass.
        change = direction - mu.mass * direction.sum()
        with_grid = jax.jvp(lambda m: speed(m, True), (mu.mass,), (change,))[1]
        with_tokens = jax.jvp(lambda m: speed(m, False), (mu.mass,), (change,))[1]
        np.testing.assert_allclose(with_grid, with_tokens, atol=1e-9)


def test_the_engine_of_a_grid_is_the_lattice(rng):
    assert grids(rng)["plane"].lattice == Lattice((40, 45), False)
    assert af.Grid.uniform([af.Icosphere(4)]).lattice is None


def test_what_a_grid_refuses():
    ring = af.Grid.uniform([af.Circle(16)])
    with pytest.raises(ValueError, match=r"wider than the kernel, whose width is 0.1: the axis needs at least 63 cells, got 16"):
        af.simple_attention(100.0, 2).at(ring)
    with pytest.raises(ValueError, match=r"frequency \d+, got 3"):
        af.simple_attention(100.0, 3).at(af.Grid.uniform([af.Icosphere(3)]))
    with pytest.raises(ValueError, match="acts on R\\^3, got a measure on R\\^2"):
        af.simple_attention(1.0, 3).at(ring)
    with pytest.raises(ValueError, match="mask needs the order of tokens"):
        af.simple_attention(1.0, 2, mask=af.Causal()).at(ring)
    with pytest.raises(ValueError, match="mask matrix is for tokens"):
        af.simple_attention(1.0, 2, mask=af.Explicit(np.eye(16))).at(ring)
    zonal = af.Grid.uniform([af.Zonal(4, 20)])
    with pytest.raises(ValueError, match="no zonal form"):
        af.simple_attention(1.0, 4, af.Sinkhorn()).at(zonal)
    with pytest.raises(ValueError, match="symmetric about the first axis, got V"):
        af.Attention(af.dot_product(np.eye(4), np.eye(4)), np.diag([1.0, 2, 3, 4])).at(zonal)


@pytest.mark.parametrize("name", ["circle", "plane", "line"])
@pytest.mark.long
def test_derivatives_in_the_law_are_those_on_the_cells_though_it_turns_irregular(name, rng):
    mu, along = grids(rng)[name], rng.normal(size=2)[: 1 if name == "line" else 2]

    def pull(A, on, points):
        law = af.Attention(af.dot_product(A, jnp.eye(on.dim)), jnp.eye(on.dim))
        return mu.weights @ (law.at(on)(points) @ along)

    A = 1.3 * jnp.eye(mu.dim)
    for argument in (0, 2):
        found, expected = (jax.grad(pull, argument)(A, on, mu.points) for on in (mu, mu.particles()))
        np.testing.assert_allclose(found, expected, atol=1e-12)
    of_mass = jax.grad(lambda mass: pull(A, mu.with_state(mass), mu.points))(mu.mass)
    pairs = jax.grad(lambda mass: pull(A + 1e-9 * jnp.ones_like(A), mu.with_state(mass), mu.points))(mu.mass)
    np.testing.assert_allclose(of_mass, pairs, rtol=1e-5, atol=1e-6)
