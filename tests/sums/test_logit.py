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
    # The form in rows, which engines without differences take, is the same.
    logit = af.squared_distance(Q, K, 0.7)
    (queries, rest), (keys, bias) = logit.queries(jnp.asarray(x), None, jnp.ones(3)), logit.keys(jnp.asarray(y), None, jnp.ones(3))
    np.testing.assert_allclose(queries @ keys.T + bias[None] + rest[:, None], -(gap**2).sum(-1) / 0.7, atol=1e-12)


def test_a_cloud_far_from_the_origin_loses_no_digits(rng):
    x, y = rng.normal(size=(5, 3)), rng.normal(size=(7, 3))
    logit, shift = af.squared_distance(np.eye(3), np.eye(3)), 2.0**30
    # Adding a power of two and taking it away again rounds the points; compare at the rounded ones.
    far_x, far_y = x + shift, y + shift
    exact = -(((far_x[:, None] - far_y[None]) ** 2).sum(-1))
    np.testing.assert_allclose(logit(jnp.asarray(far_x), jnp.asarray(far_y)), exact, rtol=1e-6)


def test_dot_product_with_biases(rng):
    Q, K, x, y, a, b = (rng.normal(size=shape) for shape in [(2, 3), (2, 3), (6, 3), (4, 3), (2,), (2,)])
    for query_bias, key_bias in [(a, b), (a, None), (None, b)]:
        expected = (x @ Q.T + (0 if query_bias is None else a)) @ (y @ K.T + (0 if key_bias is None else b)).T / 0.7
        logit = af.dot_product(Q, K, 0.7, query_bias=query_bias, key_bias=key_bias)
        np.testing.assert_allclose(logit(jnp.asarray(x), jnp.asarray(y)), expected, atol=1e-12)
        far = np.array([30.0, -20.0, 10.0])
        (queries, rest), (keys, bias) = (f(jnp.asarray(z), None, jnp.asarray(far)) for f, z in ((logit.queries, x), (logit.keys, y)))
        np.testing.assert_allclose(queries @ keys.T + bias[None] + rest[:, None], expected, atol=1e-11)
    assert af.dot_product(Q, Q, 0.7, query_bias=a, key_bias=b).psd


def test_pulling_a_logit_back_moves_both_arguments(rng):
    E, x, y = (jnp.asarray(rng.normal(size=shape)) for shape in [(3, 3), (6, 3), (4, 3)])
    Q, K = rng.normal(size=(2, 2, 3))
    a, b = rng.normal(size=(2, 2))
    for logit in (af.dot_product(Q, K, 0.7, query_bias=a, key_bias=b), af.squared_distance(Q, K), af.dot_product(Q, Q)):
        pulled = logit.pulled_back(E)
        np.testing.assert_allclose(pulled(x, y), logit(x @ E.T, y @ E.T), atol=1e-12)
        assert pulled.psd == logit.psd


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


@pytest.mark.parametrize("name", ["query_bias", "key_bias"])
def test_a_bias_of_the_wrong_shape_is_named(name):
    with pytest.raises(ValueError, match=f"{name} must have one entry per row of query and key, 2, got 3"):
        af.dot_product(np.eye(2), np.eye(2), **{name: np.ones(3)})
    with pytest.raises(ValueError, match=rf"{name} must have shape \[p\], got \[2, 2\]"):
        af.dot_product(np.eye(2), np.eye(2), **{name: np.eye(2)})
