"""Samplers: the law they name, by goodness of fit; the same key, the same tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import beta, kstest

import attnflow as af

N = 20_000


def test_normal(key):
    assert kstest(np.asarray(af.samplers.normal(N, 3, key=key).points).ravel(), "norm").pvalue > 0.01


@pytest.mark.parametrize("dim", [2, 3, 8])
@pytest.mark.cases
def test_sphere_coordinate_law(key, dim):
    mu = af.samplers.sphere(N, dim, key=key)
    assert isinstance(mu.space, af.Sphere)
    # (1 + x_1) / 2 is Beta((d-1)/2, (d-1)/2) for x uniform on the sphere.
    law = beta((dim - 1) / 2, (dim - 1) / 2)
    assert kstest((1 + np.asarray(mu.points[:, 0])) / 2, law.cdf).pvalue > 0.01


@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.cases
def test_ball_radius_law(key, dim):
    points = np.asarray(af.samplers.ball(N, dim, key=key, radius=2.0).points)
    assert kstest((np.linalg.norm(points, axis=1) / 2) ** dim, "uniform").pvalue > 0.01
    assert np.abs(points.mean(axis=0)).max() < 0.05


def test_hemisphere_is_the_half_around_its_pole(key):
    pole = np.array([1.0, 2.0, -1.0])
    points = np.asarray(af.samplers.hemisphere(N, 3, key=key, pole=pole).points)
    heights = points @ pole / np.linalg.norm(pole)
    assert heights.min() >= 0
    assert kstest(heights, "uniform").pvalue > 0.01  # Archimedes: heights on S^2 are uniform.


def test_cube(key):
    points = np.asarray(af.samplers.cube(N, 2, key=key, half_width=3.0).points)
    assert kstest((points.ravel() + 3) / 6, "uniform").pvalue > 0.01


def test_mixture_shares(key):
    points = af.samplers.mixture(N, [1, 3], [[-50.0], [50.0]], [[[1.0]], [[1.0]]], key=key).points
    assert float(jnp.mean(points > 0)) == pytest.approx(0.75, abs=0.015)


def test_orthonormal_tokens(key):
    points = af.samplers.orthonormal(5, 8, key=key).points
    np.testing.assert_allclose(points @ points.T, np.eye(5), atol=1e-14)


def test_same_key_same_tokens(key):
    for sampler in (af.samplers.normal, af.samplers.sphere, af.samplers.ball, af.samplers.cube, af.samplers.hemisphere):
        first, second = sampler(7, 3, key=key).points, sampler(7, 3, key=key).points
        np.testing.assert_array_equal(first, second)
        assert not np.array_equal(first, sampler(7, 3, key=jax.random.key(8)).points)


def test_precision_can_be_chosen(key):
    assert af.samplers.sphere(3, 3, key=key, dtype=jnp.float32).points.dtype == jnp.float32


def test_bad_input_is_named(key):
    with pytest.raises(ValueError, match=r"at most 3 tokens of R.3 are orthonormal, got n = 4"):
        af.samplers.orthonormal(4, 3, key=key)
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        af.samplers.normal(0, 2, key=key)
    with pytest.raises(ValueError, match="radius must be positive, got -1"):
        af.samplers.ball(3, 2, key=key, radius=-1.0)
    with pytest.raises(ValueError, match="pole must have 3 coordinates, got 2"):
        af.samplers.hemisphere(3, 3, key=key, pole=[1.0, 0.0])
