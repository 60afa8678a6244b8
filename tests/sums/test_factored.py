"""Heads whose rows are shorter than tokens, and rotary positions, against their definitions in NumPy and in torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af
from attnflow.sums import Factored, Quadratic

D, N = 6, 11


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.fixture
def head(rng):
    return {name: rng.normal(size=(2, D)) for name in ("Q", "K")} | {"a": rng.normal(size=2), "b": rng.normal(size=2)}


def test_a_head_of_low_rank_is_its_quadratic_form(rng, head):
    x, y = jnp.asarray(rng.normal(size=(N, D))), jnp.asarray(3 + rng.normal(size=(N, D)))
    for logit in (
        af.dot_product(head["Q"], head["K"], 0.7, query_bias=head["a"], key_bias=head["b"]),
        af.squared_distance(head["Q"], head["K"], 0.7),
        af.dot_product(head["Q"], head["Q"]),
    ):
        assert isinstance(logit, Factored)
        assert isinstance(logit.form, Quadratic)
        np.testing.assert_allclose(logit(x, y), logit.form(x, y), atol=1e-11)
        assert all(leaf.size < D * D for leaf in jax.tree.leaves(logit))
    assert af.dot_product(head["Q"], head["Q"]).psd
    assert not af.dot_product(head["Q"], head["K"]).psd


@pytest.mark.parametrize("sums", [None, af.Streamed(4, 3, native=False), af.Streamed()])
@pytest.mark.parametrize("normalize", [af.Softmax(), af.Unnormalized(), af.Sigmoid(), af.Linear(), af.Hardmax(), af.Sinkhorn()])
def test_a_head_with_factored_values_is_the_head_with_its_matrices(rng, head, normalize, sums):
    out, W = rng.normal(size=(D, 3)), rng.normal(size=(3, D))
    mu = af.Particles(2 + 0.5 * rng.normal(size=(N, D)), weights=rng.uniform(1, 2, N))
    factored = af.Attention(af.dot_product(head["Q"], head["K"], 3.0, query_bias=head["a"], key_bias=head["b"]), (out, W), normalize)
    dense = af.Attention(factored.logit.form, out @ W, normalize)
    np.testing.assert_allclose(factored.value, out @ W, atol=1e-14)
    velocity, expected = factored.at(mu, sums=sums), dense.at(mu, sums=sums)
    np.testing.assert_allclose(velocity(mu.points), expected(mu.points), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(factored.weights(mu.points, mu), dense.weights(mu.points, mu), rtol=1e-8, atol=1e-12)


def test_a_bias_of_values_counts_as_much_as_is_seen(rng, head):
    out, W, bias = rng.normal(size=(D, 3)), rng.normal(size=(3, D)), rng.normal(size=3)
    mu = af.Particles(rng.normal(size=(N, D)))
    for normalize in (af.Softmax(), af.Sigmoid(), af.Unnormalized()):
        law = af.Attention(af.dot_product(head["Q"], head["K"]), (out, W, bias), normalize)
        values = np.asarray(mu.points) @ W.T + bias
        np.testing.assert_allclose(law.at(mu)(mu.points), law.weights(mu.points, mu) @ values @ out.T, atol=1e-10)


def test_the_gaussian_picture_of_a_head(rng, head):
    out, W, bias = rng.normal(size=(D, 3)), rng.normal(size=(3, D)), rng.normal(size=3)
    g = af.Gaussian(rng.normal(size=D), 0.3 * np.eye(D))
    x = jnp.asarray(rng.normal(size=(5, D)))
    for normalize in (af.Softmax(), af.Sinkhorn(), af.Linear()):
        law = af.Attention(af.dot_product(head["Q"], head["K"], 2.0), (out, W, bias), normalize)
        plain = af.Attention(law.logit.form, np.eye(D), normalize)
        np.testing.assert_allclose(law.at(g)(x), (np.asarray(plain.at(g)(x)) @ W.T + bias) @ out.T, atol=1e-10)


def turned(rows, places, frequencies, interleaved):
    """Rotary positions by complex numbers: a pair (u, v) is u + iv, times e^{i place frequency}."""
    r = len(frequencies)
    first, second = (rows[:, 0 : 2 * r : 2], rows[:, 1 : 2 * r : 2]) if interleaved else (rows[:, :r], rows[:, r : 2 * r])
    z = (first + 1j * second) * np.exp(1j * places[:, None] * frequencies[None])
    out = rows.copy()
    if interleaved:
        out[:, 0 : 2 * r : 2], out[:, 1 : 2 * r : 2] = z.real, z.imag
    else:
        out[:, :r], out[:, r : 2 * r] = z.real, z.imag
    return out


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("partial", [False, True])
def test_rotary_logits_are_turned_rows(rng, interleaved, partial):
    Q, K, a, b = (rng.normal(size=s) for s in [(4, D), (4, D), (4,), (4,)])
    frequencies = np.array([0.3]) if partial else 10_000.0 ** -np.array([0.0, 0.5])
    given = {"frequencies": frequencies} if partial else {}
    logit = af.rotary(Q, K, 2.0, query_bias=a, key_bias=b, interleaved=interleaved, **given)
    points = rng.normal(size=(N, D))
    places = np.arange(N) * 1.0
    q, k = (turned(points @ M.T + c, places, frequencies, interleaved) for M, c in ((Q, a), (K, b)))
    order = jnp.asarray(places)
    np.testing.assert_allclose(logit(jnp.asarray(points), jnp.asarray(points), order, order), q @ k.T / 2, atol=1e-12)
    mu = af.Particles(points)
    for mask, visible in ((None, np.ones((N, N))), (af.Causal(), np.tril(np.ones((N, N))))):
        law = af.Attention(logit, np.eye(D), mask=mask)
        weights = softmax(np.where(visible, q @ k.T / 2, -np.inf))
        np.testing.assert_allclose(law.weights(mu.points, mu), weights, atol=1e-12)
        for sums in (None, af.Streamed(4, 3, native=False), af.Streamed()):
            np.testing.assert_allclose(law.at(mu, sums=sums)(mu.points, mu.sequence), weights @ points, atol=1e-12)
        np.testing.assert_allclose(mu.rate(law.at(mu)), weights @ points, atol=1e-12)


def test_rotary_logits_see_distances_in_the_sequence_alone(rng):
    Q, K = rng.normal(size=(2, 4, D))
    law = af.Attention(af.rotary(Q, K), np.eye(D))
    points = rng.normal(size=(N, D))
    here, there = (af.Particles(points, order=np.arange(N) + shift) for shift in (0.0, 1000.0))
    np.testing.assert_allclose(here.rate(law.at(here)), there.rate(law.at(there)), atol=1e-10)


def test_rotary_sinkhorn_is_doubly_stochastic(rng):
    Q, K = rng.normal(size=(2, 4, D))
    mu = af.Particles(rng.normal(size=(N, D)))
    law = af.Attention(af.rotary(Q, K, 3.0), np.eye(D), af.Sinkhorn())
    weights = np.asarray(law.weights(mu.points, mu))
    np.testing.assert_allclose(weights.sum(axis=0), 1, atol=1e-8)
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-8)
    np.testing.assert_allclose(mu.rate(law.at(mu)), weights @ np.asarray(mu.points), atol=1e-8)


def test_rotary_against_torch(rng):
    torch = pytest.importorskip("torch")
    Q, K = rng.normal(size=(2, 4, D))
    points = rng.normal(size=(N, D))
    inverse = 10_000.0 ** -(torch.arange(0, 4, 2, dtype=torch.float64) / 4)
    angle = torch.arange(N, dtype=torch.float64)[:, None] * inverse[None]
    cos, sin = (torch.cat([f(angle)] * 2, dim=-1) for f in (torch.cos, torch.sin))

    def turn(rows):
        half = torch.cat([-rows[:, 2:], rows[:, :2]], dim=-1)
        return rows * cos + half * sin

    q, k = (turn(torch.tensor(points @ M.T)) for M in (Q, K))
    expected = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], torch.tensor(points)[None], is_causal=True)[0]
    mu = af.Particles(points)
    law = af.Attention(af.rotary(Q, K, temperature=np.sqrt(4)), np.eye(D), mask=af.Causal())
    np.testing.assert_allclose(mu.rate(law.at(mu)), expected.numpy(), atol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: af.rotary(np.ones((3, 4)), np.ones((3, 4))), "odd dimension 3"),
        (lambda: af.rotary(np.ones((4, 4)), np.ones((4, 4)), frequencies=np.ones(3)), "got r = 3"),
        (
            lambda: af.Attention(af.rotary(np.ones((2, 2)), np.ones((2, 2))), np.eye(2)).at(af.Gaussian([0.0, 0.0], np.eye(2))),
            "no quadratic form",
        ),
        (
            lambda: af.Attention(af.dot_product(np.eye(2), np.eye(2)), (np.eye(2), np.ones((3, 2)))),
            "must agree, got \\[2, 2\\], \\[3, 2\\]",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
