"""Which theorem applies: each condition can fail alone."""

import types

import numpy as np
import pytest

import attnflow as af

EYE = np.eye(2)
TURN = np.array([[0.0, -1.0], [1.0, 0.0]])


def with_eigenvalues(*values):
    vectors = np.array([[1.0, 0.2, 0.4], [0.1, 1.0, 0.4], [0.3, 0.0, 1.0]])[: len(values), : len(values)]
    return vectors @ np.diag(np.array(values, dtype=float)) @ np.linalg.inv(vectors)


@pytest.mark.parametrize(
    ("Q", "K", "V", "shape"),
    [
        (EYE, EYE, EYE, "polytope"),
        (EYE, EYE, 3 * EYE, "polytope"),
        (TURN, TURN, EYE, "polytope"),  # K^T Q = I
        ([[2.0, 1.0], [0.0, 1.0]], EYE, EYE, "none"),  # not symmetric
        (np.diag([1.0, 0.0]), EYE, EYE, "none"),  # not definite
        (EYE, EYE, with_eigenvalues(1, 0.5), "hyperplanes"),
        (EYE, EYE, with_eigenvalues(1, -0.9), "hyperplanes"),
        (EYE, -EYE, with_eigenvalues(1, 0.5), "none"),
        (EYE, EYE, with_eigenvalues(-1, 0.5), "none"),
        (EYE, EYE, with_eigenvalues(1, -1), "none"),
        (EYE, EYE, TURN, "none"),
        (EYE, EYE, [[1.0, 1.0], [0.0, 1.0]], "none"),
        (np.eye(3), np.eye(3), with_eigenvalues(1, 1, -0.5), "polytope x subspace"),
        (np.diag([1.0, 1, -1]), np.eye(3), with_eigenvalues(1, 1, -0.5), "none"),
        (EYE, EYE, -EYE, "divergence"),
        (EYE, -EYE, -EYE, "none"),
        (EYE, EYE, 0 * EYE, "none"),
        ([[2.0]], [[1.0]], [[0.5]], "polytope"),
        ([[2.0]], [[-1.0]], [[0.5]], "none"),
    ],
)
def test_the_theorem_that_applies(Q, K, V, shape):
    found = af.predict_limit(Q, K, V)
    assert found.shape == shape
    assert found.boolean == (shape == "polytope" and len(V) == 1)
    assert str(found).startswith(f"{shape}: ")


def test_a_simple_eigenvalue_only_looks_along_its_eigenvector():
    """K^T Q is indefinite, but <Q f, K f> > 0 for f = (1, 0)."""
    found = af.predict_limit(np.diag([1.0, -5.0]), EYE, np.diag([1.0, 0.5]))
    assert (found.shape, found.at_most, found.rank, found.eigenvalue) == ("hyperplanes", 3, 1, pytest.approx(1))
    assert af.predict_limit(np.diag([-1.0, 5.0]), EYE, np.diag([1.0, 0.5])).shape == "none"
    assert "<Q f, K f> = -1 is not positive" in af.predict_limit(np.diag([-1.0, 5.0]), EYE, np.diag([1.0, 0.5])).statement


def test_agreement():
    planes = af.predict_limit(EYE, EYE, np.diag([1.0, 0.5]))

    def verdict(shape, count=None):
        return types.SimpleNamespace(shape=shape, count=count)

    assert planes.agrees(verdict("hyperplanes", 3))
    assert planes.agrees(verdict("point", 1))
    assert not planes.agrees(verdict("hyperplanes", 4))
    assert not planes.agrees(verdict("undecided"))
    assert not af.predict_limit(EYE, EYE, -EYE).agrees(verdict("point", 1))
    with pytest.raises(ValueError, match="no theorem applies, so that no verdict can agree: the largest eigenvalues of V"):
        af.predict_limit(EYE, EYE, TURN).agrees(verdict("point", 1))


def test_raw_tokens_decay_like_the_root_of_time():
    """V = -1: two tokens at +-x have `x' = -x tanh(x^2)`, so that x^2 ~ 1/(2t)."""
    law = af.Attention(af.dot_product([[1.0]], [[1.0]]), [[-1.0]])
    path = af.solve(law, af.Particles([[1.0], [-1.0]]), 2000.0, save_at=np.array([0.0, 1000.0, 2000.0]))
    x = np.asarray(path.states)[1:, 0, 0]
    np.testing.assert_allclose(2 * x**2 * np.array([1000.0, 2000.0]), 1, rtol=2e-3)
    assert af.predict_limit([[1.0]], [[1.0]], [[-1.0]]).shape == "divergence"


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"V must be square \[d, d\], got \[2, 3\]"):
        af.predict_limit(EYE, EYE, np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"Q and K must be \[p, 3\] for V on R\^3, got \[2, 2\] and \[2, 2\]"):
        af.predict_limit(EYE, EYE, np.eye(3))
    with pytest.raises(ValueError, match="Q must be finite"):
        af.predict_limit([[np.nan, 0.0]], [[1.0, 0.0]], EYE)
