"""Clusters of tokens: two tokens are in one cluster if steps of at most a radius lead from one to the other, from token to token."""

import dataclasses
import itertools
import math

import numpy as np
from jaxtyping import Float, Int

from attnflow import _check as check
from attnflow._types import MeasureLike, Scalar
from attnflow.measures import Grid, Particles
from attnflow.numerics.arrays import floats, positive

# Pairs of neighbors that are listed at once; with more, whole cells of tokens are united first. In more coordinates than FLAT a cell has
# too many neighbors, and blocks of rows are compared with all.
_PAIRS, _FLAT, _BLOCK = 2**23, 3, 2**24
# Tokens of a cell that count as few, and how many of a cell are tried.
_FEW, _TRIES = 32, 8
# Up to this many tokens all pairs are compared at once.
_SMALL = 512


@dataclasses.dataclass(frozen=True)
class Clusters:
    """`labels [n]` of the tokens, clusters in order of decreasing mass (-1 for tokens that were left out); `masses [k]`; `sizes [k]` in
    tokens; `centers [k, d]`, the weighted means, brought back to the space."""

    labels: Int[np.ndarray, " n"]
    masses: Float[np.ndarray, " k"]
    sizes: Int[np.ndarray, " k"]
    centers: Float[np.ndarray, "k d"]

    @property
    def count(self) -> int:
        """How many clusters there are."""
        return len(self.masses)

    def __str__(self) -> str:
        shown = ", ".join(f"{mass:.3g}" for mass in self.masses[:8])
        return f"{self.count} clusters of mass {shown}{', ...' if self.count > 8 else ''}"


def clusters(mu: MeasureLike, radius: Scalar, *, floor: Scalar = 0.0) -> Clusters:
    """The clusters of a cloud: the components of the graph that joins tokens at a distance of at most `radius`: along great circles on a
    sphere, along straight lines on other spaces. Exact, and near-linear in $n$ in up to three coordinates however dense the cloud; in more,
    all pairs are compared.

    **Arguments:**

    - `mu`: `Particles`, or a `Grid`, whose cells count as tokens at their middles.
    - `floor`: tokens or cells with less than this fraction of the largest mass are left out; a density has mass everywhere, so give one.
    """
    r = float(positive("radius", radius))
    mu = check.measure("mu", mu, (Particles, Grid), "Particles or a Grid")
    least = float(floats("floor", floor, ""))
    if not 0 <= least < 1:
        raise ValueError(f"floor must be a share of the largest mass, at least 0 and below 1, got {floor}")
    weights = np.exp(np.asarray(mu.log_weights, np.float64))
    kept = np.flatnonzero(weights >= least * weights.max())
    points = np.asarray(mu.particles().points, np.float64)[kept]
    found = components(points, mu.space.chord(r))
    masses = np.bincount(found, weights[kept])
    rank = np.argsort(-masses, kind="stable")
    labels = np.full(len(weights), -1)
    labels[kept] = np.argsort(rank)[found]
    centers = np.stack([np.bincount(found, weights[kept] * x) for x in points.T], axis=1)[rank] / masses[rank, None]
    return Clusters(labels, masses[rank], np.bincount(found)[rank], mu.space.place(centers))


