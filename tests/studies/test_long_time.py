"""The studies of long times: that their checks can fail, and closed forms."""

import dataclasses

import numpy as np
import pytest

from attnflow.studies import centers as centers
from attnflow.studies import context, metastable, studies


def lost(result: metastable.Result) -> metastable.Result:
    late = [dataclasses.replace(s, log_times=s.log_times + 50.0, errors=s.errors + 1, cosines=s.cosines - 0.01) for s in result.stairs]
    return dataclasses.replace(result, stairs=late, spectrum=result.spectrum + 1e-6, energy=result.energy[::-1])


def miscounted(result: centers.Result) -> centers.Result:
    counts = {dim: rows + 3 for dim, rows in result.counts.items()}
    return dataclasses.replace(result, counts=counts, first=1.0, farthest=result.farthest + 1)


# By study: the same with wrong numbers.
WRONG = {
    "metastable": lost,
    "normalization": lambda r: dataclasses.replace(r, gaps={scheme: gap**1.1 for scheme, gap in r.gaps.items()}),
    "context": lambda r: dataclasses.replace(r, exact=1.2 * r.exact),
    "hemisphere": lambda r: dataclasses.replace(r, shares=r.shares - 0.3, order=0.9 * r.order),
    "centers": miscounted,
}


@pytest.fixture(scope="module", params=WRONG)
def study(request):
    return studies()[request.param]


def test_checks_can_fail(request, study, result):
    wrong = WRONG[request.node.callspec.params["study"]](result)
    failed = [check for check in study.checks(wrong) if not check.ok]
    assert len(failed) >= 0.4 * len(study.checks(result))


def test_rows_and_tokens_say_the_same():
    assert context.by_rows(30, 0.3, 4.0) == pytest.approx(context.by_tokens(30, 0.3, 4.0), abs=1e-12)


def test_the_polygon_of_two_is_known():
    # Two opposite tokens: F'(pi) = -e^{-2 beta}, so that the eigenvalues are 0 and e^{-2 beta}.
    spec = metastable.Spec(polygon=2)
    np.testing.assert_allclose(metastable.polygon_spectrum(spec), [np.exp(-2 * spec.beta), 0], atol=1e-15)
