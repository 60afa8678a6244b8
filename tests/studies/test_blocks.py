"""Blocks with heads and perceptrons at a small size: the checks, that they can fail, figure and movie, and bad input."""

import dataclasses

import numpy as np
import pytest

import attnflow as af
from attnflow.studies import blocks


@pytest.fixture(scope="module")
def result() -> blocks.Result:
    return blocks.run(blocks.FAST)


def test_every_check_holds_and_the_figure_is_drawn(result):
    checks = blocks.checks(result)
    assert [check for check in checks if not check.ok] == []
    assert {check.claim for check in checks} == {*blocks.CLAIMS, ""}
    assert len(blocks.figure(result).axes) == 5
    assert blocks.measured(result)["clusters"] >= 1


def test_the_movie(result, tmp_path):
    short = dataclasses.replace(result.path, ts=result.path.ts[:3], states=result.path.states[:3])
    blocks.movie(dataclasses.replace(result, path=short), tmp_path / "blocks.mp4")
    assert (tmp_path / "blocks.mp4").stat().st_size > 0


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        (lambda r: {"by_hand": r.by_hand[::-1]}, ""),
        (lambda r: {"path": dataclasses.replace(r.path, states=r.path.states * (1 + 1e-12))}, "sphere"),
        (lambda r: {"by_hand": 1.001 * r.by_hand}, "sphere"),
        (lambda r: {"counts": r.counts + 1}, "clusters"),
        (lambda r: {"counts": r.counts[::-1]}, "clusters"),
        (lambda r: {"errors": r.errors**2}, "order"),
    ],
)
def test_checks_can_fail(result, change, claim):
    failed = {check.claim for check in blocks.checks(dataclasses.replace(result, **change(result))) if not check.ok}
    assert claim in failed


def test_without_noise_a_block_is_simple_attention_through_tanh():
    """Heads are then alike: Q^T K = beta I, V = I, and the perceptron is tanh."""
    spec = blocks.Spec(n=8, heads=2, noise=0.0)
    heads = [blocks.matrices(np.random.default_rng(k), spec) for k in range(2)]
    x = np.random.default_rng(3).normal(size=(8, 3))
    mu = af.Particles(x / np.linalg.norm(x, axis=1, keepdims=True), space=af.Sphere())
    simple = af.simple_attention(spec.beta, 3).at(mu)(mu.points)
    np.testing.assert_allclose(blocks.block(heads).at(mu)(mu.points), np.tanh(simple), rtol=1e-12)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"n": 2}, "n must be at least 4"),
        ({"noise": 2.0}, "noise from 0 to 1"),
        ({"compared": 30.0}, "compared must lie between 0 and t1"),
        ({"depths": (10, 20)}, "depths must be at least three numbers"),
    ],
)
def test_bad_input(bad, message):
    with pytest.raises(ValueError, match=message):
        blocks.Spec(**bad)


@pytest.mark.slow
def test_full_size():
    assert [check for check in blocks.checks(blocks.run()) if not check.ok] == []
