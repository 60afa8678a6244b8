"""The places where tokens have gathered, and which of them lie on the boundary of their convex hull."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from attnflow.observe.clusters import components

# Beyond this dimension facets are too many to list.
_FACETS = 8
# Beyond this many vertices each is taken as it is.
_CORNERS = 200


class Places(NamedTuple):
    """Means of the tokens that are together, and the place of each token."""

    points: Float[np.ndarray, "k m"]
    labels: Int[np.ndarray, " n"]


class Hull(NamedTuple):
    """Of each place: whether it is a vertex of the convex hull of all, and how deep below the boundary it lies."""

    vertex: Bool[np.ndarray, " k"]
    depth: Float[np.ndarray, " k"]


def places(x: Float[np.ndarray, "n m"], radius: float) -> Places | None:
    """Tokens linked by chains of steps of at most `radius`; `None` if a chain leads farther than `radius` from its middle."""
    labels = components(x, radius)
    points = np.stack([np.bincount(labels, column) for column in x.T], axis=1) / np.bincount(labels)[:, None]
    if np.linalg.norm(x - points[labels], axis=1).max() > radius:
        return None
    return Places(points, labels)


def hull(points: Float[np.ndarray, "k m"], slack: float) -> Hull | None:
    """The hull in the affine space that the points span, up to `slack`; `None` where that has too many dimensions to list its facets."""
    k = len(points)
    centered = points - points.mean(axis=0)
    _, size, axes = np.linalg.svd(centered, full_matrices=False)
    dim = int((size > slack).sum())
    if k == dim + 1 or dim == 0:
        return Hull(np.ones(k, dtype=bool), np.zeros(k))
    x = centered @ axes[:dim].T
    if dim == 1:
        ends = np.isin(np.arange(k), [x[:, 0].argmin(), x[:, 0].argmax()])
        return Hull(ends, np.minimum(x[:, 0] - x[:, 0].min(), x[:, 0].max() - x[:, 0]))
    if dim > _FACETS:
        return None
    from scipy.spatial import ConvexHull

    found = ConvexHull(x)
    return Hull(np.isin(np.arange(k), _corners(x, found.vertices, slack)), np.maximum(-_outside(found.equations, x), 0.0))


def _corners(x: np.ndarray, vertices: np.ndarray, slack: float) -> np.ndarray:
    """The vertices that stand out from the hull of the others by more than `slack`: a point on a face may do so by round-off."""
    from scipy.spatial import ConvexHull, QhullError

    kept = list(vertices) if len(vertices) <= _CORNERS else []
    for vertex in tuple(kept):
        others = [v for v in kept if v != vertex]
        if len(others) <= x.shape[1]:
            break
        try:
            if _outside(ConvexHull(x[others]).equations, x[vertex][None])[0] <= slack:
                kept = others
        except QhullError:  # without it the others are flat
            continue
    return np.array(kept or vertices)


def _outside(facets: Float[np.ndarray, "f e"], x: Float[np.ndarray, "k m"]) -> Float[np.ndarray, " k"]:
    """By how much each point is beyond the facet that it is farthest beyond; negative inside."""
    return (x @ facets[:, :-1].T + facets[:, -1]).max(axis=1)
