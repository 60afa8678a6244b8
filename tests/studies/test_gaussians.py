"""The study of Gaussians: its checks at a small size, that they can fail, its figure, and bad input."""

import dataclasses

import numpy as np
import pytest

from attnflow.studies import gaussian_formulas as formulas
from attnflow.studies import gaussians as study


@pytest.fixture(scope="module")
def result():
    return study.run(study.FAST)


def test_every_check_holds_and_every_claim_has_one(result):
    checks = study.checks(result)
    assert [check for check in checks if not check.ok] == []
    assert {check.claim for check in checks} - {""} == set(study.CLAIMS)
    assert len(study.figure(result).axes) == 2
    assert study.measured(result)


def test_every_claim_can_fail(result):
    wrong = dataclasses.replace(
        result,
        blow_up=result.blow_up * np.array([1.1, 1.0]),
        l2=result.l2 * np.nan,
        affine={name: gap + 0.1 for name, gap in result.affine.items()},
        formula=result.formula[:, ::-1],
        second=dict.fromkeys(result.second, 0.1),
        spectra={dim: np.ones_like(spectra) for dim, spectra in result.spectra.items()},
    )
    assert {check.claim for check in study.checks(wrong) if not check.ok} - {""} == set(study.CLAIMS)


def test_both_formulas_agree_where_the_covariance_commutes():
    A, S = np.array([[1.0, 0.3], [-0.2, 0.7]]), 2 * np.eye(2)
    np.testing.assert_allclose(formulas.printed(S, A), formulas.stated(S, A), rtol=1e-12)
    assert formulas.off(formulas.printed(np.diag([1.0, 2.0]), A), formulas.stated(np.diag([1.0, 2.0]), A)) > 0.05


def test_one_dimension_is_a_quadratic_equation():
    # w + (a s)^2 w^2 / s = s with S = s: W a = C / a.
    a, s = 1.5, 0.8
    w = (np.sqrt(1 + 4 * a**2 * s**2) - 1) / (2 * a**2 * s)
    np.testing.assert_allclose(formulas.stated(np.array([[s]]), np.array([[a]])), [[w * a * s]], rtol=1e-12)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"draws": 0}, "draws must be at least 1"),
        ({"nodes": 4}, "nodes must be at least 24"),
        ({"dims": (1,)}, "dims must be at least 2"),
        ({"longer": 0.5}, "longer must be above 1"),
    ],
)
def test_bad_input(bad, message):
    with pytest.raises(ValueError, match=message):
        study.Spec(**bad)
