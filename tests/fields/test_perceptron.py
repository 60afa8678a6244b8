"""Composed and scheduled fields against SciPy and plain NumPy transcriptions."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import attnflow as af


def softmax_velocity(x, Q, K, V):
    p = np.exp((x @ Q.T) @ (x @ K.T).T)
    return (p / p.sum(1, keepdims=True)) @ x @ V.T


def test_heads_with_perceptrons_against_the_formula_of_the_source(rng):
    """Seed 004: x' = 1/K sum_k Proj MLP^[k](V^[k] sum_j p_ij^[k] x_j), on the sphere."""
    heads, expected = [], 0
    mu = af.samplers.sphere(9, 3, key=jax.random.key(0))
    x = np.asarray(mu.points)
    for _ in range(3):
        Q, K, V = rng.normal(size=(3, 3, 3))
        W, b, U, c = rng.normal(size=(5, 3)), rng.normal(size=5), rng.normal(size=(3, 5)), rng.normal(size=3)
        heads.append(af.Attention(af.dot_product(Q, K), V).then(af.Perceptron(W, U, b, c)))
        v = np.maximum(softmax_velocity(x, Q, K, V) @ W.T + b, 0) @ U.T + c
        expected = expected + (v - (v * x).sum(1, keepdims=True) * x) / 3
    np.testing.assert_allclose(mu.rate(af.MultiHead(heads).at(mu)), expected, atol=1e-12)


@pytest.mark.long
def test_fields_add_in_both_pictures(rng):
    Q, K, V = rng.normal(size=(3, 2, 2)) / 3
    law, other = af.Attention(af.dot_product(Q, K), V), af.Attention(af.squared_distance(Q, K), V, af.Sinkhorn())
    mu, g = af.Particles(rng.normal(size=(6, 2))), af.Gaussian([0.3, 0.1], np.eye(2))
    np.testing.assert_allclose((law + other).at(mu)(mu.points), law.at(mu)(mu.points) + other.at(mu)(mu.points), atol=1e-14)
    np.testing.assert_allclose((law + other).at(g).matrix, law.at(g).matrix + other.at(g).matrix)
    net = af.Perceptron(rng.normal(size=(4, 2)), rng.normal(size=(2, 4)))
    np.testing.assert_allclose((law + net).at(mu)(mu.points), law.at(mu)(mu.points) + net(mu.points), atol=1e-14)


def test_a_perceptron_does_not_keep_a_gaussian():
    net = af.Perceptron(np.eye(2), np.eye(2))
    with pytest.raises(TypeError, match="stays one only under an Affine map"):
        af.solve(af.simple_attention(1.0, 2).then(net), af.Gaussian([0.0, 0.0], np.eye(2)), t1=1.0)


def test_residual_network_against_scipy(rng):
    """x' = tanh(W_t x + b_t) with matrices that turn in time."""
    W0, W1, b0, x0 = rng.normal(size=(2, 2)), rng.normal(size=(2, 2)), rng.normal(size=2), rng.normal(size=(5, 2))
    field = af.Scheduled(lambda t: af.ResNet(W0 + jnp.sin(t) * W1, b0 * jnp.cos(t)))

    def rate(t, flat):
        return np.tanh(flat.reshape(5, 2) @ (W0 + np.sin(t) * W1).T + b0 * np.cos(t)).ravel()

    expected = solve_ivp(rate, (0, 3), x0.ravel(), method="DOP853", rtol=1e-12, atol=1e-12).y[:, -1].reshape(5, 2)
    got = af.solve(field, af.Particles(x0), t1=3.0, rtol=1e-11, atol=1e-12).final.points
    np.testing.assert_allclose(got, expected, atol=1e-9)


@pytest.fixture
def pieces(rng):
    matrices = rng.normal(size=(3, 3, 2, 2))
    return matrices, [af.Attention(af.dot_product(Q, K), V) for Q, K, V in matrices]


def by_scipy(matrices, starts, x0, end):
    """Piece by piece, restarted at each jump."""
    x, bounds = x0, [*starts, end]
    for (Q, K, V), a, b in zip(matrices, bounds[:-1], bounds[1:], strict=True):
        rate = lambda t, f, Q=Q, K=K, V=V: softmax_velocity(f.reshape(x0.shape), Q, K, V).ravel()  # noqa: E731
        x = solve_ivp(rate, (a, b), x.ravel(), method="DOP853", rtol=1e-12, atol=1e-12).y[:, -1].reshape(x0.shape)
    return x


