"""The five operations of a space, against the geometry of great circles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af


@pytest.fixture
def x(rng):
    points = rng.normal(size=(40, 4))
    return jnp.asarray(points / np.linalg.norm(points, axis=1, keepdims=True))


def test_projection_is_tangent_and_idempotent(x, rng):
    v = jnp.asarray(rng.normal(size=x.shape))
    tangent = af.Sphere().project(x, v)
    np.testing.assert_allclose(jnp.sum(tangent * x, axis=1), 0, atol=1e-15)
    np.testing.assert_allclose(af.Sphere().project(x, tangent), tangent, atol=1e-15)
    # What is taken away is normal to the sphere.
    np.testing.assert_allclose(jnp.linalg.norm(v - tangent, axis=1), np.abs(np.sum(v * x, axis=1)), atol=1e-14)


@pytest.mark.parametrize("angle", [1e-9, 0.3, 2.0, np.pi - 1e-6])
def test_exponential_map_goes_the_length_of_its_vector(x, rng, angle):
    sphere = af.Sphere()
    v = sphere.project(x, jnp.asarray(rng.normal(size=x.shape)))
    v = angle * v / jnp.linalg.norm(v, axis=1, keepdims=True)
    end = sphere.exp(x, v)
    np.testing.assert_allclose(jnp.linalg.norm(end, axis=1), 1, atol=1e-15)
    np.testing.assert_allclose(sphere.distance(x, end), angle, rtol=1e-7 if angle < 1e-6 else 1e-12)
    # The great circle: the component along x is cos, the one along v is sin.
    np.testing.assert_allclose(jnp.sum(x * end, axis=1), np.cos(angle), atol=1e-14)


def test_retraction_agrees_with_the_exponential_map_to_second_order(x, rng):
    sphere = af.Sphere()
    v = sphere.project(x, jnp.asarray(rng.normal(size=x.shape)))
    gaps = [float(jnp.abs(sphere.retract(x, h * v) - sphere.exp(x, h * v)).max()) for h in (1e-2, 1e-3)]
    assert np.log10(gaps[0] / gaps[1]) == pytest.approx(3, abs=0.05)


def test_distance_keeps_its_digits_at_both_ends(x):
    sphere = af.Sphere()
    np.testing.assert_allclose(sphere.distance(x, x), 0)
    np.testing.assert_allclose(sphere.distance(x, -x), np.pi)
    e = jnp.eye(3)[:1]
    near = jnp.array([[1.0, 1e-10, 0.0]])
    np.testing.assert_allclose(sphere.distance(e, near), 1e-10, rtol=1e-12)


@pytest.mark.long
def test_gradients_are_finite_where_distance_vanishes(x):
    for space in (af.Sphere(), af.Euclidean()):
        assert np.isfinite(jax.grad(lambda y, s=space: s.distance(x, y).sum())(x)).all()
        assert np.isfinite(jax.grad(lambda v, s=space: s.exp(x, v).sum())(jnp.zeros_like(x))).all()


def test_euclidean_space_is_flat(rng):
    space, x, v = af.Euclidean(), jnp.asarray(rng.normal(size=(5, 3))), jnp.asarray(rng.normal(size=(5, 3)))
    np.testing.assert_array_equal(space.project(x, v), v)
    np.testing.assert_array_equal(space.exp(x, v), x + v)
    np.testing.assert_array_equal(space.retract(x, v), x + v)
    np.testing.assert_allclose(space.distance(x, v), np.linalg.norm(x - v, axis=1))
