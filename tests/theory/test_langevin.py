"""The Langevin pair against the bridge: closed forms for Gaussians by other means, the grid against them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

import attnflow as af

EPS = np.array([0.2, 0.1, 0.05])


def symmetric_kl(P, Q):
    """Of N(0, P) and N(0, Q), from the matrices."""
    return 0.5 * (np.trace(np.linalg.solve(Q, P)) + np.trace(np.linalg.solve(P, Q))) - len(P)


def test_gaussians_from_their_matrices(rng):
    """The pair of an Ornstein-Uhlenbeck process has the covariance `[[S, S E], [E S, S]]`, `E = e^{-S^-1 eps / 2}`; the bridge its plan."""
    a = rng.normal(size=(2, 2))
    S = a @ a.T + 0.5 * np.eye(2)
    g, values, vectors = af.Gaussian([1.0, -1.0], S), *np.linalg.eigh(S)
    for eps, found in zip(EPS, af.theory.langevin_divergence(g, EPS)):
        E = (vectors * np.exp(-eps / (2 * values))) @ vectors.T
        B = np.asarray(af.self_bridge(g, eps).map.matrix)
        pair, plan = (np.block([[S, S @ M.T], [M @ S, S]]) for M in (E, B))
        np.testing.assert_allclose(found, symmetric_kl(pair, plan), rtol=1e-5)


@pytest.mark.long
def test_the_leading_term_of_gaussians():
    """`sum eps^4 / (1152 s^8)`, also from the fourth derivatives of log rho; `tr S^-1` is the Fisher information."""
    s2 = np.array([1.0, 0.5])
    g = af.Gaussian([0.0, 0.0], np.diag(s2))
    expected = (s2**-4.0).sum() / 1152
    np.testing.assert_allclose(af.theory.langevin_divergence(g, [1e-3]) / 1e-12, expected, rtol=5e-3)
    np.testing.assert_allclose(af.theory.langevin_constant(g), expected, rtol=1e-6)
    np.testing.assert_allclose(af.fisher_information(g), (1 / s2).sum(), rtol=1e-6)


@pytest.mark.long
def test_the_grid_against_the_closed_form():
    one = af.GaussianMixture([1.0], [[0.5]], [[[0.7]]])
    exact = af.theory.langevin_divergence(af.Gaussian([0.5], [[0.7]]), EPS)
    np.testing.assert_allclose(af.theory.langevin_divergence(one, EPS, nodes=400), exact, rtol=1e-6)


def test_the_potential_is_that_of_the_root_of_the_density():
    """`V = 1/2 (rho^1/2)'' / rho^1/2`, by central differences."""
    mix, h = af.GaussianMixture([0.3, 0.7], [[-1.0], [1.0]], [[[0.5]], [[1.0]]]), 1e-4
    x = jnp.linspace(-2, 2, 5)[:, None]
    root = [np.sqrt(mix.density(x + shift)) for shift in (-h, 0.0, h)]
    expected = 0.5 * (root[0] - 2 * root[1] + root[2]) / h**2 / root[1]
    np.testing.assert_allclose(jax.jit(af.theory.langevin_potential)(mix, x), expected, atol=1e-6)


@pytest.mark.long
def test_bad_input_is_named(rng):
    mix = af.GaussianMixture([1.0], [[0.0]], [[[1.0]]])
    with pytest.raises(ValueError, match="eps must be positive, got 0"):
        af.theory.langevin_divergence(mix, [0.1, 0.0])
    with pytest.raises(ValueError, match=r"nodes must be at least \d+ for eps = 0\.01 and this measure, got 100"):
        af.theory.langevin_divergence(mix, [0.1, 0.01], nodes=100)
    with pytest.raises(TypeError, match=r"a GaussianMixture on the line, got Particles in R\^1"):
        af.theory.langevin_divergence(mix.sample(4, key=jax.random.key(0)), [0.1])
    with pytest.raises(TypeError, match="needs float64, got float32"):
        af.theory.langevin_divergence(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), mix), [0.1])
    with pytest.raises(ValueError, match="in up to 3 dimensions, got 4"):
        af.theory.langevin_constant(af.Gaussian(np.zeros(4), np.eye(4)))


def test_the_fisher_information_of_a_mixture_against_scipy():
    weights, means, variances = np.array([0.3, 0.7]), np.array([-2.0, 1.0]), np.array([1.0, 2.0])

    def parts(x):
        return weights * np.exp(-((x - means) ** 2) / (2 * variances)) / np.sqrt(2 * np.pi * variances)

    expected, _ = quad(lambda x: (parts(x) @ ((x - means) / variances)) ** 2 / parts(x).sum(), -15, 15, epsabs=1e-12)
    mixture = af.GaussianMixture(weights, means[:, None], variances[:, None, None])
    np.testing.assert_allclose(af.fisher_information(mixture), expected, rtol=1e-9)
