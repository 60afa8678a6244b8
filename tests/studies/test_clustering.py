"""The study of clustering: its checks at a small size, that they can fail, its figure and movie, and bad input."""

import dataclasses
import pickle

import numpy as np
import pytest

from attnflow.studies import clustering as study


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
    moved = dataclasses.replace(result.clusters["R^3"], centres=result.clusters["R^3"].centres * np.linspace(0.2, 3.0, 3))
    wrong = dataclasses.replace(result, clusters=result.clusters | {"R^3": moved}, energy=result.energy + 0.1)
    assert {check.claim for check in study.checks(wrong) if not check.ok} == set(study.CLAIMS)


def test_the_movie_is_written(result, tmp_path):
    few = {space: dataclasses.replace(path, ts=path.ts[:3], states=path.states[:3]) for space, path in result.paths.items()}
    assert study.movie(dataclasses.replace(result, paths=few), tmp_path / "tokens.mp4").stat().st_size > 1000


def test_parts_can_be_kept(result):
    again = pickle.loads(pickle.dumps(result.paths["S^2"]))
    np.testing.assert_array_equal(again.states, result.paths["S^2"].states)


def test_leaders_and_hulls_of_known_places():
    cube = np.array([[x, y, z] for x in (-1.0, 1.0) for y in (-1.0, 1.0) for z in (-1.0, 1.0)])
    assert study.led(cube) == 0
    assert study.led(np.append(cube, [[0.5, 0.5, 0.0]], axis=0)) == pytest.approx(0.5 / 3)
    assert study.outside(np.array([[1.5, 0.0, 0.0]]), cube) == pytest.approx(0.5 / np.sqrt(3))


@pytest.mark.parametrize(
    ("bad", "message"),
    [({"tokens": 2}, "tokens must be at least 4"), ({"beta": 0.0}, "beta must be positive"), ({"radius": 0.9}, "radius must lie between")],
)
def test_bad_input(bad, message):
    with pytest.raises(ValueError, match=message):
        study.Spec(**bad)
