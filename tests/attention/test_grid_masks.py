"""Masked laws on a grid over order and a line: against explicit sums, against integrals, and what a query sees of a cell."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af

CELLS, SIZE = 6, 25
AXES = [af.Order(CELLS), af.Interval(-5, 6, SIZE)]
MASKS = [af.Causal(), af.Window(0.3), af.ALiBi(2.0)]
NORMALIZATIONS = [af.Unnormalized(-0.3), af.Hardmax(), af.Sigmoid(), af.Linear()]
A, V = 0.7, 1.3


def density(x, s):
    """Mass 1/2 + s at order s, around s."""
    return jnp.exp(-((x[:, 0] - s) ** 2) / 2) / np.sqrt(2 * np.pi) * (0.5 + s)


def part(mask, s, tau, width):
    """How much of the cell around tau a query at s reaches, cell by cell."""
    first = s - float(mask.width) if isinstance(mask, af.Window) else 0.0
    return max(min(tau + width / 2, s) - max(tau - width / 2, first), 0.0) / width


def by_hand(normalize, mask, mu, x, s, length=1.0):
    """One query, as a sum over the cells it sees: a cell that is seen in part has that part of its mass."""
    tau = np.repeat((np.arange(CELLS) + 0.5) * length / CELLS, SIZE)
    w = np.asarray(mu.weights) * [part(mask, s, t, length / CELLS) for t in tau]
    y = np.asarray(mu.points)[w > 0, 0]
    logits = A * x * y - (float(mask.slope) * (s - tau[w > 0]) if isinstance(mask, af.ALiBi) else 0)
    w = w[w > 0]
    kernel = {
        af.Softmax: lambda z: np.exp(z) / (w @ np.exp(z)),
        af.Unnormalized: lambda z: np.exp(z - 0.3),
        af.Hardmax: lambda z: (z >= z.max() - 1e-12) / w[z >= z.max() - 1e-12].sum(),
        af.Sigmoid: lambda z: 1 / (1 + np.exp(-z)),
        af.Linear: lambda z: z,
    }[type(normalize)]
    return V * (w * kernel(logits)) @ y


def check(normalize, mask, engines):
    mu = af.Grid.from_density(density, AXES)
    law = af.Attention(af.dot_product([[A]], [[1.0]]), [[V]], normalize, mask=mask)
    expected = np.array([by_hand(normalize, mask, mu, x, s) for x, s in zip(*map(np.asarray, (mu.points[:, 0], mu.sequence)))])
    for sums in engines:
        np.testing.assert_allclose(law.at(mu, sums=sums)(mu.points, mu.sequence)[:, 0], expected, rtol=1e-11, atol=1e-11)
    return law.at(mu), lambda x, s: by_hand(normalize, mask, mu, x, s)


@pytest.mark.parametrize("mask", MASKS, ids=lambda m: type(m).__name__)
@pytest.mark.long
def test_softmax_against_explicit_sums(mask):
    velocity, expected = check(af.Softmax(), mask, [None, af.Dense(), af.Streamed(16, 7)])
    x, s = np.array([0.3, -1.0, 2.0]), np.array([0.41, 0.99, 0.03])
    np.testing.assert_allclose(velocity(jnp.asarray(x)[:, None], jnp.asarray(s))[:, 0], [expected(*q) for q in zip(x, s)], rtol=1e-11)


@pytest.mark.parametrize("normalize", NORMALIZATIONS, ids=lambda n: type(n).__name__)
@pytest.mark.cases
def test_others_against_explicit_sums(normalize):
    """A cell seen in part has that part of its mass, whatever the kernel is; a Window sees parts at both ends."""
    for mask in MASKS[1:]:
        check(normalize, mask, [None])


def test_the_matrix_has_cells_that_are_seen_in_part():
    """The matrix of a law gives its velocity, also where a query sees half of a cell."""
    mu = af.Grid.from_density(density, AXES)
    for normalize in (af.Softmax(), af.Unnormalized(), af.Sigmoid(), af.Linear(), af.Hardmax()):
        law = af.Attention(af.dot_product([[A]], [[1.0]]), [[V]], normalize, mask=af.Window(0.3))
        expected = V * np.asarray(law.weights(mu.points, mu)) @ np.asarray(mu.points)
        np.testing.assert_allclose(law.at(mu)(mu.points, mu.sequence), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.long
def test_an_order_of_tokens_that_are_counted():
    """Cells of the order [0, 30]: windows and slopes are in the unit of the order, on the lattice and at single queries."""
    axes, length = [af.Order(CELLS, length=30), AXES[1]], 30.0
    mu = af.Grid.from_density(lambda x, s: density(x, s / 30) / 30, axes)
    np.testing.assert_allclose(mu.mass, af.Grid.from_density(density, AXES).mass, rtol=1e-12)
    queries = np.array([0.3, -1.0]), np.array([12.3, 29.7])
    for mask in (af.Window(9), af.ALiBi(0.1)):
        law = af.Attention(af.dot_product([[A]], [[1.0]]), [[V]], mask=mask)
        expected = [by_hand(af.Softmax(), mask, mu, x, s, length) for x, s in zip(*map(np.asarray, (mu.points[:, 0], mu.sequence)))]
        np.testing.assert_allclose(law.at(mu)(mu.points, mu.sequence)[:, 0], expected, rtol=1e-11, atol=1e-11)
        found = law.at(mu)(jnp.asarray(queries[0])[:, None], jnp.asarray(queries[1]))[:, 0]
        np.testing.assert_allclose(found, [by_hand(af.Softmax(), mask, mu, x, s, length) for x, s in zip(*queries)], rtol=1e-11)


def test_a_steep_slope_far_from_all_mass():
    """Mass at the first order alone: who is so far that `e^penalty` is nothing still averages over it."""
    mass = jnp.zeros((CELLS, SIZE)).at[0, 10].set(0.25).at[0, 5].set(0.75)
    mu = af.Grid.uniform([af.Order(CELLS, length=300), AXES[1]]).with_state(mass)
    found = af.simple_attention(A, 1, mask=af.ALiBi(20.0)).at(mu)(mu.points, mu.sequence).reshape(CELLS, SIZE)
    x, y = np.asarray(AXES[1].centers), np.asarray(AXES[1].centers)[[10, 5]]
    p = np.exp(A * x[:, None] * y[None]) * [0.25, 0.75]
    np.testing.assert_allclose(found, np.broadcast_to(p @ y / p.sum(axis=1), (CELLS, SIZE)), rtol=1e-11)


def test_queries_in_the_shape_of_the_grid_that_are_not_its_cells(rng):
    """As many queries as cells, at other places and other orders."""
    mu = af.Grid.from_density(density, AXES)
    law = af.simple_attention(A, 1, mask=af.Causal())
    n = len(mu.points)
    for x, s in ((rng.normal(size=(n, 1)), mu.sequence), (mu.points, rng.uniform(0.1, 1, n))):
        queries = jnp.asarray(x), jnp.asarray(s)
        np.testing.assert_allclose(law.at(mu)(*queries), law.at(mu, sums=af.Dense())(*queries), atol=1e-12)


def test_the_first_of_all_queries_sees_the_first_cell():
    mu = af.Grid.from_density(density, AXES)
    law, x = af.simple_attention(A, 1, mask=af.Causal()), jnp.linspace(-2, 2, 5)[:, None]
    first = law.at(mu)(x, jnp.full(5, 0.5 / CELLS))
    np.testing.assert_allclose(law.at(mu)(x, jnp.zeros(5)), first, rtol=1e-12)
    alone = af.Grid(mu.density[0] / jnp.sum(mu.mass[0]) / CELLS, [AXES[1]])
    np.testing.assert_allclose(first, af.simple_attention(A, 1).at(alone)(x), rtol=1e-12)


@pytest.mark.parametrize("mask", [af.Causal(), af.Window(0.27)], ids=lambda m: type(m).__name__)
@pytest.mark.long
def test_second_order_in_the_cells_of_order(mask):
    """Against the integral over what is seen, by Gauss's rule. Tokens at the middles, which see their whole cell, are first order."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    law, x, errors = af.simple_attention(A, 1, mask=mask), np.array([0.0, 1.0]), []
    for cells in (16, 64):
        mu = af.Grid.from_density(density, [af.Order(cells), af.Interval(-8, 9, 60)])
        y, s = np.asarray(mu.points[:60, 0]), (np.floor(0.7 * cells) + 0.5) / cells
        low = max(s - 0.27, 0.0) if isinstance(mask, af.Window) else 0.0
        tau = low + (s - low) * (nodes + 1) / 2
        seen = np.stack([density(y[:, None], t) for t in tau]).T @ weights
        p = np.exp(A * x[:, None] * y[None]) * seen[None]
        query = jnp.asarray(x)[:, None], jnp.full(2, s)
        found = [law.at(measure)(*query)[:, 0] for measure in (mu, mu.particles())]
        errors.append([np.abs(velocity - p @ y / p.sum(axis=1)).max() for velocity in found])
    by_cells, by_tokens = np.log2(np.array(errors[0]) / np.array(errors[1])) / 2
    assert by_cells > 1.9, errors
    if isinstance(mask, af.Causal):
        assert by_tokens == pytest.approx(1, abs=0.1)


