"""The study of Gaussians at a small size: that its checks can fail, and its formulas."""

import dataclasses

import numpy as np

from attnflow.studies import gaussians as study
from attnflow.studies.tools import gaussian_formulas as formulas


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
