"""Laws on a zonal grid, at queries on the meridian and elsewhere."""

import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af


@pytest.mark.parametrize("normalize", [af.Softmax(), af.Sigmoid()], ids=lambda n: type(n).__name__)
def test_a_zonal_velocity_turns_with_its_query(rng, normalize):
    mu = af.Grid.from_density(lambda x: (1 + 0.5 * x[:, 0]) / (2 * np.pi**2), [af.Zonal(4, 40)])
    velocity = af.Attention(af.dot_product(np.diag([2.0, 3, 3, 3]), np.eye(4)), np.diag([1.0, 2, 2, 2]), normalize).at(mu)
    turn = np.eye(4)
    turn[1:, 1:] = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    x = mu.points[::7]
    np.testing.assert_allclose(velocity(x @ turn.T), velocity(x) @ turn.T, atol=1e-13)
    np.testing.assert_array_equal(velocity(x)[:, 2:], 0)
    pole = velocity(jnp.eye(4)[:1])
    np.testing.assert_array_equal(pole[:, 1:], 0)
    assert pole[0, 0] > 0


def test_a_tilted_law_has_the_mean_of_von_mises_and_fisher(key):
    """`e^{<c,y>}` against `e^{b<x,y>}`: the average at `b x + c`, at queries anywhere on S^4."""
    c, beta = jnp.array([1.5, 0, 0, 0, 0]), 20.0
    mu = af.Grid.uniform([af.Zonal(5, 200)])
    mass = mu.mass * jnp.exp(mu.points @ c)
    mu = mu.with_state(mass / mass.sum())
    x = af.samplers.sphere(30, 5, key=key).points
    found = af.simple_attention(beta, 5).at(mu)(x)
    np.testing.assert_allclose(found, af.theory.uniform_mean(beta * x + c[None]), atol=2e-4)


def test_too_few_nodes_around_a_band_are_refused():
    mu = af.Grid.uniform([af.Zonal(4, 200)])
    with pytest.raises(
        ValueError, match=r"the gap of nodes is wider than the kernel, whose width is 0\.0707: .* at least 45 nodes, got 32"
    ):
        af.simple_attention(200.0, 4).at(mu)
    af.simple_attention(200.0, 4).at(af.Grid.uniform([af.Zonal(4, 200, nodes=45)]))
