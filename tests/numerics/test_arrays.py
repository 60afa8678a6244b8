"""Numbers that enter: which precisions are taken."""

import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af

EYE = np.eye(2)


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, jnp.float8_e4m3fn])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("points", lambda half: af.Particles(half(EYE))),
        ("weights", lambda half: af.Particles(EYE, weights=half([1.0, 2.0]))),
        ("mean", lambda half: af.Gaussian(half([0.0, 1.0]), EYE)),
        ("cov", lambda half: af.Gaussian([0.0, 1.0], half(EYE))),
        ("density", lambda half: af.Grid(half([1.0, 1.0, 1.0, 1.0]), [af.Interval(0, 1, 4)])),
        ("query", lambda half: af.dot_product(half(EYE), EYE)),
        ("value", lambda half: af.Attention(af.dot_product(EYE, EYE), half(EYE))),
        ("means", lambda half: af.GaussianMixture([1.0], half([[0.0, 1.0]]), EYE[None])),
        ("t1", lambda half: af.solve(af.simple_attention(1.0, 2), af.Particles(EYE), t1=half(1.0))),
    ],
)
def test_half_precision_is_refused(name, make, dtype):
    with pytest.raises(
        ValueError, match=rf"{name} must be float32 or float64, got {np.dtype(dtype).name}; convert it with .astype\('float32'\)"
    ):
        make(lambda values: jnp.asarray(values, dtype))