def components(points: Float[np.ndarray, "n d"], reach: float) -> Int[np.ndarray, " n"]:
    """The component of each point in the graph that joins points at a distance of at most `reach`."""
    if len(points) <= _SMALL:
        return _by_labels(points, reach)
    if points.shape[1] > 2 * _FLAT:
        return _by_blocks(points, reach)
    from scipy.spatial import KDTree

    tree = KDTree(points, balanced_tree=False, compact_nodes=False)
    some = points[:: max(len(points) // 1000, 1)]
    share = tree.query_ball_point(some, reach, return_length=True).mean()
    if share * len(points) <= _PAIRS:
        pairs = tree.query_pairs(reach, output_type="ndarray")
        return _united(len(points), pairs[:, 0], pairs[:, 1])
    return _by_cells(points, reach) if points.shape[1] <= _FLAT else _by_blocks(points, reach)


def _by_labels(points: np.ndarray, reach: float) -> np.ndarray:
    """All pairs of few points, without SciPy, whose import takes longer: every point takes the smallest label within its reach."""
    near = sum((x[:, None] - x[None]) ** 2 for x in points.T) <= reach**2
    label = np.arange(len(points))
    while True:
        least = np.where(near, label[None], len(points)).min(axis=1)
        # A label is a point of its component, which may have taken a smaller one by now.
        least = least[least]
        if (least == label).all():
            return np.unique(label, return_inverse=True)[1]
        label = least


def _by_cells(points: np.ndarray, reach: float) -> np.ndarray:
    """Cells whose diagonal is the reach are each in one component; then only pairs of cells that are near and still apart are compared."""
    from scipy.spatial import KDTree

    d = points.shape[1]
    side = reach / math.sqrt(d) * (1 - 1e-12)
    cell = np.floor((points - points.min(axis=0)) / side).astype(np.int64)
    margin = math.ceil(math.sqrt(d))
    stride = np.cumprod([1, *(cell.max(axis=0)[:-1] + 2 * margin + 1)])
    keys, owner = np.unique(cell @ stride, return_inverse=True)
    rank = np.argsort(owner, kind="stable")
    starts = np.searchsorted(owner[rank], np.arange(len(keys) + 1))
    middles = np.stack([np.bincount(owner, x) for x in points.T], axis=1) / np.diff(starts)[:, None]
    label = np.arange(len(keys))
    apart = np.zeros((0, 2), np.int64)
    offsets = [o for o in itertools.product(range(-margin, margin + 1), repeat=d) if o > (0,) * d]
    # The nearest cells first: what they unite need not be compared again.
    for ring in range(1, d * margin + 1):
        pairs = [_cells_at(keys, int(np.dot(o, stride))) for o in offsets if sum(map(abs, o)) == ring]
        apart = np.concatenate([apart, *pairs])
        apart = apart[label[apart[:, 0]] != label[apart[:, 1]]]
        # The tokens of each cell that lie farthest toward the other cell are often within reach of each other.
        sure = _some_pair_within(points, rank, starts, middles, apart, reach)
        label = _united(len(keys), label[apart[sure, 0]], label[apart[sure, 1]])[label]
        apart = apart[~sure]
    apart = apart[label[apart[:, 0]] != label[apart[:, 1]]]
    # Cells with few tokens: all pairs of theirs that are within reach.
    size = np.diff(starts)
    few = np.unique(apart)
    some = np.flatnonzero(np.isin(owner, few[size[few] <= _FEW]))
    close = some[KDTree(points[some]).query_pairs(reach, output_type="ndarray")] if len(some) else np.zeros((0, 2), np.int64)
    label = _united(len(keys), label[owner[close[:, 0]]], label[owner[close[:, 1]]])[label]
    apart = apart[(label[apart[:, 0]] != label[apart[:, 1]]) & (size[apart].max(axis=1) > _FEW)]
    return np.unique(_compared(points, rank, starts, apart, label, reach), return_inverse=True)[1][owner]


def _cells_at(keys: np.ndarray, step: int) -> np.ndarray:
    """The pairs of occupied cells whose keys differ by `step`."""
    other = np.minimum(np.searchsorted(keys, keys + step), len(keys) - 1)
    near = np.flatnonzero(keys[other] == keys + step)
    return np.stack([near, other[near]], axis=1)


def _compared(points: np.ndarray, rank: np.ndarray, starts: np.ndarray, apart: np.ndarray, label: np.ndarray, reach: float) -> np.ndarray:
    """The labels after the tokens of these pairs of cells have been compared, one pair after the other."""
    from scipy.spatial import KDTree

    def tokens(cell: int) -> np.ndarray:
        return points[rank[starts[cell] : starts[cell + 1]]]

    trees: dict[int, KDTree] = {}
    for a, b in apart:
        if label[a] != label[b]:
            small, large = sorted((a, b), key=lambda c: starts[c + 1] - starts[c])
            if large not in trees:
                trees[large] = KDTree(tokens(large))
            gaps, _ = trees[large].query(tokens(small), distance_upper_bound=reach * (1 + 1e-15))
            if gaps.min() <= reach:
                label = np.where(label == label[b], label[a], label)
    return label


def _some_pair_within(
    points: np.ndarray, rank: np.ndarray, starts: np.ndarray, middles: np.ndarray, pairs: np.ndarray, reach: float
) -> np.ndarray:
    """For all pairs of cells at once: whether the tokens farthest toward the other cell, among a few of each, are within reach."""
    direction, best = middles[pairs[:, 1]] - middles[pairs[:, 0]], []
    for cells, sign in ((pairs[:, 0], 1.0), (pairs[:, 1], -1.0)):
        size = starts[cells + 1] - starts[cells]
        top, chosen = np.full(len(cells), -np.inf), rank[starts[cells]]
        for k in range(_TRIES):
            token = rank[starts[cells] + k * size // _TRIES]
            ahead = sign * np.einsum("ij,ij->i", points[token], direction)
            chosen, top = np.where(ahead > top, token, chosen), np.maximum(ahead, top)
        best.append(points[chosen])
    return np.linalg.norm(best[0] - best[1], axis=1) <= reach


def _by_blocks(points: np.ndarray, reach: float) -> np.ndarray:
    """All pairs, a block of rows at a time; components are united after each."""
    n = len(points)
    label, rows = np.arange(n), max(_BLOCK // n, 1)
    for start in range(0, n, rows):
        block = points[start : start + rows]
        # Squares of differences about the block's own middle keep the digits of close pairs.
        center = block.mean(axis=0)
        a, b = block - center, points[start:] - center
        square = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None] - 2 * a @ b.T
        slack = 1e-14 * ((a**2).sum(axis=1).max() + (b**2).sum(axis=1).max())
        i, j = np.nonzero(square <= reach**2 + slack)
        close = square[i, j] > reach**2 - slack
        keep = np.ones(len(i), bool)
        keep[close] = np.linalg.norm(block[i[close]] - points[start + j[close]], axis=1) <= reach
        label = _united(n, label[start + i[keep]], label[start + j[keep]])[label]
    return np.unique(label, return_inverse=True)[1]


def _united(n: int, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The components of n nodes with these edges."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(left), np.int8), (left, right)), shape=(n, n))
    return connected_components(graph, directed=False)[1]
