"""The limit field: against softmax at low temperature, its own formula, and the flow of directions under a matrix."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

import attnflow as af

S = np.array([[1.0, 0.6], [0.2, 1.0]])
M = S @ np.diag([1.0, -0.5]) @ np.linalg.inv(S)
B = np.array([[1.2, 0.3], [-0.2, 0.8]])
V = M @ np.linalg.inv(B.T)


def tangent(x, v):
    return v - np.sum(x * v, axis=1, keepdims=True) * x


def test_softmax_tends_to_it():
    """On a uniform law, like 1/beta; the logit `beta <B y, x>` is `dot_product(I, B, 1/beta)`."""
    mu = af.Grid.uniform([af.Circle(512)])
    x = np.asarray(mu.points)
    limit = np.asarray(af.ZeroTemperature(af.dot_product(np.eye(2), B), V).at(mu)(mu.points))
    key = x @ B
    np.testing.assert_allclose(limit, key / np.linalg.norm(key, axis=1, keepdims=True) @ V.T, atol=1e-14)
    for beta in (20.0, 200.0):
        found = af.Attention(af.dot_product(np.eye(2), B, 1 / beta), V).at(mu)(mu.points)
        exact = np.asarray(af.theory.uniform_mean(beta * key)) @ V.T
        np.testing.assert_allclose(found, exact, atol=1e-10)
        assert np.abs(np.asarray(found) - limit).max() < 2 / beta


def test_tokens_follow_directions_of_the_matrix():
    """In the time `ds = dt / |B^T x|`; with B orthogonal that is t: `x(t) = e^{tM} x / |e^{tM} x|`."""
    angle = np.linspace(0, 6, 20)
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    mu = af.Particles(x, space=af.Sphere())
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    final = af.solve(af.ZeroTemperature(af.dot_product(np.eye(2), turn), M @ turn), mu, t1=1.3, save_at=1).final.points
    linear = x @ expm(1.3 * M).T
    np.testing.assert_allclose(final, linear / np.linalg.norm(linear, axis=1, keepdims=True), atol=1e-6)
    # For any B the curve is the same, at another speed: tokens and limits agree.
    late = af.solve(af.ZeroTemperature(af.dot_product(np.eye(2), B), V), mu, t1=30.0, save_at=1).final.points
    np.testing.assert_allclose(late, af.theory.cold_limit(x, B, V), atol=1e-6)


@pytest.mark.parametrize("axes", [[af.Icosphere(8)], [af.Zonal(5, 60)]], ids=lambda axes: type(axes[0]).__name__)
@pytest.mark.long
def test_grids_move_like_their_tokens(axes, key):
    mu = af.Grid.uniform(axes)
    d = mu.dim
    shape = np.eye(d) + np.diag([0.8] + [0.0] * (d - 1))
    field = af.ZeroTemperature(af.dot_product(shape, np.eye(d)), np.eye(d))
    grid = af.solve(field, mu, t1=0.5, save_at=1).final
    tokens = af.solve(field, af.samplers.sphere(20_000, d, key=key), t1=0.5, save_at=1, rtol=1e-4).final
    np.testing.assert_allclose(jnp.diagonal(grid.cov), jnp.diagonal(tokens.cov), atol=0.01)
    assert float(grid.cov[0, 0]) > 1.1 / d


def test_a_key_that_the_logit_does_not_see():
    field = af.ZeroTemperature(af.dot_product(np.diag([1.0, 0.0]), np.eye(2)), np.eye(2))
    velocity = field.at(af.Particles(np.eye(2), space=af.Sphere()))
    np.testing.assert_array_equal(velocity(jnp.eye(2)), [[1, 0], [0, 0]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: af.ZeroTemperature(af.squared_distance(np.eye(2), np.eye(2)), np.eye(2)), "a dot product without a bias of the query"),
        (lambda: af.ZeroTemperature(af.dot_product(np.eye(2), np.eye(2)), np.eye(3)), r"value must be \[2, 2\] like the tokens"),
        (lambda: af.ZeroTemperature(af.dot_product(B, B), V).at(af.Particles(np.eye(2))), "on the Sphere, got Particles elsewhere"),
        (
            lambda: af.ZeroTemperature(af.dot_product(B, B), V).at(af.Grid.uniform([af.Icosphere(2)])),
            r"acts on R\^2, got a measure on R\^3",
        ),
        (
            lambda: af.ZeroTemperature(af.dot_product(np.diag([1.0, 2, 3]), np.eye(3)), np.eye(3)).at(af.Grid.uniform([af.Zonal(3, 8)])),
            "symmetric about the first axis, got K\\^T Q",
        ),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
