"""Special functions against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from attnflow.numerics.special import cos_sin, normal_density, safe_root


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 4e-15), (np.float32, 2e-6)])
@pytest.mark.cases
def test_cosine_and_sine_at_moderate_angles(dtype, tolerance):
    x = np.concatenate([np.linspace(-20, 20, 4001), np.pi / 4 * np.arange(-9, 10), [0.0]]).astype(dtype)
    c, s = cos_sin(jnp.asarray(x))
    assert c.dtype == dtype
    np.testing.assert_allclose(c, np.cos(x.astype(np.float64)), atol=tolerance)
    np.testing.assert_allclose(s, np.sin(x.astype(np.float64)), atol=tolerance)


def test_the_safe_root_has_derivative_zero_where_the_root_has_none():
    x = jnp.asarray([-1e-17, 0.0, 4.0])
    np.testing.assert_array_equal(safe_root(x), [0, 0, 2])
    np.testing.assert_array_equal(jax.vmap(jax.grad(safe_root))(x), [0, 0, 0.25])
    np.testing.assert_array_equal(jax.vmap(jax.hessian(safe_root))(x), [0, 0, -1 / 32])


def test_the_normal_density():
    x = np.linspace(-8, 8, 33)
    np.testing.assert_allclose(normal_density(jnp.asarray(x)), scipy.stats.norm.pdf(x), rtol=1e-14)
