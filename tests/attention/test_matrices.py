"""Random matrices: their symmetries and spectra."""

import jax
import numpy as np
import pytest

import attnflow as af


@pytest.mark.parametrize("ensemble", [af.matrices.goe, af.matrices.wigner])
@pytest.mark.cases
def test_symmetric_with_the_semicircle_law(ensemble):
    matrix = np.asarray(ensemble(400, key=jax.random.key(1)))
    np.testing.assert_array_equal(matrix, matrix.T)
    values = np.linalg.eigvalsh(matrix)
    # Moments of the semicircle on [-2, 2]: the Catalan numbers.
    assert np.mean(values**2) == pytest.approx(1, abs=0.03)
    assert np.mean(values**4) == pytest.approx(2, abs=0.1)
    assert np.abs(values).max() == pytest.approx(2, abs=0.1)


def test_variances():
    goe = np.asarray(af.matrices.goe(500, key=jax.random.key(2))) * np.sqrt(500)
    assert np.var(np.diag(goe)) == pytest.approx(2, rel=0.2)
    assert np.var(goe[np.triu_indices(500, 1)]) == pytest.approx(1, rel=0.02)
    pair = np.asarray(af.matrices.gaussian(300, 200, key=jax.random.key(3), count=2))
    assert pair.shape == (2, 200, 300)
    assert np.var(pair) * 300 == pytest.approx(1, rel=0.02)
