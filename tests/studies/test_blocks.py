"""Blocks with heads and perceptrons at a small size: that the checks can fail, numbers and movie, and a block without noise."""

import dataclasses

import numpy as np
import pytest

import attnflow as af
from attnflow.studies import blocks


def on_arc(n: int) -> np.ndarray:
    """Tokens in a row, each close to the next, which are not gathered: one cluster, as wide as the row is long."""
    angles = 0.09 * np.arange(n)
    return np.stack([np.cos(angles), np.sin(angles), np.zeros(n)], axis=1)


def test_the_numbers(result):
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
        (lambda r: {"counts": r.counts + 1}, ""),
        (lambda r: {"by_hand": np.stack([r.by_hand[0], r.path.states[0]])}, "clusters"),
        (lambda r: {"path": dataclasses.replace(r.path, states=r.path.states[::-1])}, "clusters"),
        (lambda r: {"by_hand": np.stack([r.by_hand[0], on_arc(len(r.by_hand[0]))])}, "clusters"),
        (lambda r: {"errors": r.errors**2}, "order"),
    ],
)
def test_checks_can_fail(result, change, claim):
    failed = {check.claim for check in blocks.checks(dataclasses.replace(result, **change(result))) if not check.ok}
    assert claim in failed


def test_clusters_of_known_places():
    pair = np.array([[1.0, 0.0, 0.0], [np.cos(0.05), np.sin(0.05), 0.0], [0.0, 0.0, 1.0]])
    assert blocks.components(pair).tolist() == [0, 0, 1]
    assert blocks.alone(pair) == pytest.approx(1 / 3)
    assert blocks.compactness(pair) == pytest.approx(0.05 / (np.pi / 2))
    assert blocks.compactness(on_arc(20)) == pytest.approx(0.09 * 19 / np.pi)


def test_without_noise_a_block_is_simple_attention_through_tanh():
    """Heads are then alike: Q^T K = beta I, V = I, and the perceptron is tanh."""
    spec = blocks.Spec(n=8, heads=2, noise=0.0)
    heads = [blocks.matrices(np.random.default_rng(k), spec) for k in range(2)]
    x = np.random.default_rng(3).normal(size=(8, 3))
    mu = af.Particles(x / np.linalg.norm(x, axis=1, keepdims=True), space=af.Sphere())
    simple = af.simple_attention(spec.beta, 3).at(mu)(mu.points)
    np.testing.assert_allclose(blocks.block(heads).at(mu)(mu.points), np.tanh(simple), rtol=1e-12)
