"""The study of Lipschitz constants at a small size: that its checks can fail."""

import dataclasses

from attnflow.studies import lipschitz as study


def test_every_claim_can_fail(result):
    wrong = dataclasses.replace(result, leader=result.leader**1.2, poles=result.poles**0.9, random=20 * result.random, difference=0.1)
    assert {check.claim for check in study.checks(wrong) if not check.ok} == {"", *study.CLAIMS}
