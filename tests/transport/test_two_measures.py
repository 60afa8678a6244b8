"""Bridges between two measures against POT, OTT and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af


@pytest.fixture
def clouds(rng):
    weights = rng.uniform(size=70)
    weights[3] = 0.0
    return af.Particles(rng.normal(size=(50, 2)), rng.uniform(size=50) + 0.1), af.Particles(0.5 * rng.normal(size=(70, 2)) + 2.0, weights)


def cost_matrix(mu, nu):
    return 0.5 * ((np.asarray(mu.points)[:, None] - np.asarray(nu.points)[None]) ** 2).sum(axis=2)


@pytest.mark.parametrize("eps", [1.0, 0.02])
@pytest.mark.long
def test_against_pot(clouds, eps):
    import ot

    mu, nu = clouds
    a, b, some = np.asarray(mu.weights), np.asarray(nu.weights), np.asarray(nu.weights) > 0
    found, C = af.bridge(mu, nu, eps, tolerance=1e-11), cost_matrix(mu, nu)
    expected, log = ot.sinkhorn(a, b[some], C[:, some], eps, method="sinkhorn_log", stopThr=1e-12, numItermax=200_000, log=True)
    plan = np.asarray(found.plan())
    np.testing.assert_allclose(plan[:, some], expected, atol=1e-11)
    assert (plan[:, ~some] == 0).all()
    assert found.converged
    np.testing.assert_allclose(plan.sum(axis=0), b, atol=1e-12)
    # Potentials up to the constant that they may trade.
    psi = eps * (log["log_v"] - np.log(b[some]))
    np.testing.assert_allclose(np.ptp(np.asarray(found.potential)[some] - psi), 0, atol=1e-8)
    positive = expected > 0
    product = np.outer(a, b[some])
    cost = (C[:, some] * expected).sum() + eps * (expected[positive] * np.log(expected[positive] / product[positive])).sum()
    np.testing.assert_allclose(found.cost, cost, rtol=1e-9)
    np.testing.assert_allclose(found.barycentric(mu.points), (expected @ np.asarray(nu.points)[some]) / a[:, None], atol=1e-8)
    values = np.sin(np.asarray(nu.points)[:, 0])
    np.testing.assert_allclose(found.expect(values), (expected @ values[some]) / a, atol=1e-8)


@pytest.mark.long
def test_against_ott(clouds):
    """OTT's default and its parallel updates with momentum 1/2, on the bridge of a cloud to itself and between two."""
    pytest.importorskip("ott")
    from ott.geometry import pointcloud
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import acceleration, sinkhorn

    mu, eps = clouds[0], 0.3
    for nu in (mu, af.Particles(clouds[1].points)):
        geometry = pointcloud.PointCloud(mu.points, nu.points, epsilon=eps * 2)  # its cost is |x-y|^2
        problem = linear_problem.LinearProblem(geometry, mu.weights, nu.weights)
        mine = af.self_bridge(mu, eps) if nu is mu else af.bridge(mu, nu, eps)
        ways = [{}, {"parallel_dual_updates": True, "momentum": acceleration.Momentum(value=0.5)}] if nu is mu else [{}]
        for options in ways:
            with jax.numpy_rank_promotion("allow"):
                theirs = sinkhorn.Sinkhorn(threshold=1e-10, max_iterations=20_000, **options)(problem)
                np.testing.assert_allclose(mine.plan(), theirs.matrix, atol=1e-9)
            # Its potentials are for the cost |x-y|^2, and for a plan relative to the counting measure.
            phi = np.asarray(theirs.f) / 2 - eps * np.log(np.asarray(mu.weights))
            np.testing.assert_allclose(np.ptp(phi - np.asarray(mine.potential_at(mu.points))), 0, atol=1e-7)


@pytest.mark.long
def test_gaussians_in_closed_form_against_quadrature():
    g = af.Gaussian([0.0, 1.0], [[1.0, 0.3], [0.3, 0.5]])
    h = af.Gaussian([2.0, 0.0], [[0.4, -0.1], [-0.1, 1.0]])
    eps, x = 0.3, np.array([[0.0, 0.0], [1.0, -0.5]])
    exact, tokens = af.bridge(g, h, eps), af.bridge(af.quadrature(g, 56, reach=7.0), af.quadrature(h, 56, reach=7.0), eps)
    np.testing.assert_allclose(tokens.barycentric(x), exact.barycentric(x), atol=1e-9)
    np.testing.assert_allclose(tokens.cost, exact.cost, rtol=1e-9)
    np.testing.assert_allclose(tokens.potential_at(x), exact.potential_at(x), atol=1e-9)
    joint = exact.plan()
    np.testing.assert_allclose(joint.cov[2:, :2], exact.map.matrix @ g.cov, atol=1e-12)
    assert np.linalg.eigvalsh(joint.cov).min() > 0
    np.testing.assert_allclose(af.self_bridge(g, eps).potential_at(x), af.bridge(g, g, eps).potential_at(x), atol=1e-12)


