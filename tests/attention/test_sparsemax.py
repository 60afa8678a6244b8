"""Sparsemax and entmax against sorting and bisection; they are functions of the measure, and their derivatives those of the equation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af

ENGINES = [None, af.Streamed(4, 3)]
MASKS = [None, af.Causal(), af.Window(3), af.ALiBi(0.7), af.Explicit(np.tri(9)[:, ::-1] + np.eye(9) > 0)]


def sparsemax(z):
    """The projection of a vector to the simplex, by sorting (Martins and Astudillo 2016, algorithm 1)."""
    down = np.sort(z)[::-1]
    sums, k = np.cumsum(down), np.arange(1, len(z) + 1)
    last = np.nonzero(1 + k * down > sums)[0][-1]
    return np.maximum(z - (sums[last] - 1) / (last + 1), 0)


def entmax(alpha, logits, w):
    """The weights `k_j w_j` of one query, by bisection for tau."""
    z = (alpha - 1) * logits
    low, high = z.max() - w[z.argmax()] ** (1 - alpha), z.max()
    for _ in range(200):
        tau = (low + high) / 2
        k = np.maximum(z - tau, 0) ** (1 / (alpha - 1))
        low, high = (tau, high) if w @ k > 1 else (low, tau)
    return k * w


def seen_by(mask, n):
    """Who sees whom, and what is added, for tokens at positions."""
    ahead = np.subtract.outer(np.arange(n), np.arange(n))
    if mask is None:
        return np.ones((n, n), bool), 0
    if isinstance(mask, af.Explicit):
        return np.asarray(mask.matrix), 0
    seen = (ahead >= 0) & (ahead < (float(mask.width) if isinstance(mask, af.Window) else n))
    return seen, -float(mask.slope) * ahead if isinstance(mask, af.ALiBi) else 0


def by_hand(alpha, logits, seen, w):
    found = np.zeros_like(logits)
    for i, row in enumerate(seen):
        found[i, row] = entmax(alpha, logits[i, row], w[row])
    return found


def test_equal_tokens_against_sorting(rng):
    """`p = sparsemax(l / n)`, with some keys in and some out."""
    x, n = 3 * rng.normal(size=(12, 2)), 12
    mu, law = af.Particles(x), af.simple_attention(1.0, 2, af.Sparsemax())
    expected = np.stack([sparsemax(row / n) for row in x @ x.T])
    assert 0 < (expected == 0).mean() < 1
    found = law.weights(mu.points, mu)
    np.testing.assert_allclose(found, expected, atol=1e-14)
    np.testing.assert_array_equal(found == 0, expected == 0)
    for sums in ENGINES:
        np.testing.assert_allclose(law.at(mu, sums=sums)(mu.points), expected @ x, atol=1e-13)


@pytest.mark.parametrize("alpha", [2.0, 1.5, 1.2])
def test_weighted_tokens_under_masks_against_bisection(rng, alpha):
    n = 9
    y, w, (Q, K, V) = rng.normal(size=(n, 2)), rng.random(n), 2 * rng.normal(size=(3, 2, 2))
    w /= w.sum()
    mu = af.Particles(y, w)
    for mask in MASKS if alpha == 1.5 else MASKS[:2]:
        law = af.Attention(af.squared_distance(Q, K, 0.5), V, af.Sparsemax(alpha), mask=mask)
        seen, penalty = seen_by(mask, n)
        expected = by_hand(alpha, -2.0 * (((y @ Q.T)[:, None] - (y @ K.T)[None]) ** 2).sum(-1) + penalty, seen, w)
        matrix = law.weights(mu.points, mu)
        np.testing.assert_allclose(matrix, expected, atol=1e-11)
        np.testing.assert_allclose(np.sum(matrix, axis=1), 1, rtol=1e-14)
        for sums in ENGINES:
            velocity = law.at(mu, sums=sums)
            np.testing.assert_allclose(velocity(mu.points, mu.sequence), expected @ y @ V.T, atol=1e-10)
            figures = velocity.report["sparsemax"]
            assert figures["converged"]
            assert figures["iterations"] <= 12
            assert figures["error"] < 1e-13


def test_entmax_of_equal_tokens_is_that_of_the_papers(rng):
    """`p = entmax(n^{1 - alpha} l)` for sums."""
    x, alpha = 2 * rng.normal(size=(10, 2)), 1.5
    scores = 10 ** (1 - alpha) * x @ x.T
    mu = af.Particles(x)
    expected = np.stack([entmax(alpha, row, np.ones(10)) for row in scores])
    np.testing.assert_allclose(af.simple_attention(1.0, 2, af.Sparsemax(alpha)).weights(mu.points, mu), expected, atol=1e-13)


def test_the_limits(rng):
    """alpha to 1 is softmax, the temperature to 0 is hardmax."""
    mu = af.Particles(rng.normal(size=(8, 2)))
    soft = af.simple_attention(1.0, 2).weights(mu.points, mu)
    gaps = [np.abs(af.simple_attention(1.0, 2, af.Sparsemax(a)).weights(mu.points, mu) - soft).max() for a in (1.01, 1.001)]
    assert gaps[1] < 1e-3
    assert gaps[0] / gaps[1] == pytest.approx(10, rel=0.05)
    # At the last the gap of the level is below the round-off of a logit.
    for beta in (1e3, 1e6, 1e30):
        hard = af.simple_attention(beta, 2, af.Hardmax()).weights(mu.points, mu)
        for alpha in (2.0, 1.1):
            np.testing.assert_allclose(af.simple_attention(beta, 2, af.Sparsemax(alpha)).weights(mu.points, mu), hard, rtol=1e-12)


@pytest.mark.parametrize("alpha", [2.0, 1.5])
def test_a_function_of_the_measure(rng, alpha):
    """Tokens that are split in parts, that have no mass, or a cloud far away change nothing."""
    x, w = rng.normal(size=(7, 2)), rng.random(7)
    law = af.simple_attention(4.0, 2, af.Sparsemax(alpha))
    expected = law.at(af.Particles(x, w))(jnp.asarray(x))
    parts = af.Particles(np.concatenate([x, x, 5 * x[:1]]), np.concatenate([w / 4, 3 * w / 4, [0.0]]))
    far = np.array([1e4, -1e4])
    for sums in ENGINES:
        np.testing.assert_allclose(law.at(parts, sums=sums)(jnp.asarray(x)), expected, atol=1e-13)
    # The logit 4 <x, y + far> differs from 4 <x, y> by a term in x alone.
    np.testing.assert_allclose(np.asarray(law.at(af.Particles(x + far, w))(jnp.asarray(x))) - far, expected, atol=1e-10)


def test_who_sees_nobody_does_not_move(rng):
    mu = af.Particles(rng.normal(size=(6, 2)))
    law, order = af.simple_attention(2.0, 2, af.Sparsemax(), mask=af.Causal()), jnp.array([-1.0, 0.0])
    for sums in ENGINES:

        def velocity(x, sums=sums):
            return law.at(mu, sums=sums)(x, order)

        np.testing.assert_allclose(velocity(mu.points[:2]), [[0, 0], mu.points[0]], atol=1e-14)
        np.testing.assert_allclose(jax.jit(jax.jacrev(velocity))(mu.points[:2]), 0, atol=1e-15)


def test_factored_heads_and_rotary_positions(rng):
    x, (Q, K, W), out = rng.normal(size=(8, 3)), rng.normal(size=(3, 2, 3)), rng.normal(size=(3, 2))
    mu = af.Particles(x)
    for logit in (af.dot_product(Q, K, 0.2), af.rotary(Q, K, 0.2)):
        law = af.Attention(logit, (out, W, np.ones(2)), af.Sparsemax(), mask=af.Causal())
        matrix = law.weights(mu.points, mu)
        assert 0 < np.mean(np.asarray(matrix)[np.tri(8) > 0] == 0) < 1
        for sums in ENGINES:
            found = law.at(mu, sums=sums)(mu.points, mu.sequence)
            np.testing.assert_allclose(found, matrix @ (x @ W.T + 1) @ out.T, atol=1e-12)


def test_on_a_grid():
    """Cells as atoms, against bisection; under a mask a cell that is seen in part has that part of its mass."""
    line = af.Grid.from_density(lambda x: jnp.exp(-((x[:, 0] - 1) ** 2) / 2) / np.sqrt(2 * np.pi), [af.Interval(-5, 6, 30)])
    y, w = np.asarray(line.points), np.asarray(line.weights)
    law = af.simple_attention(1.5, 1, af.Sparsemax())
    expected = by_hand(2.0, 1.5 * y @ y.T, np.ones((30, 30), bool), w)
    np.testing.assert_allclose(law.at(line)(line.points), expected @ y, atol=1e-11)
    assert line.rate(law.at(line)).shape == (30,)
    mu = af.Grid.from_density(lambda x, s: jnp.exp(-((x[:, 0] - s) ** 2) / 2) / np.sqrt(2 * np.pi), [af.Order(4), af.Interval(-5, 6, 20)])
    law = af.simple_attention(1.5, 1, af.Sparsemax(1.5), mask=af.Causal())
    matrix, tau = law.weights(mu.points, mu), np.asarray(mu.sequence)
    share = np.clip((tau[:, None] - tau[None]) * 4 + 0.5, 0, 1)
    y, w = np.asarray(mu.points)[:, 0], np.asarray(mu.weights)
    for i in (7, 45, 70):
        seen = share[i] > 0
        np.testing.assert_allclose(matrix[i, seen], entmax(1.5, 1.5 * y[i] * y[seen], (share[i] * w)[seen]), atol=1e-11)
    np.testing.assert_allclose(law.at(mu)(mu.points, mu.sequence), matrix @ mu.points, atol=1e-11)


@pytest.mark.parametrize(("alpha", "sums"), [(2.0, None), (1.5, None), (1.5, af.Streamed(4, 3))])
def test_derivatives_in_tokens_logit_weights_and_slope(rng, alpha, sums):
    """Of first and second order, along a line without kinks, against finite differences."""
    x, dx, dA = rng.normal(size=(6, 2)), *rng.normal(size=(2, 6, 2))
    w, dw = rng.random(6) + 0.5, rng.normal(size=6)

    @jax.jit
    def loss(h):
        mu = af.Particles(x + h * dx, w + h * dw)
        law = af.Attention(af.dot_product(3 * np.eye(2) + h * dA[:2], np.eye(2)), np.eye(2), af.Sparsemax(alpha), mask=af.ALiBi(0.3 + h))
        return jnp.sum(law.at(mu, sums=sums)(mu.points, mu.sequence) ** 3)

    h, slope = 1e-5, jax.jit(jax.grad(loss))
    mu, law = af.Particles(x, w), af.simple_attention(3.0, 2, af.Sparsemax(alpha), mask=af.ALiBi(0.3))
    assert (np.asarray(law.weights(mu.points, mu))[np.tri(6) > 0] == 0).any()
    np.testing.assert_allclose(slope(0.0), (loss(h) - loss(-h)) / (2 * h), rtol=1e-7)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(loss))(0.0), slope(0.0), rtol=1e-11)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(jax.grad(loss)))(0.0), (slope(h) - slope(-h)) / (2 * h), rtol=1e-6)


def test_single_precision_and_large_logits(rng):
    """float32 keeps its digits; padded keys and keys without mass overflow nothing where alpha is near 1."""
    x = rng.normal(size=(30, 2)).astype(np.float32)
    for alpha in (2.0, 1.02):
        law = af.Attention(af.squared_distance(30 * np.eye(2), 30 * np.eye(2)), np.eye(2), af.Sparsemax(alpha))
        mu, wide = af.Particles(x + np.float32(40)), af.Particles(x.astype(np.float64) + 40)
        queries = jnp.full((3, 2), 43.0, jnp.float32)
        for sums in (None, af.Streamed(7, 7)):
            found = law.at(mu, sums=sums)(queries)
            assert found.dtype == jnp.float32
            np.testing.assert_allclose(found, law.at(wide)(queries.astype(float)), rtol=1e-4)
            assert law.at(mu, sums=sums).report["sparsemax"]["converged"]


def test_many_keys_of_geometric_masses():
    """Few passes where Newton's method has a breakpoint for every key."""
    j = np.arange(60.0)
    mu = af.Particles(np.sqrt(1.9**j)[:, None], 2.0**j)
    report = af.Attention(af.squared_distance([[1.0]], [[1.0]]), [[1.0]], af.Sparsemax()).at(mu).report["sparsemax"]
    assert report["converged"]
    assert 20 < report["iterations"] < 60


