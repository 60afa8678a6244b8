"""Logits against their definition."""

import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af


@pytest.mark.parametrize("p", [1, 3, 5])
def test_both_logits_with_rectangular_matrices(rng, p):
    Q, K, x, y = rng.normal(size=(p, 3)), rng.normal(size=(p, 3)), rng.normal(size=(6, 3)), rng.normal(size=(4, 3))
    gap = (x @ Q.T)[:, None] - (y @ K.T)[None]
    np.testing.assert_allclose(af.dot_product(Q, K, 0.7)(jnp.asarray(x), jnp.asarray(y)), (x @ Q.T) @ (y @ K.T).T / 0.7, atol=1e-12)
    np.testing.assert_allclose(af.squared_distance(Q, K, 0.7)(jnp.asarray(x), jnp.asarray(y)), -(gap**2).sum(-1) / 0.7, atol=1e-12)


def test_a_cloud_far_from_the_origin_loses_no_digits(rng):
    x, y = rng.normal(size=(5, 3)), rng.normal(size=(7, 3))
    logit, shift = af.squared_distance(np.eye(3), np.eye(3)), 2.0**30
    # Adding a power of two and taking it away again rounds the points; compare at the rounded ones.
    far_x, far_y = x + shift, y + shift
    exact = -(((far_x[:, None] - far_y[None]) ** 2).sum(-1))
    np.testing.assert_allclose(logit(jnp.asarray(far_x), jnp.asarray(far_y)), exact, rtol=1e-6)


def test_definiteness_is_found_at_construction(rng):
    Q = rng.normal(size=(3, 3))
    assert af.dot_product(Q, Q).psd
    assert af.squared_distance(Q, Q).psd
    assert af.dot_product(Q[:1], Q[:1]).psd
    assert not af.dot_product(Q, -Q).psd
    assert not af.dot_product(Q, rng.normal(size=(3, 3))).psd


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.eye(2), np.eye(2), 0.0), "temperature must be positive, got 0.0"),
        ((np.eye(2), np.eye(2), -1.0), "temperature must be positive, got -1.0"),
        ((np.eye(2), np.eye(2), np.nan), "temperature must be finite, got nan"),
        ((np.eye(2), np.eye(3)), r"query and key must have the same shape \[p, d\], got \[2, 2\] and \[3, 3\]"),
        ((np.ones(2), np.eye(2)), r"query must have shape \[p, d\], got \[2\]"),
    ],
)
def test_bad_input_is_named(arguments, message):
    for make in (af.dot_product, af.squared_distance):
        with pytest.raises(ValueError, match=message):
            make(*arguments)
