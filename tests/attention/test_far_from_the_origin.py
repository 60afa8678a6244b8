"""Every law on a cloud far from the origin, against sums in extended precision."""

import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af

# Attention as a function of logits and masses, in NumPy.
KERNELS = {
    "Softmax": lambda logits, w: w * np.exp(logits) / (w * np.exp(logits)).sum(axis=1, keepdims=True),
    "Unnormalized": lambda logits, w: w * np.exp(logits),
    "Sigmoid": lambda logits, w: w / (1 + np.exp(-logits)),
    "Linear": lambda logits, w: w * logits,
    "Hardmax": lambda logits, w: (logits == logits.max(axis=1, keepdims=True)) * 1.0,
}


@pytest.mark.parametrize("name", ["Linear", *(pytest.param(name, marks=pytest.mark.long) for name in KERNELS if name != "Linear")])
def test_squared_distances(rng, name):
    masses = rng.uniform(0.5, 1, size=40)
    law = af.Attention(af.squared_distance(np.eye(2), np.eye(2), 0.5), np.eye(2), getattr(af, name)())
    for shift in (0.0, 1e6, 1e8):
        points = rng.normal(size=(40, 2)) + shift
        x, w = points.astype(np.longdouble), (masses / masses.sum()).astype(np.longdouble)
        expected = KERNELS[name](-((x[:, None] - x[None]) ** 2).sum(axis=2) / 0.5, w[None]) @ x
        mu = af.Particles(points, weights=masses)
        found = np.asarray(law.at(mu)(mu.points))
        np.testing.assert_allclose(found, expected.astype(float), rtol=0, atol=float(2e-14 * np.abs(expected).max()), err_msg=f"{shift}")
        matrix = np.asarray(law.weights(mu.points, mu)) @ points
        np.testing.assert_allclose(matrix, expected.astype(float), rtol=0, atol=float(2e-14 * np.abs(expected).max()))


def test_linear_attention_of_scalar_products(rng):
    points, Q = rng.normal(size=(40, 2)) + 1e6, rng.normal(size=(2, 2))
    x = points.astype(np.longdouble)
    expected = (x @ Q.T.astype(np.longdouble)) @ x.T @ x / 40
    mu = af.Particles(points)
    found = np.asarray(af.Attention(af.dot_product(Q, np.eye(2)), np.eye(2), af.Linear()).at(mu)(mu.points))
    np.testing.assert_allclose(found, expected.astype(float), rtol=0, atol=float(1e-14 * np.abs(expected).max()))


def test_a_density(rng):
    grid = af.Grid.from_density(lambda x: jnp.exp(-0.5 * (x[:, 0] - 1e6) ** 2) / np.sqrt(2 * np.pi), [af.Interval(1e6 - 6, 1e6 + 6, 48)])
    x, w = np.asarray(grid.points, np.longdouble)[:, 0], np.asarray(grid.weights, np.longdouble)
    law = af.Attention(af.squared_distance(np.eye(1), np.eye(1), 2.0), np.eye(1), af.Linear())
    expected = (-0.5 * (x[:, None] - x[None]) ** 2 * w[None]) @ x
    np.testing.assert_allclose(law.at(grid)(grid.points)[:, 0], expected.astype(float), rtol=1e-13)


def test_gaussians(rng):
    # A squared distance does not know where the origin is: the velocity moves with the mean.
    root, u = rng.normal(size=(2, 2)), rng.normal(size=(5, 2))
    law, cov, far = af.Attention(af.squared_distance(np.eye(2), np.eye(2), 0.5), np.eye(2)), root @ root.T, np.array([1e8, -1e8])
    expected = u @ np.linalg.solve(np.eye(2) + 4 * cov, 4 * cov).T
    found = np.asarray(law.at(af.Gaussian(far, cov))(jnp.asarray(u + far)))
    np.testing.assert_allclose(found - far, expected, rtol=0, atol=1e-7)


def test_scores(rng):
    points, eps = rng.normal(size=(30, 2)) + 1e6, 0.3
    x = points.astype(np.longdouble)
    p = np.exp(-((x[:, None] - x[None]) ** 2).sum(axis=2) / (2 * eps))
    expected = ((p / p.sum(axis=1, keepdims=True)) @ (x - x[0]) - (x - x[0])) / eps
    mu = af.Particles(points)
    np.testing.assert_allclose(af.kernel_score(mu, eps)(mu.points), expected.astype(float), rtol=0, atol=1e-13)
    near = af.Particles(np.asarray(points - 1e6))
    np.testing.assert_allclose(af.bridge_score(mu, eps)(mu.points), af.bridge_score(near, eps)(near.points), rtol=0, atol=1e-9)