def test_a_law_without_a_mask_sees_every_order():
    mu = af.Grid.from_density(density, AXES)
    line = af.Grid(jnp.sum(mu.density, axis=0) / CELLS, [AXES[1]])
    law = af.simple_attention(A, 1)
    found = law.at(mu)(mu.points).reshape(CELLS, SIZE)
    np.testing.assert_allclose(found, np.broadcast_to(law.at(line)(line.points).T, (CELLS, SIZE)), atol=1e-12)


def test_orders_without_mass():
    """Who sees no mass does not move; nothing is lost where there is some."""
    mass = jnp.zeros((CELLS, SIZE)).at[3, 10].set(0.25).at[4, 5].set(0.75)
    mu = af.Grid.from_density(density, AXES).with_state(mass)
    found = af.simple_attention(A, 1, mask=af.Causal()).at(mu)(mu.points, mu.sequence).reshape(CELLS, SIZE)
    np.testing.assert_array_equal(found[:3], 0)
    np.testing.assert_allclose(found[3], mu.points[10, 0], rtol=1e-14)


def test_derivatives_in_the_masses_and_the_slope(rng):
    mu = af.Grid.from_density(density, AXES)
    direction = jnp.asarray(rng.normal(size=mu.mass.shape)) * mu.mass

    @jax.jit
    def loss(h):
        law = af.simple_attention(A, 1, mask=af.ALiBi(1.3 + h))
        return jnp.sum(mu.weights * law.at(mu.with_state(mu.mass + h * direction))(mu.points, mu.sequence)[:, 0] ** 2)

    h = 1e-5
    np.testing.assert_allclose(jax.grad(loss)(0.0), (loss(h) - loss(-h)) / (2 * h), rtol=1e-7)
