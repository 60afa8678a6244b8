"""Sinkhorn scaling against a matrix that is scaled by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af


def scale_by_hand(logits, weights, half_steps):
    """Seed 001: K^0 = e^C, then rows and columns in turn, against the measure."""
    K = np.exp(logits)
    for step in range(half_steps):
        K = K / (K @ weights)[:, None] if step % 2 == 0 else K / (weights @ K)[None, :]
    return K


@pytest.fixture
def cloud(rng):
    return af.Particles(rng.normal(size=(24, 3)) + 2.0, rng.random(24) + 0.1)


@pytest.mark.parametrize("distance", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.long
def test_limit_against_a_matrix_scaled_by_hand(cloud, rng, symmetric, distance):
    Q = rng.normal(size=(2, 3)) * 0.5
    K = Q if symmetric else rng.normal(size=(2, 3)) * 0.5
    logit = (af.squared_distance if distance else af.dot_product)(Q, K)
    assert logit.psd == symmetric
    law = af.Attention(logit, np.eye(3), af.Sinkhorn())
    report = law.at(cloud).report["sinkhorn"]
    assert report["converged"]
    assert report["error"] <= 1e-10
    matrix, w = law.weights(cloud.points, cloud), np.asarray(cloud.weights)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-13)
    np.testing.assert_allclose(w @ matrix, w, atol=1e-10)
    expected = scale_by_hand(np.asarray(logit(cloud.points, cloud.points)), w, 4000) * w
    np.testing.assert_allclose(matrix, expected, atol=1e-9)
    np.testing.assert_allclose(law.at(cloud)(cloud.points), expected @ cloud.points, atol=1e-8)


@pytest.mark.parametrize("half_steps", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("distance", [False, True])
def test_cut_iteration_against_the_formula_of_the_source(cloud, rng, half_steps, distance):
    Q, K = rng.normal(size=(2, 3)) * 0.7, rng.normal(size=(2, 3)) * 0.7
    logit = (af.squared_distance if distance else af.dot_product)(Q, K)
    law = af.Attention(logit, np.eye(3), af.Sinkhorn(half_steps=half_steps))
    w = np.asarray(cloud.weights)
    expected = scale_by_hand(np.asarray(logit(cloud.points, cloud.points)), w, half_steps)
    np.testing.assert_allclose(law.weights(cloud.points, cloud), expected * w, rtol=1e-9)
    np.testing.assert_allclose(law.at(cloud)(cloud.points), (expected * w) @ cloud.points, rtol=1e-9)
    violation = max(np.abs(expected @ w - 1).max(), np.abs(w @ expected - 1).max())
    np.testing.assert_allclose(law.at(cloud).report["sinkhorn"]["error"], violation, rtol=1e-8)


def test_a_few_half_steps_are_far_from_doubly_stochastic():
    """GT 26: 128 tokens of N(0, I) in R^8, logits b <x, y> / sqrt(8), 5 half-steps; .065, .93, 2.1 for b = 1, 5, 20 in one draw there."""
    found = []
    for seed in range(4):
        mu = af.Particles(np.random.default_rng(seed).normal(size=(128, 8)))
        laws = [
            af.Attention(af.dot_product(np.eye(8), np.eye(8), np.sqrt(8) / b), np.eye(8), af.Sinkhorn(half_steps=5)) for b in (1, 5, 20)
        ]
        found.append([float(law.at(mu).report["sinkhorn"]["error"]) for law in laws])
        w, logits = np.full(128, 1 / 128), 5 * np.asarray(mu.points @ mu.points.T) / np.sqrt(8)
        np.testing.assert_allclose(found[-1][1], np.abs(w @ scale_by_hand(logits, w, 5) - 1).max(), rtol=1e-8)
    low, high = np.min(found, axis=0), np.max(found, axis=0)
    assert (low <= [0.065, 0.93, 2.1]).all()
    assert (high >= [0.065, 0.93, 2.1]).all()


def test_one_half_step_is_softmax(cloud, rng):
    logit = af.dot_product(rng.normal(size=(3, 3)), rng.normal(size=(3, 3)))
    one, soft = (af.Attention(logit, np.eye(3), n).at(cloud)(cloud.points) for n in (af.Sinkhorn(half_steps=1), af.Softmax()))
    np.testing.assert_allclose(one, soft, rtol=1e-12)


def test_symmetric_update_halves_the_error_at_any_temperature(rng):
    cloud = af.Particles(rng.normal(size=(200, 2)))
    for temperature in (1.0, 1e-2, 1e-4):
        law = af.Attention(af.dot_product(np.eye(2), np.eye(2), temperature), np.eye(2), af.Sinkhorn())
        report = law.at(cloud).report["sinkhorn"]
        assert report["converged"]
        # log2 of (first error / tolerance) steps, the first error being of the size of the logits.
        assert report["iterations"] <= 40 + 1.5 * np.log2(1 / temperature)


def test_marginals_do_not_depend_on_where_the_cloud_lies(rng):
    points = rng.normal(size=(30, 2))
    law = af.Attention(af.dot_product(np.eye(2), np.eye(2), 0.1), np.eye(2), af.Sinkhorn())
    near, far = (law.at(af.Particles(points + s))(jnp.asarray(points + s)) - s for s in (0.0, 1000.0))
    np.testing.assert_allclose(near, far, atol=1e-8)


def test_off_the_cloud_rows_still_have_mass_one(cloud, rng):
    law = af.Attention(af.dot_product(np.eye(3), np.eye(3)), np.eye(3), af.Sinkhorn())
    x = jnp.asarray(rng.normal(size=(7, 3)))
    weights = law.weights(x, cloud)
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-13)
    np.testing.assert_allclose(law.at(cloud)(x), weights @ cloud.points, atol=1e-12)


@pytest.mark.long
def test_a_token_without_mass_changes_nothing(rng):
    points, weights = rng.normal(size=(10, 2)), rng.random(10)
    law = af.Attention(af.dot_product(np.eye(2), np.array([[1.0, 0.5], [0.0, 1.0]])), np.eye(2), af.Sinkhorn())
    with_ghost = af.Particles(np.vstack([points, [[50.0, -3.0]]]), np.append(weights, 0.0))
    x = jnp.asarray(points)
    np.testing.assert_allclose(law.at(with_ghost)(x), law.at(af.Particles(points, weights))(x), atol=1e-9)


@pytest.mark.long
def test_a_spent_budget_is_visible(cloud):
    law = af.Attention(af.dot_product(np.eye(3), 2 * np.eye(3)[[1, 2, 0]]), np.eye(3), af.Sinkhorn(max_iterations=3))
    report = law.at(cloud).report["sinkhorn"]
    assert not report["converged"]
    assert report["iterations"] == 3
    matrix, w = law.weights(cloud.points, cloud), cloud.weights
    # The error it gives is the one that can be measured on the matrix.
    np.testing.assert_allclose(report["error"], jnp.abs(w @ matrix / w - 1).max(), rtol=1e-6)
    with pytest.warns(UserWarning, match="did not converge everywhere"):
        path = af.solve(law, cloud, t1=0.1, save_at=2)
    assert not path.stats["sinkhorn"]["converged"]
    assert path.stats["sinkhorn"]["error"] > 1e-10


@pytest.mark.long
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("half_steps", [None, 4])
def test_derivatives_against_finite_differences(rng, symmetric, half_steps):
    points, direction = jnp.asarray(rng.normal(size=(12, 2))), jnp.asarray(rng.normal(size=(12, 2)))
    weights = jnp.asarray(rng.random(12) + 0.2)
    Q, dQ = jnp.asarray(rng.normal(size=(2, 2))), jnp.asarray(rng.normal(size=(2, 2)))

    def loss(h):
        q = Q + h * dQ
        logit = af.dot_product(q, q if symmetric else 2 * q @ jnp.array([[0.0, 1.0], [-1.0, 0.3]]))
        law = af.Attention(logit, jnp.eye(2), af.Sinkhorn(tolerance=1e-13, half_steps=half_steps))
        mu = af.Particles(points + h * direction, weights * (1 + h * direction[:, 0]))
        return jnp.sum(jnp.sin(law.at(mu)(mu.points) * jnp.arange(1.0, 3.0)[None]))

    h = 1e-5
    numeric = (loss(h) - loss(-h)) / (2 * h)
    np.testing.assert_allclose(jax.grad(loss)(0.0), numeric, rtol=1e-7)
    np.testing.assert_allclose(jax.jvp(loss, (0.0,), (1.0,))[1], numeric, rtol=1e-7)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="max_iterations must be at least 1, got 0"):
        af.Sinkhorn(max_iterations=0)
    with pytest.raises(ValueError, match="half_steps must be at least 1, got 0"):
        af.Sinkhorn(half_steps=0)
    with pytest.raises(ValueError, match="tolerance must be positive, got 0"):
        af.Sinkhorn(tolerance=0.0)
