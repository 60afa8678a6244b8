"""Where a path ends, with the evidence: a point, clusters, a polytope, hyperplanes, a low-rank Gaussian, or nowhere."""

import dataclasses
import functools
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from attnflow import _check as check
from attnflow.flow.path import Path
from attnflow.measures import Gaussian, Particles
from attnflow.numerics.arrays import floats, known, positive, square
from attnflow.numerics.dominant import dominant
from attnflow.observe.places import hull, places

Shape = Literal[
    "point", "clusters", "polytope", "hyperplanes", "polytope x subspace", "low-rank Gaussian", "divergence", "blow-up", "undecided"
]
# The part of the run at its end over which it must rest.
_WINDOW = 0.1


@dataclasses.dataclass(frozen=True, eq=False)
class Verdict:
    r"""The shape that a path tends to, and why.

    - `reason`: the evidence in words.
    - `tolerance`: lengths below this part of the size of the cloud count as zero.
    - `moved`: how far any token was, in the last tenth of the run, from where it ended, as a part of the size of the cloud. For hyperplanes
      and products it is measured in the coordinates that settle.
    - `count`: of clusters, vertices or hyperplanes; for a divergence, of tokens that went further than any began.
    - `vertices`: of the polytope, `[v, m]`; for a product in orthonormal coordinates of its subspace.
    - `values`: the coordinates of the hyperplanes, increasing.
    - `labels`: to which cluster, place or hyperplane each token with mass went.
    - `rank`: of the limit covariance of a Gaussian, or the dimension of the subspace that the polytope of a product lies in.
    - `growth`: $\frac{d}{dt} \log R$ at the end, $R$ the radius, of a divergence.
    """

    shape: Shape
    reason: str
    tolerance: float
    moved: float | None = None
    count: int | None = None
    vertices: Float[np.ndarray, "v m"] | None = None
    values: Float[np.ndarray, " h"] | None = None
    labels: Int[np.ndarray, " n"] | None = None
    rank: int | None = None
    growth: float | None = None

    def __str__(self) -> str:
        moved = "" if self.moved is None else f"; moved {self.moved:.1e} of the size at the end"
        return f"{self.shape}: {self.reason}{moved} (tolerance {self.tolerance:g})"


def limit_shape(path: Path, value: Any = None, direction: Any = None, tolerance: Any = 1e-3) -> Verdict:
    r"""What a path of `Particles` or of a `Gaussian` tends to, judged by where it is at the end and whether it rests there.

    **Arguments:**

    - `value`: $V$ of the law, for a path of the frame `af.rescaled(law)` in $\mathbb{R}^d$. If its largest eigenvalue is positive and $V$
      is a multiple of the identity on the eigenvectors of it, only the coordinates along these must retract, that is the products with
      *left* eigenvectors: hyperplanes for a simple eigenvalue, polytope × subspace for a multiple one (arXiv:2305.05465).
    - `direction`: instead, the covector `[d]` whose products with tokens are the coordinate across the hyperplanes.
    - `tolerance`: lengths below this part of the size of the cloud, the largest it had, are zero.

    At rest means: within a tenth of the tolerance over the last tenth of the run, and at most half as fast as in the tenth before, so that
    what is left is no more than what was seen (tokens that creep like a power of $t$ are not at rest). A polytope has all places on the
    boundary of their convex hull, or at 0. What moves on is undecided, unless it has grown by 1 / `tolerance` and goes on growing. Rest
    cannot tell a limit from a state that lives longer than the run: run longer to see.
    """
    tolerance = float(positive("tolerance", tolerance))
    if not tolerance < 0.5:
        raise ValueError(f"tolerance must be a small part of the size of the cloud, below 0.5, got {tolerance}")
    check.path("path", path, Path, (Particles, Gaussian), "a path of Particles or of a Gaussian")
    if not known(path.states):
        raise ValueError("limit_shape decides on the host, got a path without values; call it outside jit and grad")
    left = _left(path, value, direction)
    if path.status.kind == "blow-up":
        return Verdict("blow-up", f"the solution left every bound at t = {float(path.status.time):.6g}", tolerance)
    if path.status.kind in ("stalled", "budget", "unresolved", "interrupted"):
        return Verdict("undecided", f"the run did not arrive: {path.status}", tolerance)
    return _judged(path.measure, path, _Run.of(path), left, tolerance)


@functools.singledispatch
def _judged(mu: Particles, path: Path, run: "_Run", left: np.ndarray | None, tolerance: float) -> Verdict:
    """By where the tokens are; another picture registers what it is judged by."""
    x = _tokens(path)
    across = None if left is None else _across(x, x @ left.T, run, tolerance)
    if across is not None and across.shape != "undecided":
        return across
    away = _divergence(np.linalg.norm(x, axis=-1), run, tolerance)
    if away is not None:
        return away
    return _gathered(x, run, tolerance, mu.space.flat) if across is None else across