def test_runs_and_does_not_compile_again(rng):
    law = af.simple_attention(2.0, 2, af.Sparsemax(1.5))
    path = af.solve(law, af.Particles(rng.normal(size=(10, 2))), t1=0.5, save_at=2)
    assert path.stats["sparsemax"]["converged"]
    assert path.stats["sparsemax"]["error"] < 1e-12
    assert np.isfinite(path.final.points).all()
    traces = []

    @jax.jit
    def speed(law, mu):
        traces.append(1)
        return law.at(mu)(mu.points)

    for beta in (1.0, 2.0):
        speed(af.simple_attention(beta, 2, af.Sparsemax(1.5)), af.Particles(rng.normal(size=(10, 2))))
    assert len(traces) == 1


def test_bad_input():
    for alpha in (1, 0.5, 2.5, -1):
        with pytest.raises(
            ValueError, match=r"alpha must be above 1 and at most 2, got .*; 2 is sparsemax, and the limit 1 is af.Softmax\(\)"
        ):
            af.Sparsemax(alpha)
    with pytest.raises(ValueError, match="alpha must be a number, got 'two'"):
        af.Sparsemax("two")
    with pytest.raises(ValueError, match="alpha must be a number that is fixed in the program"):
        jax.jit(lambda alpha: af.Sparsemax(alpha).alpha)(1.5)
    with pytest.raises(ValueError, match="Sparsemax attention does not keep a Gaussian Gaussian"):
        af.simple_attention(1.0, 2, af.Sparsemax()).at(af.Gaussian([0.0, 0.0], np.eye(2)))
