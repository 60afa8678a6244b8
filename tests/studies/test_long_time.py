"""The studies of long times: small, their checks, that these can fail, their figures, and bad input."""

import dataclasses

import numpy as np
import pytest

from attnflow.studies import centres, context, hemisphere, metastable, normalisation

STUDIES = [metastable, normalisation, context, hemisphere, centres]


@pytest.fixture(scope="module", params=STUDIES, ids=lambda study: study.__name__.split(".")[-1])
def done(request):
    return request.param, request.param.run(request.param.FAST)


def test_every_check_holds_and_the_figure_is_drawn(done):
    study, result = done
    assert [check for check in study.checks(result) if not check.ok] == []
    assert len(study.figure(result).axes) >= 2
    assert study.measured(result)


def broken(study, result):
    """The same with wrong numbers."""
    if study is metastable:
        late = [dataclasses.replace(s, log_times=s.log_times + 50.0, errors=s.errors + 1, cosines=s.cosines - 0.01) for s in result.stairs]
        return dataclasses.replace(result, stairs=late, spectrum=result.spectrum + 1e-6, energy=result.energy[::-1])
    if study is normalisation:
        return dataclasses.replace(result, gaps={scheme: gap**1.1 for scheme, gap in result.gaps.items()})
    if study is hemisphere:
        return dataclasses.replace(result, shares=result.shares - 0.3, order=0.9 * result.order)
    if study is context:
        return dataclasses.replace(result, exact=1.2 * result.exact)
    return dataclasses.replace(
        result, counts={dim: rows + 3 for dim, rows in result.counts.items()}, first=1.0, farthest=result.farthest + 1
    )


def test_checks_can_fail(done):
    study, result = done
    failed = [check for check in study.checks(broken(study, result)) if not check.ok]
    assert len(failed) >= 0.4 * len(study.checks(result))


@pytest.mark.parametrize(
    ("study", "bad", "message"),
    [
        (metastable, {"angles": (0.0, 1.0, 1.0)}, "angles must be at least three different"),
        (metastable, {"betas": (5.0,)}, "betas must be at least 50"),
        (normalisation, {"n": 1}, "n must be at least 2"),
        (normalisation, {"short": 50.0}, "short must be from 8 to 16"),
        (context, {"cosine": 1.0}, "cosine must lie between 0 and 1"),
        (context, {"tokens": (1,)}, "tokens must be at least 2"),
        (hemisphere, {"draws": 4}, "draws must be at least 32"),
        (hemisphere, {"moved": (7, 3)}, "moved must be one of"),
        (centres, {"deltas": (4.0,)}, "deltas must lie between 0 and pi"),
        (centres, {"times": (1.0, 2.0)}, "times must rise from 0"),
    ],
)
def test_bad_input(study, bad, message):
    with pytest.raises(ValueError, match=message):
        study.Spec(**bad)


def test_rows_and_tokens_say_the_same():
    assert context.by_rows(30, 0.3, 4.0) == pytest.approx(context.by_tokens(30, 0.3, 4.0), abs=1e-12)


def test_the_polygon_of_two_is_known():
    # Two opposite tokens: F'(pi) = -e^{-2 beta}, so that the eigenvalues are 0 and e^{-2 beta}.
    spec = metastable.Spec(polygon=2)
    np.testing.assert_allclose(metastable.polygon_spectrum(spec), [np.exp(-2 * spec.beta), 0], atol=1e-15)
