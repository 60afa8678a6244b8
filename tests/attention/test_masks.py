"""Masks against explicit sums; causal tokens never see the future."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af

ENGINES = [None, af.Streamed(4, 3), af.Streamed(64, 64)]
NORMALIZATIONS = [af.Softmax(), af.Unnormalized(-0.3), af.Hardmax(), af.Sigmoid(), af.Linear()]


def visible(mask, s, tau):
    """Who sees whom, and what is added, written out."""
    ahead = s[:, None] - tau[None]
    if isinstance(mask, af.Window):
        return (ahead >= 0) & (ahead < float(mask.width)), 0 * ahead
    return ahead >= 0, -float(mask.slope) * ahead if isinstance(mask, af.ALiBi) else 0 * ahead


def by_hand(normalize, logits, seen, w):
    if isinstance(normalize, af.Softmax):
        p = np.where(seen, np.exp(logits) * w, 0)
        return p / p.sum(1, keepdims=True)
    if isinstance(normalize, af.Hardmax):
        top = np.where(seen, logits, -np.inf).max(1, keepdims=True)
        p = (seen & (logits >= top - 1e-12)) * w
        return p / p.sum(1, keepdims=True)
    kernel = {af.Unnormalized: lambda z: np.exp(z - 0.3), af.Sigmoid: lambda z: 1 / (1 + np.exp(-z)), af.Linear: lambda z: z}
    return np.where(seen, kernel[type(normalize)](logits), 0) * w


@pytest.mark.parametrize(
    "normalize",
    [NORMALIZATIONS[0], *(pytest.param(normalize, marks=pytest.mark.long) for normalize in NORMALIZATIONS[1:])],
    ids=lambda n: type(n).__name__,
)
@pytest.mark.parametrize("mask", [af.Causal(), af.Window(0.3), af.ALiBi(2.0)], ids=lambda m: type(m).__name__)
def test_against_explicit_sums(rng, normalize, mask):
    n, d = 13, 2
    y, w, tau = rng.normal(size=(n, d)), rng.random(n), rng.random(n)
    tau[3] = tau[7]  # tokens at the same place see each other
    w /= w.sum()
    Q, K, V = rng.normal(size=(3, d, d))
    mu = af.Particles(y, w, order=tau)
    law = af.Attention(af.squared_distance(Q, K), V, normalize, mask=mask)
    seen, penalty = visible(mask, tau, tau)
    logits = -(((y @ Q.T)[:, None] - (y @ K.T)[None]) ** 2).sum(-1) + penalty
    matrix = by_hand(normalize, logits, seen, w)
    np.testing.assert_allclose(law.weights(mu.points, mu), matrix, atol=1e-12)
    for sums in ENGINES:
        np.testing.assert_allclose(law.at(mu, sums=sums)(mu.points, mu.order), matrix @ y @ V.T, atol=1e-11)
    np.testing.assert_allclose(mu.rate(law.at(mu)), matrix @ y @ V.T, atol=1e-11)
    # A query that is not a token, at its own place in the sequence.
    x, s = rng.normal(size=(1, d)), np.array([0.999])
    seen, penalty = visible(mask, s, tau)
    logits = -(((x @ Q.T)[:, None] - (y @ K.T)[None]) ** 2).sum(-1) + penalty
    if seen.any():
        np.testing.assert_allclose(law.at(mu)(jnp.asarray(x), jnp.asarray(s)), by_hand(normalize, logits, seen, w) @ y @ V.T, atol=1e-11)


def test_causal_softmax_against_torch(rng):
    torch = pytest.importorskip("torch")
    x, Q, K, V = rng.normal(size=(20, 3)), *rng.normal(size=(3, 3, 3))
    tokens, q, k, v = (torch.tensor(a) for a in (x, Q, K, V))
    expected = torch.nn.functional.scaled_dot_product_attention(tokens @ q.T, tokens @ k.T, tokens @ v.T, is_causal=True, scale=1.0).numpy()
    mu = af.Particles(x)  # without an order, rows are in order
    law = af.Attention(af.dot_product(Q, K), V, mask=af.Causal())
    for sums in ENGINES:
        np.testing.assert_allclose(mu.rate(law.at(mu, sums=sums)), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mask", [af.Causal(), af.Window(3), af.ALiBi(3.0)], ids=lambda m: type(m).__name__)
@pytest.mark.long
def test_causal_tokens_never_see_the_future(rng, mask):
    points = jnp.asarray(rng.normal(size=(6, 2)))
    law = af.simple_attention(1.0, 2, mask=mask)

    def final(x):
        return af.solve(law, af.Particles(x), t1=0.5, save_at=1, step=0.25).final.points

    jacobian = np.asarray(jax.jacrev(final)(points))  # [token, coordinate, token, coordinate]
    for i in range(6):
        assert np.abs(jacobian[i, :, i]).max() > 0
        assert (jacobian[i, :, i + 1 :] == 0).all()


@pytest.mark.long
def test_the_first_token_of_a_causal_flow_walks_alone(rng):
    x = np.abs(rng.normal(size=(5, 3)))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    mu = af.Particles(x, space=af.Sphere())
    path = af.solve(af.simple_attention(1.0, 3, mask=af.Causal()), mu, t1=40.0, save_at=2)
    np.testing.assert_allclose(path.final.points[0], x[0], atol=1e-12)
    # With V = I all others go to the first (arXiv:2411.04990).
    np.testing.assert_allclose(path.final.points, np.broadcast_to(x[0], (5, 3)), atol=1e-3)


def test_an_explicit_matrix(rng):
    y = rng.normal(size=(7, 2))
    matrix = rng.random((7, 7)) < 0.5
    matrix[np.arange(7), np.arange(7)] = True
    mu = af.Particles(y)
    law = af.Attention(af.dot_product(np.eye(2), np.eye(2)), np.eye(2), mask=af.Explicit(matrix))
    p = np.where(matrix, np.exp(y @ y.T), 0)
    expected = p / p.sum(1, keepdims=True) @ y
    for sums in ENGINES:
        np.testing.assert_allclose(mu.rate(law.at(mu, sums=sums)), expected, atol=1e-12)
    np.testing.assert_allclose(law.weights(mu.points, mu) @ y, expected, atol=1e-12)


@pytest.mark.long
def test_who_sees_nobody_does_not_move(rng):
    mu = af.Particles(rng.normal(size=(4, 2)), order=[0.5, 0.6, 0.7, 0.8])
    for normalize in NORMALIZATIONS:
        velocity = af.simple_attention(1.0, 2, normalize, mask=af.Causal()).at(mu)
        np.testing.assert_array_equal(velocity(jnp.ones((1, 2)), jnp.array([0.1])), 0)


def test_heads_and_sums_with_different_masks(rng):
    mu = af.Particles(rng.normal(size=(6, 2)))
    masked, free = af.simple_attention(1.0, 2, mask=af.Causal()), af.simple_attention(2.0, 2)
    net = af.Perceptron(rng.normal(size=(3, 2)), rng.normal(size=(2, 3)))
    a, b = mu.rate(masked.at(mu)), mu.rate(free.at(mu))
    np.testing.assert_allclose(mu.rate(af.MultiHead([masked, free]).at(mu)), (a + b) / 2, atol=1e-14)
    np.testing.assert_allclose(mu.rate((masked + free).at(mu)), a + b, atol=1e-14)
    np.testing.assert_allclose(mu.rate(masked.then(net).at(mu)), net(a), atol=1e-14)


@pytest.mark.parametrize("sums", ENGINES)
@pytest.mark.long
def test_derivative_in_the_slope(rng, sums):
    mu = af.Particles(rng.normal(size=(9, 2)))
    loss = lambda slope: jnp.sum(mu.rate(af.simple_attention(1.0, 2, mask=af.ALiBi(slope)).at(mu, sums=sums)) ** 3)  # noqa: E731
    h = 1e-6
    np.testing.assert_allclose(jax.grad(loss)(1.3), (loss(1.3 + h) - loss(1.3 - h)) / (2 * h), rtol=1e-7)


def test_a_causal_doubly_stochastic_matrix_is_the_identity():
    """GT 27, seen by scaling a triangular kernel by hand."""
    kernel = np.tril(np.exp(np.random.default_rng(0).normal(size=(6, 6))))
    for _ in range(20_000):
        kernel /= kernel.sum(1, keepdims=True)
        kernel /= kernel.sum(0, keepdims=True)
    np.testing.assert_allclose(kernel, np.eye(6), atol=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: af.simple_attention(1.0, 2, af.Sinkhorn(), mask=af.Causal()), r"causal matrix is the identity; use Softmax"),
        (lambda: af.Window(0.0), "width must be positive, got 0.0"),
        (lambda: af.ALiBi(-1.0), "slope must be positive, got -1.0"),
        (lambda: af.Explicit(np.ones((2, 3))), r"a mask matrix must be square \[n, n\], got \[2, 3\]"),
        (lambda: af.Explicit([[1, 0], [0, 0]]), "got an empty row 1"),
        (lambda: af.simple_attention(1.0, 2, mask=af.Explicit(np.eye(3))).at(af.Particles(np.eye(2))), "the mask is for 3 tokens, got 2"),
        (lambda: af.simple_attention(1.0, 2, mask=af.Causal()).at(af.Particles(np.eye(2)))(jnp.eye(2)), "needs the order of the queries"),
        (lambda: af.simple_attention(1.0, 2, mask=af.Causal()).at(af.Gaussian([0.0, 0.0], np.eye(2))), "a mask needs tokens in order"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
