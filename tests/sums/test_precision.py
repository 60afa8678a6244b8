"""Digits of logits: squared distances from differences, a bound and a warning where scalar products lose them, ties of hardmax."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af
from attnflow.sums import native, precision

ENGINES = [None, af.Streamed(64, 64, native=False), pytest.param(af.Streamed(), marks=pytest.mark.long)]


def softmax(logits, values):
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True), p @ values / p.sum(axis=1, keepdims=True)


def clusters(rng, apart, dtype, n=100, dim=2):
    return (rng.normal(size=(n, dim)) + apart * rng.integers(-1, 2, size=(n, 1))).astype(dtype)


@pytest.mark.parametrize("sums", ENGINES, ids=["dense", "tiles", "native"])
def test_far_clusters_in_single_precision(rng, sums):
    x = clusters(rng, 1e4, np.float32)
    wide = x.astype(np.float64)
    weights, mean = softmax(-0.5 * ((wide[:, None] - wide[None]) ** 2).sum(axis=2), wide)
    law = af.Attention(af.squared_distance(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), 2.0), np.eye(2, dtype=np.float32))
    mu = af.Particles(x)
    # The average has the round-off of a coordinate, and nothing of its square.
    np.testing.assert_allclose(law.at(mu, sums=sums)(mu.points), mean, rtol=0, atol=8 * np.finfo(np.float32).eps * 1e4)
    if sums is None:
        np.testing.assert_allclose(law.weights(mu.points, mu), weights, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("query", "key"), [("Q", "Q"), ("Q", "K")])
def test_other_matrices(rng, query, key):
    # Tokens of the plane seen through a head of three coordinates, where squares would leave an error of about one.
    heads = {"Q": rng.normal(size=(3, 2)).astype(np.float32), "K": rng.normal(size=(3, 2)).astype(np.float32)}
    Q, K, x = heads[query], heads[key], clusters(rng, 2e3, np.float32)
    q, k = x.astype(np.float64) @ Q.T.astype(np.float64), x.astype(np.float64) @ K.T.astype(np.float64)
    logits = -((q[:, None] - k[None]) ** 2).sum(axis=2)
    assert np.finfo(np.float32).eps * (np.abs(q).max() * np.abs(k).max()) > 0.3
    found = af.squared_distance(Q, Q if query == key else K)(jnp.asarray(x), jnp.asarray(x))
    # What is left is the round-off of the rows: relative to the distance times their size.
    slack = 64 * np.finfo(np.float32).eps * np.sqrt(-logits) * max(np.abs(q).max(), np.abs(k).max())
    assert (np.abs(found - logits) <= slack + 1e-3).all()


@pytest.mark.long
def test_derivatives_of_differences(rng):
    # Against NumPy's differences of sums, in every argument: queries and keys, masses, temperature.
    x, w, G, v = rng.normal(size=(12, 2)), rng.uniform(0.5, 1, size=12), rng.normal(size=(12, 2)), rng.normal(size=(12, 2))

    def reference(x, w, temperature):
        logits = -((x[:, None] - x[None]) ** 2).sum(axis=2) / temperature + np.log(w / w.sum())
        return (softmax(logits, x)[1] * G).sum()

    @jax.jit
    @jax.grad
    def slope(h):
        law = af.Attention(af.squared_distance(np.eye(2), np.eye(2), 0.7 + h[2]), np.eye(2))
        mu = af.Particles(x + h[0] * v, weights=w * (1 + h[1] * v[:, 0]))
        return jnp.sum(law.at(mu, sums=af.Streamed(5, 5, native=False))(mu.points) * G)

    at, size = np.zeros(3), 1e-6
    moved = [at + size * sign * axis for axis in np.eye(3) for sign in (1, -1)]
    values = [reference(x + h[0] * v, w * (1 + h[1] * v[:, 0]), 0.7 + h[2]) for h in moved]
    np.testing.assert_allclose(slope(jnp.zeros(3)), np.diff(np.reshape(values, (3, 2))[:, ::-1])[:, 0] / (2 * size), rtol=1e-7, atol=1e-8)


@pytest.mark.skipif(not native.available(), reason="the compiled kernel is off")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [1, 3])
def test_the_kernel_with_differences(rng, d, dtype):
    q, k, b, v = (rng.normal(size=s).astype(dtype) for s in ((70, d), (300, d), 300, (300, 2)))
    q, k = 1e3 * q, np.concatenate([1e3 * q[:60], k[60:]]).astype(dtype)
    q, b = q.astype(dtype), np.where(np.arange(300) % 7 == 6, -np.inf, b).astype(dtype)
    logits = b.astype(float) - 0.75 * ((q.astype(float)[:, None] - k.astype(float)[None]) ** 2).sum(axis=2)
    seen = np.where(np.arange(70) < 40, 300, 65).astype(np.int32)
    logits[40:, 65:] = -np.inf
    log_sum, mean = native.softmax(*map(jnp.asarray, (q, k, b, v)), jnp.asarray(seen), jnp.asarray(1.5, dtype))
    top = logits.max(axis=1)
    np.testing.assert_allclose(log_sum, top + np.log(np.exp(logits - top[:, None]).sum(axis=1)), rtol=8 * np.finfo(dtype).eps)
    near = top > -1
    assert near.sum() > 20
    np.testing.assert_allclose(mean[near], softmax(logits, v)[1][near], rtol=0, atol=20 * np.finfo(dtype).eps)


def test_a_bound_and_one_warning_elsewhere(rng, monkeypatch):
    monkeypatch.setattr(precision, "_warned", set())
    eye = np.eye(5, dtype=np.float32)
    law, mu = af.Attention(af.squared_distance(eye, eye, 2.0), eye), af.Particles(clusters(rng, 1e3, np.float32, 20, 5))
    with pytest.warns(UserWarning, match=r"logits carry round-off of up to .*jax_enable_x64.*temperature"):
        velocity = law.at(mu)
    centered = np.asarray(mu.points, np.float64) - np.asarray(mu.points, np.float64).mean(axis=0)
    bound = 2.0**-24 * (centered**2).sum(axis=1).max()
    np.testing.assert_allclose(velocity.report["round_off"]["bound"], bound, rtol=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Once is enough, double precision has the digits, and differences in the plane have them too.
        law.at(mu)
        monkeypatch.setattr(precision, "_warned", set())
        af.Attention(af.squared_distance(np.eye(5), np.eye(5), 2.0), np.eye(5)).at(af.Particles(np.asarray(mu.points, np.float64)))
        flat = af.Attention(af.squared_distance(eye[:2, :2], eye[:2, :2], 2.0), eye[:2, :2]).at(af.Particles(mu.points[:, :2]))
    assert flat.report == {}
    with pytest.warns(UserWarning, match="center or scale"):
        af.Attention(af.dot_product(np.eye(3), np.eye(3), 1e-12), np.eye(3)).at(af.samplers.sphere(9, 3, key=jax.random.key(0)))


@pytest.mark.parametrize("sums", [None, af.Streamed(4, 4, native=False)], ids=["dense", "tiles"])
def test_ties_do_not_depend_on_other_keys(sums):
    # Two keys that differ by 1e-9 in the logit, one far away that no query of the first rows looks at, and a tie up to round-off.
    points = np.array([[1.0, 0.0], [1 - 1e-9, 0.0], [-1e9, 0.0], [0.1, 0.3], [0.1, 0.3 + 2e-17]])
    law = af.Attention(af.dot_product(np.eye(2), np.eye(2)), np.eye(2), af.Hardmax())
    mu, x = af.Particles(points), jnp.asarray([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    np.testing.assert_array_equal(law.weights(x, mu), [[1, 0, 0, 0, 0], [0, 0, 0, 0.5, 0.5], [0, 0, 1, 0, 0]])
    np.testing.assert_allclose(law.at(mu, sums=sums)(x), [[1, 0], [0.1, 0.3], [-1e9, 0]], rtol=0, atol=1e-6)
    # The nearest key, with the others at a great distance from each other; the last query is as far from two.
    near = af.Attention(af.squared_distance(np.eye(2), np.eye(2)), np.eye(2), af.Hardmax())
    x = jnp.asarray([[0.999, 0.0], [0.2, 0.3 / 3], [-1e9, 1.0]])
    tokens = af.Particles(np.array([[1.0, 0.0], [0.999 + 2e-3, 0.0], [-1e9, 0.0], [0.1, 0.1], [0.3, 0.1]]))
    np.testing.assert_array_equal(near.weights(x, tokens), [[1, 0, 0, 0, 0], [0, 0, 0, 0.5, 0.5], [0, 0, 1, 0, 0]])
    np.testing.assert_allclose(near.at(tokens, sums=sums)(x), [[1, 0], [0.2, 0.1], [-1e9, 0]], rtol=1e-9, atol=1e-6)
