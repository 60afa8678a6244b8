"""Limit geometries at a small size, and that each check can fail."""

import dataclasses

import numpy as np
import pytest

from attnflow.numerics.dominant import dominant
from attnflow.studies import geometries
from attnflow.studies.tools.geometry_drawing import edges

SPEC = dataclasses.replace(geometries.FAST, starts=2)


@pytest.fixture(scope="module")
def result() -> geometries.Result:
    # Sinkhorn attention takes long to compile; its part is made up here, and run at full size.
    return dataclasses.replace(geometries.run(SPEC), frozen=np.array([1.0, 0.9]))


def failed(result):
    return [check.name for check in geometries.checks(result) if not check.ok]


def test_every_theorem_holds(result):
    assert failed(result) == []
    shapes = [g.predicted.shape for g in result.geometries]
    assert shapes == [
        *("polytope", "hyperplanes", "hyperplanes", "divergence"),
        *("polytope", "hyperplanes", "polytope x subspace", "divergence"),
    ]


def test_polytopes_are_made_of_tokens_that_pick_themselves(result):
    """For V = I a vertex v of the limit has `<v, v> >= <v, w>` for every other vertex w: it keeps itself."""
    for g in result.geometries:
        if g.name == "V = I":
            for verdict in g.verdicts:
                gram = verdict.vertices @ verdict.vertices.T
                assert (np.diag(gram)[:, None] >= gram).all()


def test_the_range_across_hyperplanes_only_shrinks(result):
    """The coordinate c across has `c_i' = l (sum_j P_ij c_j - c_i)`."""
    for g in result.geometries:
        if g.predicted.shape == "hyperplanes":
            left = dominant(g.value).left[0]  # pyright: ignore[reportAttributeAccessIssue]
            c, values = g.states @ left, g.verdicts[0].values
            assert np.diff(c.max(axis=1)).max() < 1e-4
            assert np.diff(c.min(axis=1)).min() > -1e-4
            np.testing.assert_allclose([values[0], values[-1]], [c[-1].min(), c[-1].max()], atol=1e-3)


def test_each_check_can_fail(result):
    square = result.geometries[0]
    moving = dataclasses.replace(square.verdicts[0], shape="undecided")
    other = dataclasses.replace(square.verdicts[0], shape="clusters")
    name = "$d = 2$, $V = I$: share of starts that tend to polytope"
    late = dataclasses.replace(square, verdicts=[moving, square.verdicts[1]])
    assert failed(dataclasses.replace(result, geometries=[late])) == [name]
    wrong = dataclasses.replace(square, verdicts=[other, square.verdicts[1]])
    assert failed(dataclasses.replace(result, geometries=[wrong])) == [name, "$d = 2$, $V = I$: verdicts for another shape"]
    still = dataclasses.replace(result.geometries[3], verdicts=[dataclasses.replace(v, growth=0.5) for v in result.geometries[3].verdicts])
    assert failed(dataclasses.replace(result, geometries=[still])) == [r"$d = 2$, $V = -I$: $d \log \lvert z \rvert / dt$ at the end"]
    assert failed(dataclasses.replace(result, swelling=0.1)) == ["$V = I$: largest growth of the hull of $z$"]
    assert failed(dataclasses.replace(result, raw=result.raw_ts**-1.0)) == [r"$V = -I$: power of $t$ in $\lvert x \rvert$"]
    assert failed(dataclasses.replace(result, frozen=np.array([0.3]))) == ["Sinkhorn, $V = I$: places over tokens, on average"]
    blurred = dataclasses.replace(result.line, distances=0 * result.line.distances + 0.5, others=np.array([3, 1]), ranks=np.array([5, 5]))
    assert [name.split(":")[0] for name in failed(dataclasses.replace(result, line=blurred))] == ["line"] * 3


def test_a_hull_that_swells():
    frames = np.array([[[1.0, 0.0], [-1.0, 0.0]], [[1.5, 0.0], [-1.0, 0.0]]])
    assert geometries.swelling(frames) == pytest.approx(0.5, rel=1e-2)
    assert geometries.swelling(frames[::-1]) < 1e-12


def test_edges():
    """A cube has 12 edges, though its facets are made of triangles; a square 4; a segment is one."""
    cube = np.stack(np.meshgrid([-1.0, 1], [-1.0, 1], [-1.0, 1]), axis=-1).reshape(-1, 3)
    assert len(edges(cube)) == 12
    assert len(edges(cube[:4, [0, 2]])) == 4
    assert len(edges(cube[:2])) == 1


def test_the_figures(result, tmp_path):
    for name, page in geometries.figure(result).items():
        page.savefig(tmp_path / f"{name}.png", dpi=40)
    assert geometries.measured(result)["geometries"]["d = 2, V = I"]["rate"] == 1