class _Run(NamedTuple):
    """The times of the frames, and the frames at which the last window begins, and the one before it."""

    ts: np.ndarray
    middle: int
    early: int

    @classmethod
    def of(cls, path: Path) -> "_Run":
        ts = np.asarray(path.ts, dtype=float)
        middle = int(np.searchsorted(ts, ts[-1] - _WINDOW * (ts[-1] - ts[0]) * (1 - 1e-9), side="right")) - 1
        if len(ts) < 3 or middle < 1:
            raise ValueError(
                f"limit_shape compares the end of a path with what came before, got {len(ts)} frames, "
                "too few before its last tenth; solve with save_at=100"
            )
        early = int(np.searchsorted(ts, 2 * ts[middle] - ts[-1], side="right")) - 1
        return cls(ts, middle, min(max(early, 0), middle - 1))

    def moved(self, x: np.ndarray) -> tuple[float, bool]:
        """How far tokens `[t, n, m]` were from the end within the last window, and whether they were half as fast as in the one before."""
        last = float(np.linalg.norm(x[self.middle :] - x[-1], axis=-1).max())
        before = float(np.linalg.norm(x[self.early : self.middle + 1] - x[self.middle], axis=-1).max())
        times = self.ts[-1] - self.ts[self.middle], self.ts[self.middle] - self.ts[self.early]
        return last, bool(last / times[0] <= 0.5 * before / times[1])

    def rests(self, x: np.ndarray, size: float, tolerance: float) -> tuple[float, bool]:
        """The motion as a part of the size, and whether that is rest. Near round-off, motion has no trend to look at."""
        moved, slower = self.moved(x)
        moved /= size
        return moved, moved <= 0.1 * tolerance and (slower or moved <= 1e-3 * tolerance)


def _left(path: Path, value: Any, direction: Any) -> np.ndarray | None:
    """The rows that tokens are multiplied with to get the coordinates that settle first, fewer than d."""
    if value is None and direction is None:
        return None
    if value is not None and direction is not None:
        raise ValueError("limit_shape takes value or direction, got both; the direction follows from the value")
    if not isinstance(path.measure, Particles) or not path.measure.space.flat:
        raise ValueError(f"value and direction are for tokens in R^d, got {type(path.measure).__name__} on another space; leave them out")
    if value is not None:
        name, given = "value", square("value", value)
    else:
        assert direction is not None
        name, given = "direction", floats("direction", direction, "d")
    if given.shape[-1] != path.measure.dim:
        raise ValueError(f"{name} must be for tokens in R^{path.measure.dim}, got shape {list(given.shape)}")
    if direction is not None:
        if not np.any(np.asarray(given)):
            raise ValueError("direction must not be zero, got zeros; give a left eigenvector of V")
        return np.asarray(given, dtype=float)[None]
    part = dominant(given)
    return None if isinstance(part, str) or len(part.left) == path.measure.dim else part.left


def _tokens(path: Path) -> Float[np.ndarray, "t n d"]:
    """The tokens with mass at every frame."""
    x = np.asarray(path.states, dtype=float)
    weights = path.measure.weights  # pyright: ignore[reportAttributeAccessIssue]
    return x if weights is None else x[:, np.asarray(weights) > 0]


def _size(x: np.ndarray) -> float:
    """The largest distance of a token from the mean, over all frames; of tokens that were always together, from 0."""
    spread = float(np.linalg.norm(x - x.mean(axis=1, keepdims=True), axis=-1).max())
    far = float(np.linalg.norm(x, axis=-1).max())
    return spread if spread > 1e-12 * far else (far or 1.0)


def _across(x: np.ndarray, u: np.ndarray, run: _Run, tolerance: float) -> Verdict | None:
    """Hyperplanes or a product, if the coordinates u rest at few places; `None` if all of x rests at one point."""
    size, n, m = _size(u), u.shape[1], u.shape[2]
    moved, still = run.rests(u, size, tolerance)
    found = places(u[-1], tolerance * size) if still else None
    if found is None:
        reason = "the tokens rest, but not at separate places" if still else "the tokens still move, or do not slow down"
        return Verdict("undecided", f"in the coordinates of the largest eigenvalue {reason}", tolerance, moved)
    whole = _size(x)
    if run.rests(x, whole, tolerance)[1] and np.linalg.norm(x[-1] - x[-1].mean(axis=0), axis=1).max() <= tolerance * whole:
        return None
    k = len(found.points)
    if m == 1:
        if k == n > 3:
            return Verdict("undecided", f"{n} tokens rest at {n} different values across", tolerance, moved)
        rank = found.points[:, 0].argsort()
        values, labels = found.points[rank, 0], rank.argsort()[found.labels]
        reason = f"{n} tokens at {k} {'value' if k == 1 else 'values'} across: {', '.join(f'{v:.4g}' for v in values)}"
        return Verdict("hyperplanes", reason, tolerance, moved, k, values=values, labels=labels)
    around = hull(found.points, tolerance * size)
    if around is None or not _on_boundary(found.points, around, tolerance * size):
        return Verdict("undecided", f"{n} tokens rest at {k} places along the eigenvectors, not all on a polytope", tolerance, moved)
    vertices = found.points[around.vertex]
    reason = f"{n} tokens over {k} places on the boundary of a polytope with {len(vertices)} vertices in {m} of {x.shape[2]} dimensions"
    return Verdict("polytope x subspace", reason, tolerance, moved, len(vertices), vertices, labels=found.labels, rank=m)