@pytest.mark.long
def test_mixtures_become_tokens():
    """On the line by quadrature: for one component it is the Gaussian bridge."""
    eps, x = 0.05, np.array([[-0.5], [1.0]])
    one = af.GaussianMixture([1.0], [[0.5]], [[[0.3]]])
    np.testing.assert_allclose(
        af.self_bridge(one, eps).barycentric(x), af.self_bridge(af.Gaussian([0.5], [[0.3]]), eps).barycentric(x), atol=1e-10
    )
    plane = af.GaussianMixture([0.5, 0.5], [[0.0, 0.0], [2.0, 0.0]], [np.eye(2), np.eye(2)])
    with pytest.raises(ValueError, match=r"GaussianMixture in R\^2 is sampled for its bridge, which needs key"):
        af.self_bridge(plane, eps)
    sampled = af.self_bridge(plane, 0.5, key=jax.random.key(0), tolerance=1e-6)
    both = af.bridge(plane, plane, 0.5, key=jax.random.key(0), tolerance=1e-2)
    assert not np.isin(both.measure.points[:, 0], both.target.points[:, 0]).any(), "two draws, not one"
    point = jnp.array([[0.3, -0.4]])
    np.testing.assert_allclose(sampled.score(point), plane.score(point), atol=0.25)


def test_hard_logits_converge(rng):
    """Six tokens with logits of size 100: plain alternation has errors above 1e-6 after 10,000 steps."""
    for scale in (3.0, 6.0):
        logit = af.dot_product(scale * rng.normal(size=(3, 3)), scale * rng.normal(size=(3, 3)))
        report = af.Attention(logit, np.eye(3), af.Sinkhorn()).at(af.Particles(rng.normal(size=(6, 3)))).report["sinkhorn"]
        assert report["converged"]
        assert report["iterations"] < 2000


@pytest.mark.long
def test_starts(clouds):
    mu, nu = clouds
    cold = af.bridge(mu, nu, 0.1)
    warm, given = af.bridge(mu, nu, 0.1, start=cold), af.bridge(mu, nu, 0.1, start=cold.potential)
    assert warm.iterations == given.iterations == 1
    np.testing.assert_allclose(warm.plan(), cold.plan(), atol=1e-10)


@pytest.mark.long
def test_derivatives_against_finite_differences(clouds):
    mu, nu = clouds
    direction = jnp.asarray(np.random.default_rng(1).normal(size=(50, 2)))

    def loss(h):
        found = af.bridge(af.Particles(mu.points + h * direction, mu.weights), nu, 0.5 + h, tolerance=1e-12)
        return jnp.sum(jnp.sin(found.barycentric(mu.points))) + found.cost

    h = 1e-5
    np.testing.assert_allclose(jax.grad(loss)(0.0), (loss(h) - loss(-h)) / (2 * h), rtol=1e-6)


@pytest.mark.long
def test_sinkhorn_divergence(clouds):
    mu, nu = clouds
    g, h = af.Gaussian([0.0, 0.0], np.eye(2)), af.Gaussian([3.0, 1.0], np.diag([0.5, 2.0]))
    np.testing.assert_allclose(af.sinkhorn_divergence(mu, mu, 0.3), 0, atol=1e-9)
    assert float(af.sinkhorn_divergence(mu, nu, 0.3)) > 0
    # For eps -> 0 half of W2^2, for eps -> infinity half of the squared distance of the means.
    np.testing.assert_allclose(af.sinkhorn_divergence(g, h, 1e-4), 0.5 * af.bures(g, h) ** 2, rtol=1e-3)
    np.testing.assert_allclose(af.sinkhorn_divergence(g, h, 1e5), 5.0, rtol=1e-3)
    tokens = af.sinkhorn_divergence(af.quadrature(g, 56, reach=7.0), af.quadrature(h, 56, reach=7.0), 0.5)
    np.testing.assert_allclose(tokens, af.sinkhorn_divergence(g, h, 0.5), rtol=1e-7)


def test_bad_input_is_named(clouds, rng):
    mu, nu = clouds
    with pytest.raises(ValueError, match=r"one space, got R\^2 and R\^1"):
        af.bridge(mu, af.Particles(rng.normal(size=(5, 1))), 0.1)
    with pytest.raises(ValueError, match="start must have one number per token, 70, got 50"):
        af.bridge(mu, nu, 0.1, start=np.zeros(50))
    with pytest.raises(ValueError, match="a score comes from the bridge of a measure to itself"):
        af.bridge(mu, nu, 1.0).score(mu.points)
    with pytest.raises(TypeError, match="got Particles on the Sphere"):
        af.self_bridge(af.samplers.sphere(5, 2, key=jax.random.key(0)), 0.1)
    with pytest.raises(ValueError, match="needs a positive variance to become tokens"):
        af.bridge(af.Gaussian([0.0], [[0.0]]), af.Particles(rng.normal(size=(5, 1))), 0.1)
    with pytest.raises(ValueError, match=r"x must have rows in R\^2"):
        af.self_bridge(mu, 1.0).barycentric(np.zeros((3, 1)))
