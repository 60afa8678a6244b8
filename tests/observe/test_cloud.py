"""The geometry of a cloud, against closed forms, brute force and samples of known dimension."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial import cKDTree

import attnflow as af


def test_pair_cosine_against_all_pairs(rng):
    x, w = rng.normal(size=(7, 5)) + 1.0, rng.uniform(0.5, 2.0, size=7)
    w /= w.sum()
    mu = af.Particles(x, w)
    for centered, points in ((False, x), (True, x - w @ x)):
        unit = points / np.linalg.norm(points, axis=1, keepdims=True)
        off = np.outer(w, w) * (1 - np.eye(7))
        np.testing.assert_allclose(af.pair_cosine(mu, centered=centered), (off * (unit @ unit.T)).sum() / off.sum(), rtol=1e-12)


def test_pair_cosine_of_known_clouds():
    assert float(af.pair_cosine(af.Particles(np.eye(4)))) == pytest.approx(0.0, abs=1e-15)
    # The vertices of a simplex are as far apart as they can be: about their mean every cosine is -1/(n-1).
    assert float(af.pair_cosine(af.Particles(np.eye(4)), centered=True)) == pytest.approx(-1 / 3)
    assert float(af.pair_cosine(af.Particles([[1.0, 0.0], [3.0, 0.0], [0.0, 0.0]]))) == pytest.approx(1 / 3)


def test_rank_one_residual_against_the_best_constant_rows(rng):
    x = rng.normal(size=(6, 3)) + 2.0
    best = np.linalg.norm(x - x.mean(axis=0)) / np.linalg.norm(x)
    np.testing.assert_allclose(af.rank_one_residual(af.Particles(x)), best, rtol=1e-12)
    assert float(af.rank_one_residual(af.Particles(np.ones((3, 2))))) == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_intrinsic_dimension_of_a_flat_patch_in_many_dimensions(rng, dim):
    basis = np.linalg.qr(rng.normal(size=(20, dim)))[0]
    x = rng.uniform(size=(2000, dim)) @ basis.T + 100.0
    # Fluctuations are of size d / sqrt(n), and the edge of the cube lowers the estimate.
    assert float(af.intrinsic_dimension(af.Particles(x))) == pytest.approx(dim, rel=0.12)


def test_neighbors_against_a_tree(rng):
    from attnflow.observe.cloud import nearest

    x = rng.normal(size=(600, 4))
    distances, found = nearest(jnp.asarray(x), 3)
    tree_distances, tree_found = cKDTree(x).query(x, 4)
    np.testing.assert_allclose(distances, tree_distances[:, 1:], rtol=1e-12)
    np.testing.assert_array_equal(found, tree_found[:, 1:])


def test_neighbor_overlap_of_turned_and_of_unrelated_clouds(rng):
    x = rng.normal(size=(200, 4))
    turned = x @ np.linalg.qr(rng.normal(size=(4, 4)))[0]
    assert float(af.neighbor_overlap(af.Particles(x), af.Particles(3 * turned + 1))) == 1.0
    assert float(af.neighbor_overlap(af.Particles(x), af.Particles(rng.normal(size=(200, 4))))) < 0.15


def test_displacement_bounds_the_distance(rng):
    x = rng.normal(size=(30, 3))
    mu, nu = af.Particles(x), af.Particles(rng.permutation(x) + 0.1)
    assert float(af.displacement(mu, mu)) == 0
    assert float(af.displacement(mu, nu)) > float(af.wasserstein2(mu, nu)) == pytest.approx(0.1 * np.sqrt(3), rel=1e-6)


def test_step_sizes():
    states = np.stack([np.ones((2, 2)), 2 * np.ones((2, 2)), 2 * np.ones((2, 2))])
    path, _ = af.models.from_arrays(states)
    np.testing.assert_allclose(af.step_sizes(path), [1.0, 0.0])
    with pytest.raises(ValueError, match="at least two frames"):
        af.step_sizes(path[:1])


def test_free_energy_falls_by_the_square_of_its_gradient():
    """On the circle with noise: dF/dt = - integral |v - sigma^2/2 d log rho|^2 d mu, here from the density at the faces of cells."""
    beta, sigma, cells = 2.0, 0.8, 512
    angles = (np.arange(cells) + 0.5) * 2 * np.pi / cells
    mu = af.Grid.from_density(lambda x: 1 + 0.3 * x[:, 0] + 0.2 * x[:, 1] ** 2, [af.Circle(cells=cells)], normalize=True)
    law = af.simple_attention(beta, 2, normalize=af.Unnormalized())
    path = af.solve(law, mu, 2e-3, noise=sigma, save_at=np.array([0.0, 1e-3, 2e-3]))
    falls = [float(af.free_energy(nu, beta, noise=sigma)) for nu in path]
    assert falls[0] > falls[1] > falls[2]
    middle = path[1]
    tangent = np.stack([-np.sin(angles), np.cos(angles)], axis=1)
    rho = np.asarray(middle.mass) * cells / (2 * np.pi)
    speed = (np.asarray(law.at(middle)(middle.points)) * tangent).sum(axis=1)
    score = np.gradient(np.log(np.concatenate([rho[-1:], rho, rho[:1]])), 2 * np.pi / cells)[1:-1]
    rate = -np.sum(np.asarray(middle.mass) * (speed - sigma**2 / 2 * score) ** 2)
    assert (falls[2] - falls[0]) / 2e-3 == pytest.approx(rate, rel=2e-3)


def test_without_noise_it_is_minus_the_energy(key):
    mu = af.samplers.sphere(20, 3, key=key)
    assert float(af.free_energy(mu, 3.0)) == -float(af.energy(mu, 3.0))


def test_bad_input_is_named(rng):
    mu = af.Particles(rng.normal(size=(4, 2)))
    with pytest.raises(ValueError, match="noise must not be negative, got -1"):
        af.free_energy(mu, 1.0, noise=-1.0)
    with pytest.raises(ValueError, match="more than k = 10 of them, got 4 and 4"):
        af.neighbor_overlap(mu, mu)
    with pytest.raises(ValueError, match="at least 2 tokens"):
        af.pair_cosine(af.Particles(np.ones((1, 2))))
    with pytest.raises(ValueError, match="at least 3 tokens"):
        af.intrinsic_dimension(af.Particles(np.ones((2, 2))))
    with pytest.raises(ValueError, match=r"the same tokens, got \[4, 2\] and \[3, 2\]"):
        af.displacement(mu, af.Particles(np.ones((3, 2))))
