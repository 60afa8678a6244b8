"""Cells that are regular, by slices, against the same cells by lists."""

import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af
from attnflow.measures.grid.links import Rows, listed
from attnflow.measures.grid.mesh import mesh


def lines_of(shape, moving, circle):
    """Behind, left, right and ahead of each face, cell by cell."""
    found = []
    for a in moving:
        n = shape[a]
        for face in range(n + 1):
            for rest in np.ndindex(*(shape[:a] + shape[a + 1 :])):
                along = [face - 2 + i for i in range(4)]
                along = [i % n for i in along] if circle else [min(max(i, 0), n - 1) for i in along]
                found.append([np.ravel_multi_index((*rest[:a], i, *rest[a:]), shape) for i in along])
    return np.array(found)


@pytest.mark.parametrize(
    ("shape", "moving", "circle"), [((7,), (0,), True), ((6,), (0,), False), ((3, 5), (0, 1), False), ((4, 3), (1,), False)]
)
@pytest.mark.cases
def test_slices_find_the_cells_that_lists_name(shape, moving, circle, rng):
    rows, lines = Rows(shape, moving, circle), lines_of(shape, moving, circle)
    values = jnp.asarray(rng.normal(size=(int(np.prod(shape)), 2)))
    for found, place in zip(rows.around(values), lines.T, strict=True):
        np.testing.assert_array_equal(found, values[place])
    # Faces in walls, and the face of a circle that is there twice, give nothing when listed: leave them out of both.
    inner = lines[:, 1] != lines[:, 2]
    if circle:
        inner[-1] = False
    left, right = rng.normal(size=(2, len(lines))) * inner
    if circle:
        left[-1], right[-1] = left[0], right[0]
    expected = listed(lines[inner], len(values)).collect(jnp.asarray(left[inner]), jnp.asarray(right[inner]))
    np.testing.assert_allclose(rows.collect(jnp.asarray(left), jnp.asarray(right)), expected, atol=1e-15)


@pytest.mark.parametrize("axes", [[af.Interval(-1, 2, 5), af.Interval(0, 1, 4)], [af.Zonal(4, 9)], [af.Order(3), af.Interval(0, 1, 6)]])
@pytest.mark.cases
def test_no_face_in_a_wall_has_an_area(axes):
    cells = mesh(axes)
    left, right = cells.links.sides(jnp.arange(float(len(cells.points))))
    np.testing.assert_array_equal(cells.areas == 0, left == right)


def test_few_and_many_coordinates_give_the_same_products(rng):
    from attnflow.numerics.rows import dot, times

    for d in (1, 2, 4, 5, 9):
        x, y, matrix = rng.normal(size=(6, d)), rng.normal(size=(6, d)), rng.normal(size=(3, d))
        np.testing.assert_allclose(dot(jnp.asarray(x), jnp.asarray(y)), np.einsum("ij,ij->i", x, y), atol=1e-14)
        np.testing.assert_allclose(times(jnp.asarray(x), jnp.asarray(matrix)), x @ matrix.T, atol=1e-14)
