r"""Merging the components of a mixture of Gaussians, on the host.

A group of components becomes the Gaussian with its mean and covariance. Mass stays in its group, so that the squared distance $W_2$ from
the mixture is at most the sum over all components of $w_i\, W_2(N_i, N)^2$, $N$ the Gaussian of the group (arXiv:1907.05254).
"""

import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Group(NamedTuple):
    """Some components: their numbers, the weight, mean and covariance of all, and what it costs to merge them."""

    members: tuple[int, ...]
    weight: float
    mean: Float[np.ndarray, " d"]
    cov: Float[np.ndarray, "d d"]
    cost: float


def merged(
    weights: Float[np.ndarray, " k"], means: Float[np.ndarray, "k d"], covs: Float[np.ndarray, "k d d"], tolerance: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The weights, means and covariances of fewer components, at most `tolerance` away: the two groups whose merging adds least are
    merged, as long as the bound allows. Components without mass are left out."""
    roots = np.stack([_root(cov) for cov in covs])

    def group(members: tuple[int, ...]) -> Group:
        some = list(members)
        share = weights[some] / weights[some].sum()
        mean = share @ means[some]
        apart = means[some] - mean[None]
        cov = np.tensordot(share, covs[some], axes=1) + apart.T @ (apart * share[:, None])
        distances = [_bures(covs[i], roots[i], cov) + np.sum((means[i] - mean) ** 2) for i in some]
        return Group(members, float(weights[some].sum()), mean, cov, float(weights[some] @ distances))

    groups = [Group((i,), float(weights[i]), means[i], covs[i], 0.0) for i in np.flatnonzero(weights).tolist()]
    pairs = {(a.members, b.members): group(a.members + b.members) for a, b in itertools.combinations(groups, 2)}
    total = 0.0
    while pairs:
        costs = {group.members: group.cost for group in groups}
        (first, second), both = min(pairs.items(), key=lambda pair: pair[1].cost - costs[pair[0][0]] - costs[pair[0][1]])
        total += both.cost - costs[first] - costs[second]
        if total > tolerance**2:
            break
        groups = [group for group in groups if group.members not in (first, second)]
        pairs = {names: pair for names, pair in pairs.items() if not {first, second} & set(names)}
        pairs |= {(other.members, both.members): group(other.members + both.members) for other in groups}
        groups.append(both)
    groups.sort(key=lambda group: min(group.members))
    return tuple(np.stack(parts) for parts in zip(*((group.weight, group.mean, group.cov) for group in groups)))  # pyright: ignore[reportReturnType]


def _bures(cov: np.ndarray, root: np.ndarray, other: np.ndarray) -> float:
    """The squared distance of two centered Gaussians, `root` that of the first covariance."""
    return max(float(np.trace(cov) + np.trace(other) - 2 * np.trace(_root(root @ other @ root))), 0.0)


def _root(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.maximum(values, 0))[None]) @ vectors.T
