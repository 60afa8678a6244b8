"""The study of clustering at a small size: that its checks can fail, its movie, leaders and hulls."""

import dataclasses

import numpy as np
import pytest

from attnflow.studies import clustering as study


def test_every_claim_can_fail(result):
    moved = dataclasses.replace(result.clusters["R^3"], centers=result.clusters["R^3"].centers * np.linspace(0.2, 3.0, 3))
    wrong = dataclasses.replace(result, clusters=result.clusters | {"R^3": moved}, energy=result.energy + 0.1)
    assert {check.claim for check in study.checks(wrong) if not check.ok} == set(study.CLAIMS)


def test_the_movie_is_written(result, tmp_path):
    few = {space: dataclasses.replace(path, ts=path.ts[:3], states=path.states[:3]) for space, path in result.paths.items()}
    assert study.movie(dataclasses.replace(result, paths=few), tmp_path / "tokens.mp4").stat().st_size > 1000


def test_leaders_and_hulls_of_known_places():
    cube = np.array([[x, y, z] for x in (-1.0, 1.0) for y in (-1.0, 1.0) for z in (-1.0, 1.0)])
    assert study.led(cube) == 0
    assert study.led(np.append(cube, [[0.5, 0.5, 0.0]], axis=0)) == pytest.approx(0.5 / 3)
    assert study.outside(np.array([[1.5, 0.0, 0.0]]), cube) == pytest.approx(0.5 / np.sqrt(3))
