"""The study of Lipschitz constants: its checks at a small size, that they can fail, its figure, and bad input."""

import dataclasses

import pytest

from attnflow.studies import lipschitz as study


@pytest.fixture(scope="module")
def result():
    return study.run(study.FAST)


def test_every_check_holds_and_every_claim_has_one(result):
    checks = study.checks(result)
    assert [check for check in checks if not check.ok] == []
    assert {check.claim for check in checks} - {""} == set(study.CLAIMS)
    assert len(study.figure(result).axes) == 3
    assert study.measured(result)


def test_every_claim_can_fail(result):
    wrong = dataclasses.replace(result, leader=result.leader**1.2, poles=result.poles**0.9, random=20 * result.random, difference=0.1)
    assert {check.claim for check in study.checks(wrong) if not check.ok} == {"", *study.CLAIMS}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"lengths": (4, 4, 8)}, "lengths must be at least three different"),
        ({"radii": (0.0, 1.0, 2.0)}, "radii must be at least three different positive"),
        ({"radius": 2.0}, "radius.2 / 4 must be at least 6"),
        ({"draws": 0}, "draws and dim must be at least 1"),
    ],
)
def test_bad_input(bad, message):
    with pytest.raises(ValueError, match=message):
        study.Spec(**bad)
