"""Particles: moments, push-forward, and one clear error for each bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af


def test_moments_are_integrals_against_the_weights(rng):
    points, weights = rng.normal(size=(30, 3)), rng.random(30)
    mu = af.Particles(points, 5 * weights)
    np.testing.assert_allclose(mu.weights.sum(), 1)
    np.testing.assert_allclose(mu.mean, np.average(points, axis=0, weights=weights))
    np.testing.assert_allclose(mu.cov, np.cov(points.T, aweights=weights, ddof=0))
    np.testing.assert_allclose(mu.integrate(lambda y: jnp.sum(y**2, axis=1)), np.average((points**2).sum(1), weights=weights))


def test_no_weights_means_equal_weights(rng):
    points = rng.normal(size=(30, 3))
    plain, equal = af.Particles(points), af.Particles(points, np.ones(30))
    np.testing.assert_allclose(plain.cov, equal.cov, atol=1e-15)
    np.testing.assert_allclose(plain.log_weights, equal.log_weights, atol=1e-15)


def test_state_is_the_points_alone(rng):
    mu = af.Particles(rng.normal(size=(4, 2)), weights=[1, 2, 3, 4], order=[0, 0.5, 0.5, 1])
    other = mu.with_state(mu.state + 1)
    np.testing.assert_allclose(other.points, mu.points + 1)
    np.testing.assert_array_equal(other.weights, mu.weights)
    np.testing.assert_array_equal(other.order, mu.order)


def test_push_stays_on_the_sphere(key, rng):
    mu = af.samplers.sphere(20, 3, key=key)
    matrix = jnp.asarray(rng.normal(size=(3, 3)))
    moved = mu.push(lambda x: x @ matrix.T)
    expected = np.asarray(mu.points) @ np.asarray(matrix).T
    np.testing.assert_allclose(moved.points, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-15)


def test_rate_on_the_sphere_is_tangent(key):
    mu = af.samplers.sphere(20, 3, key=key)
    rate = mu.rate(lambda x: jnp.ones_like(x))
    np.testing.assert_allclose(jnp.sum(rate * mu.points, axis=1), 0, atol=1e-15)


def test_gradient_in_the_weights_exists():
    points = np.array([[0.0], [1.0], [5.0]])
    got = jax.grad(lambda w: af.Particles(points, w).mean[0])(jnp.array([1.0, 1.0, 2.0]))
    # mean = sum w x / sum w, so its derivative is (x - mean) / sum w.
    np.testing.assert_allclose(got, (points[:, 0] - 11 / 4) / 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"points": [[0.0, np.nan]]}, r"points must be finite, got nan at \[0, 1\]"),
        ({"points": [[0.0], [np.inf]]}, r"points must be finite, got inf at \[1, 0\]"),
        ({"points": [1.0, 2.0]}, r"points must have shape \[n, d\], got \[2\]"),
        ({"points": np.zeros((0, 3))}, r"points must not be empty, got shape \[0, 3\]"),
        ({"points": "tokens"}, r"points must be an array of numbers"),
        ({"points": np.eye(2) * 1j}, "points must hold real numbers, got dtype complex"),
        ({"points": np.eye(2), "weights": [1.0, -0.5]}, r"weights must not be negative, got -0.5 at \[1\]"),
        ({"points": np.eye(2), "weights": [0.0, 0.0]}, "weights must have positive total mass, got 0"),
        ({"points": np.eye(2), "weights": [1.0]}, "weights must have one entry per token, 2, got 1"),
        ({"points": np.eye(2), "weights": [1.0, np.nan]}, "weights must be finite, got nan"),
        ({"points": np.eye(2), "order": [0.0, 0.2, 0.4]}, "order must have one entry per token, 2, got 3"),
        ({"points": 2 * np.eye(3), "space": af.Sphere()}, "points must lie on the unit sphere, got norm 2 in row 0"),
        ({"points": [[1.0]], "space": af.Sphere()}, "the sphere needs points in R.d with d >= 2, got d = 1"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        af.Particles(**arguments)


def test_weights_of_any_size():
    # The shares are those of whole numbers, whatever their unit: neither the sum nor a weight of float32 need be in range.
    for unit in (1.0, 4e307, 1e-320, 1e-40):
        for weights in (unit * np.array([1.0, 2.0, 1.0]), [unit, 2 * unit, unit]):
            for dtype in (np.float64, np.float32):
                mu = af.Particles(np.eye(3, dtype=dtype), weights=weights)
                assert mu.weights.dtype == dtype
                np.testing.assert_allclose(mu.weights, [0.25, 0.5, 0.25], rtol=1e-3 if unit == 1e-320 else 1e-6)
        mixture = af.GaussianMixture([unit, 3 * unit], [[0.0], [1.0]], [[[1.0]], [[1.0]]])
        np.testing.assert_allclose(mixture.weights, [0.25, 0.75], rtol=1e-3)
    np.testing.assert_allclose(af.Particles(np.eye(3), weights=np.full(3, 1e308)).weights, 1 / 3, rtol=1e-15)
    # Inside jit and grad too.
    first = jax.jit(jax.value_and_grad(lambda w: af.Particles(np.eye(3), weights=w).weights[0]))
    np.testing.assert_allclose(first(jnp.full(3, 1e308))[0], 1 / 3, rtol=1e-15)
    np.testing.assert_allclose(first(jnp.ones(3))[1], [2 / 9, -1 / 9, -1 / 9], rtol=1e-12)


def test_float64_in_32_bit_mode_warns_once_with_the_cure():
    import subprocess
    import sys

    code = (
        "import warnings, numpy as np; warnings.simplefilter('always');\n"
        "import attnflow as af\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always'); a = af.Particles(np.eye(2)); af.Particles(np.eye(3))\n"
        "print(len(seen), 'jax_enable_x64' in str(seen[0].message), a.points.dtype)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["1", "True", "float32"]
