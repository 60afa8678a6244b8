"""Special functions against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from attnflow.numerics.special import cos_sin


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 4e-15), (np.float32, 2e-6)])
@pytest.mark.cases
def test_cosine_and_sine_at_moderate_angles(dtype, tolerance):
    x = np.concatenate([np.linspace(-20, 20, 4001), np.pi / 4 * np.arange(-9, 10), [0.0]]).astype(dtype)
    c, s = cos_sin(jnp.asarray(x))
    assert c.dtype == dtype
    np.testing.assert_allclose(c, np.cos(x.astype(np.float64)), atol=tolerance)
    np.testing.assert_allclose(s, np.sin(x.astype(np.float64)), atol=tolerance)