@pytest.mark.parametrize("starts", [(0.0, 0.31, 0.77), (0.0, 0.5, 0.75)])
@pytest.mark.long
def test_a_schedule_with_jumps_is_stepped_to_the_jumps(pieces, rng, starts):
    matrices, fields = pieces
    x0 = rng.normal(size=(6, 2))
    field = af.piecewise(starts, fields)
    # Frames fall on jumps in the second case.
    path = af.solve(field, af.Particles(x0), t1=1.0, save_at=5, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(path.ts, [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(path.final.points, by_scipy(matrices, starts, x0, 1.0), rtol=1e-7, atol=1e-8)
    at_half = by_scipy(matrices[: 1 if starts[1] == 0.5 else 2], starts[: 1 if starts[1] == 0.5 else 2], x0, 0.5)
    np.testing.assert_allclose(path[2].points, at_half, rtol=1e-7, atol=1e-8)
    # Not knowing the jumps costs rejected steps.
    blind = af.solve(af.Scheduled(field.make), af.Particles(x0), t1=1.0, save_at=5, rtol=1e-10, atol=1e-11)
    assert blind.stats["rejected_steps"] > path.stats["rejected_steps"] + 5


@pytest.mark.long
def test_gradient_across_jumps(pieces, rng):
    x0 = jnp.asarray(0.5 * rng.normal(size=(4, 2)))
    field = af.piecewise([0.0, 0.4, 0.8], pieces[1])

    def loss(s):
        return jnp.sum(jnp.sin(af.solve(field, af.Particles(s * x0), t1=1.0, save_at=1, solver=diffrax.Heun(), step=0.1).final.points))

    h = 1e-5
    np.testing.assert_allclose(jax.grad(loss)(1.0), (loss(1 + h) - loss(1 - h)) / (2 * h), rtol=1e-6)


@pytest.mark.long
def test_layers_of_a_schedule_do_not_retrace(pieces, rng):
    traces = []

    class Counting(eqx.Module):
        field: af.Scheduled

        def at(self, mu, t=0.0, sums=None):
            traces.append(1)
            return self.field.at(mu, t, sums)

        @property
        def jumps(self):
            return self.field.jumps

    mu = af.Particles(rng.normal(size=(5, 2)))
    af.solve(Counting(af.piecewise([0.0, 0.3, 0.6], pieces[1])), mu, t1=1.0, save_at=4)
    traces.clear()
    af.solve(Counting(af.piecewise([0.0, 0.2, 0.7], pieces[1][::-1])), mu, t1=1.0, save_at=4)
    assert not traces


@pytest.mark.long
def test_random_layers_are_the_same_for_the_same_key(rng):
    def draw(key):
        return af.Attention(af.dot_product(*af.matrices.gaussian(2, 3, key=key, count=2)), jnp.eye(2))

    mu = af.Particles(rng.normal(size=(5, 2)))
    runs = [
        af.solve(af.resampled(draw, key=jax.random.key(k), width=0.25, layers=4), mu, t1=1.0, save_at=3).final.points for k in (0, 0, 1)
    ]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.allclose(runs[0], runs[2])
    # Layer k is the one drawn from the k-th key.
    field = af.resampled(draw, key=jax.random.key(0), width=0.25, layers=4)
    for k in range(4):
        expected = draw(jax.random.fold_in(jax.random.key(0), k)).at(mu)(mu.points)
        np.testing.assert_allclose(field.at(mu, 0.25 * k)(mu.points), expected)
        np.testing.assert_allclose(field.at(mu, 0.25 * k + 0.24)(mu.points), expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: af.Perceptron(np.ones((4, 2)), np.ones((2, 3))), r"must agree, got \[4, 2\], \[2, 3\], \[4\] and \[2\]"),
        (lambda: af.ResNet(np.ones((3, 2))), r"weight must be square \[d, d\], got \[3, 2\]"),
        (lambda: af.ResNet(np.eye(2), np.ones(3)), r"weight \[d, d\] and bias \[d\] must agree, got \[2, 2\] and \[3\]"),
        (lambda: af.ResNet(np.eye(2)).at(af.Particles(np.eye(3))), "the network acts on R.2, got a measure on R.3"),
        (lambda: af.piecewise([0.0, 1.0], [af.ResNet(np.eye(2))]), "times and fields must be equally many, got 2 and 1"),
        (lambda: af.piecewise([1.0, 0.0], [af.ResNet(np.eye(2))] * 2), r"times must be increasing, got \[1.0, 0.0\]"),
        (lambda: af.piecewise([0.0, 1.0], [af.ResNet(np.eye(2)), af.ResNet(np.eye(3))]), r"got a different one at \[1\]"),
        (lambda: af.resampled(lambda key: af.ResNet(np.eye(2)), key=jax.random.key(0), layers=0), "layers must be at least 1, got 0"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