def _divergence(radii: np.ndarray, run: _Run, tolerance: float) -> Verdict | None:
    """Growth by 1 / tolerance, that goes on: at least half as fast at the end as just before. `radii` are `[t, n]`."""
    radius = radii.max(axis=1)
    if not radius[0] > 0 or radius[-1] < radius[0] / tolerance or not radius[[run.early, run.middle]].all():
        return None
    logs, (end, middle, early) = np.log(radius[[-1, run.middle, run.early]]), (-1, run.middle, run.early)
    rate = float(logs[0] - logs[1]) / (run.ts[end] - run.ts[middle])
    before = float(logs[1] - logs[2]) / (run.ts[middle] - run.ts[early])
    if not rate > max(0.0, before / 2):
        return None
    away = int((radii[-1] > radius[0]).sum())
    reason = f"the radius grew {radius[-1] / radius[0]:.3g} times, at the end like e^({rate:.3g} t)"
    reason += f"; {away} of {radii.shape[1]} tokens went away" if radii.shape[1] > 1 else ""
    return Verdict("divergence", reason, tolerance, count=away, growth=float(rate))


def _gathered(x: np.ndarray, run: _Run, tolerance: float, flat: bool) -> Verdict:
    """A point, a polytope or clusters; on a sphere or an ellipsoid, where every cloud lies on the boundary of its hull, no polytope."""
    size, n = _size(x), x.shape[1]
    moved, still = run.rests(x, size, tolerance)
    if not still:
        return Verdict("undecided", "the tokens still move, or do not slow down", tolerance, moved)
    found = places(x[-1], tolerance * size)
    if found is None:
        return Verdict("undecided", "the tokens rest, but not at separate places", tolerance, moved)
    k, labels = len(found.points), found.labels
    if k == 1:
        where = ", ".join(f"{c:.4g}" for c in found.points[0, :6]) + (", ..." if x.shape[2] > 6 else "")
        return Verdict("point", f"{n} tokens at ({where})", tolerance, moved, 1, found.points, labels=labels)
    around = hull(found.points, tolerance * size) if flat else None
    if around is not None and _on_boundary(found.points, around, tolerance * size):
        vertices = found.points[around.vertex]
        reason = f"{n} tokens at {k} places on the boundary of a polytope with {len(vertices)} vertices"
        return Verdict("polytope", reason, tolerance, moved, len(vertices), vertices, labels=labels)
    if k == n:
        return Verdict("undecided", f"{n} tokens rest at {n} places", tolerance, moved)
    return Verdict("clusters", f"{n} tokens in {k} clusters", tolerance, moved, k, labels=labels)


def _on_boundary(points: np.ndarray, around: Any, slack: float) -> bool:
    """Whether every place is on the boundary, or at 0, where the theorems let a token stay."""
    return bool(((around.depth <= slack) | (np.linalg.norm(points, axis=1) <= slack)).all())


@_judged.register
def _gaussian(mu: Gaussian, path: Path, run: _Run, left: None, tolerance: float) -> Verdict:
    """By the mean and the standard deviations along the axes."""
    mean, cov = (np.asarray(leaf, dtype=float) for leaf in jax.tree.leaves(path.states))
    deviations = np.sqrt(np.maximum(np.linalg.eigvalsh(cov), 0))
    verdict = _divergence(np.maximum(np.linalg.norm(mean, axis=1), deviations[:, -1])[:, None], run, tolerance)
    if verdict is not None:
        return verdict
    size = float(deviations.max()) or float(np.linalg.norm(mean, axis=1).max()) or 1.0
    # The covariance, not its root, in which the error of the solver would be that of a square root near 0.
    moved, still = run.rests(np.concatenate([mean[:, None] / size, cov / size**2], axis=1), 1.0, tolerance)
    d, rank = mean.shape[1], int((deviations[-1] > tolerance * size).sum())
    if not still:
        return Verdict("undecided", "the Gaussian still moves, or does not slow down", tolerance, moved, rank=rank)
    if rank == 0:
        return Verdict("point", "the covariance vanishes", tolerance, moved, 1, mean[-1:], rank=0)
    if rank == d:
        return Verdict("undecided", f"the Gaussian rests with a covariance of full rank {d}", tolerance, moved, rank=rank)
    return Verdict("low-rank Gaussian", f"the covariance has rank {rank} of {d}", tolerance, moved, rank=rank)
