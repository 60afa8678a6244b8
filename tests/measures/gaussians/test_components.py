"""What Gaussians and mixtures have in common: one vocabulary, and a mixture of one component is a Gaussian."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

import attnflow as af

MEAN, COV = np.array([0.5, -1.0]), np.array([[1.0, 0.3], [0.3, 0.6]])
ONE, SAME = af.Gaussian(MEAN, COV), af.GaussianMixture([2.0], MEAN[None], COV[None])


def public(cls: type) -> dict[str, object]:
    return {name: value for name, value in inspect.getmembers(cls) if not name.startswith("_")}


def test_both_offer_the_same_methods_with_the_same_signatures():
    gaussian, mixture = public(af.Gaussian), public(af.GaussianMixture)
    fields = {"mean", "cov", "weights", "means", "covs"}
    # How a Gaussian is made of another measure, and a mixture of fewer components.
    assert gaussian.keys() ^ mixture.keys() <= fields | {"matching", "merged"}
    for name in gaussian.keys() & mixture.keys():
        if inspect.isfunction(gaussian[name]):
            assert list(inspect.signature(gaussian[name]).parameters) == list(inspect.signature(mixture[name]).parameters), name


def test_one_component_says_what_the_gaussian_says(rng, key):
    x = jnp.asarray(rng.normal(size=(5, 2)))
    for name in ("density", "log_density", "score"):
        np.testing.assert_allclose(getattr(ONE, name)(x), getattr(SAME, name)(x), rtol=1e-13)
    np.testing.assert_allclose(ONE.score_map()(x), SAME.score_map()(x), rtol=1e-12)
    # Exact against the trapezoidal rule.
    np.testing.assert_allclose(ONE.entropy(), SAME.entropy(), rtol=1e-12)
    np.testing.assert_allclose(ONE.fisher_information(), SAME.fisher_information(), rtol=1e-12)
    np.testing.assert_allclose(ONE.integrate(lambda y: y**2), SAME.integrate(lambda y: y**2), rtol=1e-13)
    for pair in zip(ONE.components, SAME.components, strict=True):
        np.testing.assert_array_equal(*pair)
    for change in (lambda mu: mu.heat(0.3), lambda mu: mu.each(lambda m, S: (2 * m, 4 * S))):
        one, same = change(ONE), change(SAME)
        np.testing.assert_allclose(one.mean, same.mean, rtol=1e-15)
        np.testing.assert_allclose(one.cov, same.cov, rtol=1e-15)
    for mu in (ONE, SAME):
        cloud = mu.sample(100_000, key=key)
        np.testing.assert_allclose(cloud.mean, MEAN, atol=0.02)
        np.testing.assert_allclose(cloud.cov, COV, atol=0.02)


def test_entropy_and_fisher_information_of_a_mixture_against_scipy():
    """`-integral rho log rho` and `integral rho'^2 / rho` on the line; the derivative of the entropy along the heat flow is I / 2."""
    mu = af.GaussianMixture([0.3, 0.7], [[-1.5], [1.0]], [[[0.2]], [[0.5]]])

    def rho(x):
        parts = [w * np.exp(-((x - m) ** 2) / (2 * v)) / np.sqrt(2 * np.pi * v) for w, m, v in ((0.3, -1.5, 0.2), (0.7, 1.0, 0.5))]
        return sum(parts), -parts[0] * (x + 1.5) / 0.2 - parts[1] * (x - 1.0) / 0.5

    entropy = quad(lambda x: -rho(x)[0] * np.log(rho(x)[0]), -8, 8, epsabs=1e-12, limit=200)[0]
    fisher = quad(lambda x: rho(x)[1] ** 2 / rho(x)[0], -8, 8, epsabs=1e-12, limit=200)[0]
    np.testing.assert_allclose(af.entropy(mu), entropy, rtol=1e-9)
    np.testing.assert_allclose(af.fisher_information(mu), fisher, rtol=1e-9)
    h = 1e-4
    rate = (mu.heat(0.1 + h).entropy() - mu.heat(0.1 - h).entropy()) / (2 * h)
    np.testing.assert_allclose(rate, mu.heat(0.1).fisher_information() / 2, rtol=1e-6)


def test_what_is_integrated_on_a_grid_says_where_that_ends():
    mu = af.GaussianMixture([1.0], np.zeros((1, 4)), np.eye(4)[None])
    with pytest.raises(ValueError, match="in up to 3 dimensions, got 4"):
        mu.fisher_information()
    with pytest.raises(TypeError, match="call quadrature outside jit and grad"):
        jax.eval_shape(SAME.heat(0.1).entropy.__func__, SAME)
