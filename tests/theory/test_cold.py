"""Low temperature: closed forms against quadrature, the first order of the Laplace principle, and projectors."""

import numpy as np
import pytest
from scipy.special import ive

import attnflow as af


@pytest.mark.parametrize("dim", [2, 3, 4, 8, 101])
def test_the_mean_over_the_uniform_law(dim):
    kappa = np.array([1e-3, 0.1, 1.0, 10.0, 100.0, 1e4])
    z = np.zeros((len(kappa), dim))
    z[:, -1] = -kappa
    found = np.asarray(af.theory.uniform_mean(z))
    np.testing.assert_allclose(found[:, -1], -ive(dim / 2, kappa) / ive(dim / 2 - 1, kappa), rtol=1e-12)
    np.testing.assert_array_equal(found[:, :-1], 0)
    np.testing.assert_allclose(af.theory.uniform_mean(np.zeros((2, dim))), 0)


def test_large_dimensions_do_not_underflow():
    """`I_v(k) / I_{v-1}(k)` is about k / (2v) where v is large."""
    z = np.zeros((1, 4000))
    z[0, 0] = 1.0
    assert float(af.theory.uniform_mean(z)[0, 0]) == pytest.approx(1 / 4000, rel=1e-6)


def test_the_mean_by_quadrature_on_the_circle():
    """Also for a tilted law, whose parameter adds."""
    angle = 2 * np.pi * np.arange(400) / 400
    y = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    z, c = np.array([[3.0, -1.0], [0.2, 9.0]]), np.array([0.7, 0.4])
    p = np.exp(y @ (z + c).T)
    np.testing.assert_allclose(af.theory.uniform_mean(z + c), (p / p.sum(axis=0)).T @ y, atol=1e-13)


@pytest.mark.parametrize("dim", [2, 3, 8])
def test_the_laplace_principle_to_first_order(dim):
    """For `e^{<c,y>}`, with score `P_y c`, the rest is of second order."""
    direction, c = np.linspace(1, 2, dim), np.linspace(-1, 1, dim)
    y = direction / np.linalg.norm(direction)
    score = (c - (c @ y) * y)[None]
    rest = []
    for kappa in (50.0, 100.0, 200.0):
        exact = np.asarray(af.theory.uniform_mean((kappa * y + c)[None]))
        rest.append(np.linalg.norm(exact - np.asarray(af.theory.laplace_mean(kappa * y[None], score))))
        assert np.linalg.norm(exact - y[None]) == pytest.approx(
            np.hypot((dim - 1) / 2, np.linalg.norm(score)) / kappa, rel=20 * dim / kappa
        )
    np.testing.assert_allclose(np.log2(np.array(rest[:-1]) / rest[1:]), 2, atol=0.15)


def test_the_spectral_projector(rng):
    S = rng.normal(size=(4, 4))
    for values in ([2.0, 2.0, -3.0, 1.0], [-1.0, -2.0, -2.5, -4.0]):
        M = S @ np.diag(values) @ np.linalg.inv(S)
        P = np.asarray(af.theory.spectral_projector(M))
        expected = S @ np.diag((np.array(values) == max(values)).astype(float)) @ np.linalg.inv(S)
        np.testing.assert_allclose(P, expected, atol=1e-9)
        np.testing.assert_allclose(P @ M, M @ P, atol=1e-9)
        assert np.abs(P - P.T).max() > 0.1


def test_the_limit_of_directions(rng):
    """`e^{sM} x / |e^{sM} x|` for large s, also where all eigenvalues are negative."""
    from scipy.linalg import expm

    S = rng.normal(size=(3, 3))
    M, B = S @ np.diag([-0.5, -0.5, -3.0]) @ np.linalg.inv(S), rng.normal(size=(3, 3))
    x = rng.normal(size=(6, 3))
    late = x @ expm(12 * M).T
    limit = np.asarray(af.theory.cold_limit(x, B, M @ np.linalg.inv(B.T)))
    np.testing.assert_allclose(limit, late / np.linalg.norm(late, axis=1, keepdims=True), atol=1e-9)


def test_bad_input_is_named():
    for make, message in (
        (lambda: af.theory.uniform_mean([[1.0]]), "rows of length 1"),
        (lambda: af.theory.laplace_mean([[0.0, 0.0]]), "rows that are not zero"),
        (lambda: af.theory.spectral_projector([[0.0, -1.0], [1.0, 0.0]]), "must be real, got"),
        (lambda: af.theory.spectral_projector([[1.0, 1.0], [0.0, 1.0]]), "semisimple, got 1 with too few"),
        (lambda: af.theory.cold_limit([[1.0, 0.0]], np.eye(3), np.eye(3)), "one dimension, got 2, 3 and 3"),
        (lambda: af.theory.cold_limit([[0.0, 1.0]], np.eye(2), np.diag([1.0, 0.0])), "another limit"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
