"""Verdicts on paths whose limit is known by construction, and on closed forms of the flow."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af
from attnflow.numerics.dominant import dominant
from attnflow.observe.places import hull, places

# Untyped: most fields of a verdict are None for some shape.
judge: Any = af.limit_shape


def path(frames, ts, kind: Any = "reached", weights=None, space=None):
    """A path of tokens through given frames `[t, n, d]`."""
    frames = jnp.asarray(np.asarray(frames, dtype=float))
    measure = af.Particles(frames[-1], weights=weights, space=space)
    return af.Path(jnp.asarray(ts, float), frames, af.Status(kind, float(ts[-1])), {}, measure)


def settling(start, limit, t1=20.0, rate=1.0):
    """Tokens that tend to a limit like `e^{-rate t}`."""
    ts = np.linspace(0, t1, 41)
    start, limit = np.asarray(start, dtype=float), np.asarray(limit, dtype=float)
    return path(limit + np.exp(-rate * ts)[:, None, None] * (start - limit), ts)


SQUARE = np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, 1.0], [1.0, -1.0]])


def test_a_point(rng):
    verdict = judge(settling(rng.normal(size=(12, 3)), np.tile([1.0, 2.0, 3.0], (12, 1))))
    assert (verdict.shape, verdict.count) == ("point", 1)
    np.testing.assert_allclose(verdict.vertices, [[1, 2, 3]], atol=1e-6)
    assert str(verdict).startswith("point: 12 tokens at (1, 2, 3); moved ")


def test_a_polytope_has_vertices_face_points_and_0(rng):
    """Places at the corners, in the middle of a side, and at 0; a place inside elsewhere makes them clusters."""
    limit = np.concatenate([np.tile(SQUARE, (3, 1)), [[0.3, 1.0], [0.0, 0.0]]])
    start = limit + rng.normal(size=limit.shape)
    verdict = judge(settling(start, limit))
    assert (verdict.shape, verdict.count) == ("polytope", 4)
    np.testing.assert_allclose(sorted(map(tuple, verdict.vertices.round(3))), sorted(map(tuple, SQUARE)))
    assert len(set(verdict.labels[[0, 4, 8]])) == 1
    limit[-1] = [0.4, 0.3]
    verdict = judge(settling(start, limit))
    assert (verdict.shape, verdict.count) == ("clusters", 6)


def test_polytopes_that_do_not_fill_space(rng):
    """A square in R^3 and a segment: the boundary is that in the space they span."""
    flat = np.pad(np.tile(SQUARE, (3, 1)), [(0, 0), (0, 1)])
    start = rng.normal(size=flat.shape)
    assert judge(settling(start, flat)).count == 4
    segment = np.where(np.arange(12)[:, None] % 2, [[1.0, 2.0, 3.0]], [[-1.0, 0.0, 0.0]])
    assert (judge(settling(start, segment)).shape, judge(settling(start, segment)).count) == ("polytope", 2)
    segment[0] = [0.5, 1.5, 2.25]  # on the segment, not at its ends
    assert judge(settling(start, segment)).shape == "clusters"


def test_clusters_on_the_sphere_are_no_polytope():
    ts, angle = np.linspace(0, 20, 41), np.repeat([0.0, 2.0, 4.0], 4)
    spread = angle + np.exp(-ts)[:, None] * np.tile([-0.3, -0.1, 0.1, 0.3], 3)
    frames = np.stack([np.cos(spread), np.sin(spread)], axis=-1)
    verdict = judge(path(frames, ts, space=af.Sphere()))
    assert (verdict.shape, verdict.count) == ("clusters", 3)


def test_what_moves_is_undecided(rng):
    start, limit = rng.normal(size=(12, 2)), np.tile(SQUARE, (3, 1))
    for t1 in (2.0, 6.0):
        verdict = judge(settling(start, limit, t1))
        assert verdict.shape == "undecided"
        assert verdict.moved > 1e-4
    # A looser tolerance is a decision of the caller's.
    assert judge(settling(start, limit, 8.0), tolerance=0.1).shape == "polytope"
    # Slow, and getting faster: the start of an escape.
    ts = np.linspace(0, 20, 41)
    leaving = limit + 5e-14 * np.exp(ts)[:, None, None] * start
    verdict = judge(path(leaving, ts))
    assert verdict.shape == "undecided"
    assert verdict.moved < 1e-4
    # Tokens that creep to a point like t^(-1/2) move little and stay apart; a point when they are within the tolerance.
    for t1, shape in ((3e5, "undecided"), (1e10, "point")):
        late = np.linspace(0, t1, 41)
        creeping = start / np.sqrt(1 + 2 * late)[:, None, None]
        verdict = judge(path(creeping, late))
        assert verdict.shape == shape
        assert verdict.moved < 1e-4
    # Going round: at the end where it was a window ago, but not in between.
    phase = 2 * np.pi * ts / 2
    turning = np.stack([limit[:, :1] * np.cos(p) - limit[:, 1:] * np.sin(p) for p in phase])
    assert judge(path(np.concatenate([turning, turning], axis=2), ts)).shape == "undecided"


def test_rest_without_a_shape_is_undecided(rng):
    ts = np.linspace(0, 1, 11)
    cloud = np.concatenate([rng.uniform(-1, 1, size=(30, 2)), SQUARE])
    verdict = judge(path(np.tile(cloud, (11, 1, 1)), ts))
    assert (verdict.shape, verdict.moved) == ("undecided", 0.0)
    assert "34 tokens rest at 34 places" in str(verdict)
    # A continuum: steps shorter than the tolerance that lead far.
    chain = np.stack([np.linspace(0, 1, 3000), np.zeros(3000)], axis=1)
    assert "not at separate places" in judge(path(np.tile(chain, (11, 1, 1)), ts)).reason


def test_hyperplanes_need_the_left_eigenvector(rng):
    """Tokens run off along the second eigenvector; the product with the left one takes the values -2, 0 and 3."""
    vectors = np.array([[1.0, 1.0], [0.5, -1.0]])
    V = vectors @ np.diag([1.0, -0.5]) @ np.linalg.inv(vectors)
    left = np.linalg.inv(vectors)[0]
    ts, values = np.linspace(0, 20, 41), np.repeat([3.0, -2.0, 0.0], 4)
    c = values + np.exp(-ts)[:, None] * rng.normal(size=12)
    y = np.exp(ts / 2)[:, None] * rng.normal(size=12)
    run = path(c[..., None] * vectors[:, 0] + y[..., None] * vectors[:, 1], ts)
    for given in ({"value": V}, {"direction": left}):
        verdict = judge(run, **given)
        assert (verdict.shape, verdict.count) == ("hyperplanes", 3)
        scale = np.linalg.norm(vectors[:, 0]) if "value" in given else 1.0
        np.testing.assert_allclose(verdict.values, np.array([-2.0, 0, 3]) * scale, atol=1e-5)
        np.testing.assert_array_equal(verdict.labels, np.repeat([2, 0, 1], 4))
    # Along the right eigenvector they have no values, and without V they only go away.
    assert judge(run, direction=vectors[:, 0]).shape == "divergence"
    verdict = judge(run)
    assert verdict.shape == "divergence"
    assert verdict.growth == pytest.approx(0.5, rel=1e-3)


def test_polytope_times_subspace(rng):
    vectors = np.array([[1.0, 0.0, 0.4], [0.0, 1.0, 0.4], [0.3, 0.0, 1.0]])
    V = vectors @ np.diag([1.0, 1.0, -0.5]) @ np.linalg.inv(vectors)
    ts, corners = np.linspace(0, 20, 41), np.tile(SQUARE, (3, 1))
    u = corners + np.exp(-ts)[:, None, None] * rng.normal(size=(12, 2))
    y = np.exp(ts / 2)[:, None, None] * rng.normal(size=(12, 1))
    verdict = judge(path(np.concatenate([u, y], axis=2) @ vectors.T, ts), value=V)
    assert (verdict.shape, verdict.count, verdict.rank) == ("polytope x subspace", 4, 2)
    corners[0] = [0.3, 0.2]
    u = corners + np.exp(-ts)[:, None, None] * rng.normal(size=(12, 2))
    slow = path(np.concatenate([u, np.tile(y[:1], (41, 1, 1))], axis=2) @ vectors.T, ts)
    assert "not all on a polytope" in judge(slow, value=V).reason


@pytest.mark.long
def test_closed_forms_of_gaussians():
    """V = I blows up. V = diag(1, 0), A = a I less V x has `s_1' = 2 s_1 (a s_1 - 1)`, `s_2' = 0`: rank one for a < 1. V = -I has
    `S' = -2 S^2`, which creeps."""
    law = af.Attention(af.dot_product(np.eye(2), np.eye(2)), np.eye(2))
    assert judge(af.solve(law, af.Gaussian([0.0, 0.0], np.eye(2)), 1.0)).shape == "blow-up"
    narrowing = af.normalized_update(af.Attention(af.dot_product(0.1 * np.eye(2), np.eye(2)), np.diag([1.0, 0.0])))
    verdict = judge(af.solve(narrowing, af.Gaussian([0.0, 0.0], np.eye(2)), 20.0))
    assert (verdict.shape, verdict.rank) == ("low-rank Gaussian", 1)
    ts = np.linspace(0, 20, 41)
    cov = np.stack([np.diag([1.0, s]) for s in np.exp(-2 * ts)])

    def gaussian(mean, cov):
        return af.Path(
            jnp.asarray(ts), (jnp.asarray(mean), jnp.asarray(cov)), af.Status("reached", 20.0), {}, af.Gaussian([0, 0], np.eye(2))
        )

    still = np.zeros((41, 2))
    verdict = judge(gaussian(still, cov))
    assert (verdict.shape, verdict.rank) == ("low-rank Gaussian", 1)
    assert judge(gaussian(still, cov * np.exp(-2 * ts)[:, None, None])).shape == "point"
    assert judge(gaussian(still, np.tile(np.eye(2), (41, 1, 1)))).shape == "undecided"
    assert judge(gaussian(still, np.eye(2)[None] / (1 + 2 * ts)[:, None, None])).shape == "undecided"
    verdict = judge(gaussian(still, cov * np.exp(2 * ts)[:, None, None]))
    assert (verdict.shape, round(verdict.growth, 6)) == ("divergence", 1.0)


def test_tokens_without_mass_do_not_count(rng):
    run = settling(rng.normal(size=(5, 2)), [[1.0, 1.0]] * 4 + [[7.0, 0.0]])
    assert judge(run).shape == "polytope"
    assert judge(path(run.states, run.ts, weights=[1.0, 1, 1, 1, 0])).shape == "point"


def test_a_run_that_did_not_arrive_is_undecided(rng):
    run = settling(rng.normal(size=(5, 2)), np.ones((5, 2)))
    assert judge(path(run.states, run.ts, "budget")).shape == "undecided"
    assert judge(path(run.states, run.ts, "steady")).shape == "point"


def test_places_of_many_tokens(rng):
    """A cluster of 20000 tokens has 2e8 pairs."""
    x = np.repeat(SQUARE, 20_000, axis=0) + 1e-5 * rng.uniform(-1, 1, size=(80_000, 2))
    found = places(x, 1e-3)
    assert found is not None
    assert len(found.points) == 4
    np.testing.assert_array_equal(np.bincount(found.labels), 20_000)


def test_hull_depth():
    """Of a point in a square: the distance to the nearest side. A simplex has vertices only, in any dimension."""
    found = hull(np.concatenate([SQUARE, [[0.5, 0.2]]]), 1e-9)
    assert found is not None
    np.testing.assert_array_equal(found.vertex, [True] * 4 + [False])
    np.testing.assert_allclose(found.depth, [0, 0, 0, 0, 0.5], atol=1e-12)
    simplex = hull(np.eye(30), 1e-9)
    assert simplex is not None
    assert simplex.vertex.all()
    assert hull(np.concatenate([np.eye(30), -np.eye(30)]), 1e-9) is None


def test_the_dominant_part(rng):
    vectors = rng.normal(size=(4, 4))
    found = dominant(vectors @ np.diag([2.0, 2.0, -1.0, 0.5]) @ np.linalg.inv(vectors))
    assert not isinstance(found, str)
    assert found.value == pytest.approx(2)
    np.testing.assert_allclose(found.left @ found.right, np.eye(2), atol=1e-10)
    np.testing.assert_allclose(found.left @ vectors[:, 2:], 0, atol=1e-6)
    assert dominant([[1.0, 1.0], [0.0, 1.0]]) == "the largest eigenvalue 1 of V has multiplicity 2 and fewer eigenvectors"
    assert "are not one positive number: they are" in dominant([[0.0, 1.0], [-1.0, 0.0]])  # pyright: ignore[reportOperatorIssue]
    assert "they are 1, -1" in dominant(np.diag([1.0, -1.0]))  # pyright: ignore[reportOperatorIssue]


def test_bad_input_is_named(rng):
    run = settling(rng.normal(size=(5, 2)), np.ones((5, 2)))
    grid = af.Grid.uniform([af.Circle(8)])
    with pytest.raises(TypeError, match="a path of Particles or of a Gaussian, got a path of Grid"):
        judge(af.Path(jnp.ones(3), jnp.ones((3, 8)), af.Status("reached", 1.0), {}, grid))
    with pytest.raises(ValueError, match="tolerance must be positive, got 0"):
        judge(run, tolerance=0.0)
    with pytest.raises(ValueError, match=r"below 0\.5, got 0\.7"):
        judge(run, tolerance=0.7)
    with pytest.raises(ValueError, match="takes value or direction, got both"):
        judge(run, value=np.eye(2), direction=[1.0, 0.0])
    with pytest.raises(ValueError, match=r"direction must be for tokens in R\^2, got shape \[3\]"):
        judge(run, direction=[1.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="direction must not be zero"):
        judge(run, direction=[0.0, 0.0])
    with pytest.raises(ValueError, match="got 2 frames, too few before its last tenth; solve with save_at=100"):
        judge(path(run.states[:2], run.ts[:2]))


def line_law(Q=1.0, V=1.0):
    return af.Attention(af.dot_product([[Q]], [[1.0]]), [[V]])


def test_leaders_on_the_line():
    """Far from 0 every positive token picks the largest, every negative one the smallest; one at 0 weighs all the same."""
    mu = af.Particles(np.array([[-300.0], [-100.0], [0.0], [50.0], [200.0]]))
    found = af.leaders(line_law(), mu)
    np.testing.assert_array_equal(found.picked[[0, 1, 3, 4]], [0, 0, 4, 4])
    np.testing.assert_allclose(found.distance, [0, 0, 0.8, 0, 0], atol=1e-12)
    assert found.undecided() == 1
    assert str(found) == "2 leaders of 5 tokens, rows that are not Boolean to 1e-3: 1"
    # Rows: two like e_1, two like e_5, one uniform: rank 3.
    rank = af.attention_rank(line_law(), mu)
    assert rank.numerical == 3
    gram = np.array([[1, 0, 0.2], [0, 1, 0.2], [0.2, 0.2, 0.2]]) * np.sqrt(np.outer([2, 2, 1], [2, 2, 1]))
    assert rank.stable == pytest.approx(np.trace(gram) / np.linalg.eigvalsh(gram)[-1], rel=1e-10)


def test_the_rank_of_uniform_attention_is_one(key):
    mu = af.Particles(jax.random.normal(key, (7, 1)))
    rank = af.attention_rank(af.MultiHead([line_law(0.0), line_law(1e6)]), mu)
    assert rank.numerical[0] == 1
    assert rank.stable[0] == pytest.approx(1)
    assert af.leaders(line_law(0.0), mu).distance == pytest.approx(6 / 7)


def test_bad_input_of_leaders_is_named():
    with pytest.raises(ValueError, match="for at most 4096 tokens, got 5000; give a part of them"):
        af.leaders(line_law(), af.Particles(np.zeros((5000, 1))))
    with pytest.raises(TypeError, match="mu must be Particles, got Gaussian"):
        af.attention_rank(line_law(), af.Gaussian([0.0], [[1.0]]))
    with pytest.raises(TypeError, match="law must be a law with an attention matrix, Attention or MultiHead, got Rescaled"):
        af.leaders(af.rescaled(line_law()), af.Particles(np.zeros((5, 1))))
