"""Bridges and divergences where round-off is all that is left."""

import numpy as np
import pytest
from scipy.special import logsumexp

import attnflow as af


def transport(x, y, eps, steps=4000):
    """Entropic transport between two clouds of equal weights by NumPy: Sinkhorn's iteration on the logarithms."""
    cost = 0.5 * ((x[:, None] - y[None]) ** 2).sum(axis=2)
    psi = np.zeros(len(y))
    for _ in range(steps):
        phi = -eps * (logsumexp((psi[None] - cost) / eps, axis=1) - np.log(len(y)))
        psi = -eps * (logsumexp((phi[:, None] - cost) / eps, axis=0) - np.log(len(x)))
    return phi.mean() + psi.mean()


@pytest.mark.parametrize("dim", [2, pytest.param(5, marks=pytest.mark.long)])
def test_an_exact_answer_takes_few_steps(rng, dim):
    # From the plane on tokens are far apart in units of the temperature: every token keeps its mass.
    x = rng.normal(size=(40, dim))
    bridge = af.self_bridge(af.Particles(x), 1e-7)
    assert bridge.converged
    assert bridge.iterations <= 20
    assert bridge.error <= 1e-8
    np.testing.assert_allclose(bridge.plan(), np.eye(40) / 40, rtol=0, atol=1e-8)
    # Two clusters far apart are two bridges.
    x[:20, 0] += 1e3
    bridge = af.self_bridge(af.Particles(x), 0.5)
    assert bridge.converged
    assert bridge.iterations <= 100
    plan = np.asarray(bridge.plan())
    np.testing.assert_allclose(plan.sum(axis=0), 1 / 40, rtol=1e-8)
    np.testing.assert_allclose(2 * plan[:20, :20], af.self_bridge(af.Particles(x[:20]), 0.5).plan(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("eps", [1e5, pytest.param(1.0, marks=pytest.mark.long), pytest.param(1e-2, marks=pytest.mark.long)])
@pytest.mark.filterwarnings("ignore:the bridge did not converge")
def test_the_divergence_of_a_cloud_from_itself(rng, eps):
    x = rng.normal(size=(40, 2))
    mu, nu = af.Particles(x), af.Particles(x[rng.permutation(40)])
    # At the lowest temperature the iteration between the two is cut short.
    found = float(af.sinkhorn_divergence(mu, nu, eps, max_iterations=300))
    assert abs(found) <= 16 * np.finfo(np.float64).eps * max(eps, 1)


@pytest.mark.long
def test_the_divergence_against_numpy(rng):
    x, y = rng.normal(size=(40, 2)), 0.5 * rng.normal(size=(40, 2)) + 1
    mu, nu = af.Particles(x), af.Particles(y)
    expected = transport(x, y, 0.5) - 0.5 * transport(x, x, 0.5) - 0.5 * transport(y, y, 0.5)
    np.testing.assert_allclose(af.sinkhorn_divergence(mu, nu, 0.5), expected, rtol=1e-11)
    # A loose tolerance enters squared: without that the error would be about a thousandth.
    np.testing.assert_allclose(af.sinkhorn_divergence(mu, nu, 0.5, tolerance=1e-3), expected, rtol=0, atol=3e-5)
    # Hot: half the squared distance of the means, up to a term in 1 / eps.
    apart = 0.5 * ((x.mean(axis=0) - y.mean(axis=0)) ** 2).sum()
    np.testing.assert_allclose(af.sinkhorn_divergence(mu, nu, 1e5), apart, rtol=1e-4)
