r"""Tokens cluster: at the vertices of a polytope in space with $Q = K = V = I$ (arXiv:2305.05465), and on the sphere (arXiv:2312.10794).

In $\mathbb{R}^3$ all tokens run to infinity; in the frame $z = e^{-t} x$ they gather at the vertices of a polytope, as drawn on the poster
of arXiv:2501.18322. The limit is known to lie in the hull of the start, and every place $v$ of it to be its own leader,
$\langle v, w\rangle \le |v|^2$ for all places $w$, because the logits $e^{2t} \langle v, w\rangle$ grow without bound. On $S^2$, under
simple attention, uniform tokens gather in clusters long before these merge. The energy knows their masses $w_k$ and centers $c_k$:
$2\beta e^{-\beta} E = \sum_{k,l} w_k w_l e^{-\beta (1 - \langle c_k, c_l\rangle)}$.
"""

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import jax
import numpy as np
from jaxtyping import Float, Int

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import Checked, Meta, Positive, Seed
from attnflow.studies.tools.data import Of
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

_SPACES: tuple[str, ...] = ("R^3", "S^2")
CLAIMS = {
    "polytope": Claim(
        "With $Q = K = V = I$ the rescaled tokens $z = e^{-t} x$ tend to the vertices of a polytope in the hull of the start.",
        "arXiv:2305.05465",
        "proved",
    ),
    "leaders": Claim(
        r"Every place $v$ of the limit is its own leader: $\langle v, w \rangle \le \lvert v \rvert^2$ for all places $w$.",
        "arXiv:2305.05465",
        "proved",
    ),
    "sphere": Claim(
        "Under simple attention uniform tokens on $S^2$ gather in clusters, fewer than tokens, that live long.",
        "arXiv:2312.10794",
        "numerics",
    ),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """How many tokens, how long."""

    tokens: Annotated[int, Meta(ge=4)] = 40
    r"""how many tokens in $\mathbb{R}^3$, uniform in $[-5, 5]^3$"""
    t1: Positive = 18.0
    r"""the end of time in $\mathbb{R}^3$"""
    on_sphere: Annotated[int, Meta(ge=2)] = 128
    """how many tokens on $S^2$, uniform"""
    beta: Positive = 9.0
    """the inverse temperature there"""
    t2: Positive = 30.0
    """the end of time there"""
    frames: Annotated[int, Meta(ge=40)] = 151
    """how many frames each run has"""
    radius: Annotated[float, Meta(gt=0, lt=0.5)] = 0.05
    """how close tokens of one cluster are, of the size of the cloud"""
    seed: Seed = 0
    """of both starts"""


@dataclasses.dataclass(frozen=True)
class Result:
    """By space the path; of R^3 the verdict; of both the clusters at the end, and how many there are, frame by frame."""

    spec: Spec
    paths: dict[str, af.Path]
    verdict: af.Verdict
    clusters: dict[str, af.Clusters]
    counts: dict[str, Int[np.ndarray, " t"]]
    energy: float


FAST = Spec(tokens=12, on_sphere=24, frames=60)


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """Both runs."""
    spec = Spec() if spec is None else spec
    paths = {space: _path(space, spec, progress) for space in _SPACES}
    radii = {space: spec.radius * size(path) for space, path in paths.items()}
    return Result(
        spec,
        paths,
        af.limit_shape(paths["R^3"]),
        {space: af.clusters(path.final, radii[space]) for space, path in paths.items()},
        {space: np.array([af.clusters(mu, radii[space]).count for mu in path]) for space, path in paths.items()},
        2 * spec.beta * float(af.energy(paths["S^2"].final, spec.beta, log_scale=-spec.beta)),
    )


def _path(space: str, spec: Spec, progress: bool) -> af.Path:
    """The path of the tokens: in R^3 in the frame z = e^{-t} x, on the sphere as they are."""
    key, eye = jax.random.key(spec.seed), np.eye(3)
    if space == "R^3":
        field, end = af.rescaled(af.Attention(af.dot_product(eye, eye), eye)), spec.t1
        start = af.samplers.cube(spec.tokens, 3, half_width=5.0, key=key)
    else:
        field, end = af.simple_attention(spec.beta, 3), spec.t2
        start = af.samplers.sphere(spec.on_sphere, 3, key=key)
    like = Of(af.Path, measure=start)
    return parts(lambda mu: af.solve(field, mu, end, save_at=spec.frames), [start], f"clustering in {space}", progress, like=like)[0]


def size(path: af.Path) -> float:
    """The radius of the start about 0."""
    return float(np.linalg.norm(np.asarray(path.states[0]), axis=1).max())


def outside(points: Float[np.ndarray, "k 3"], start: Float[np.ndarray, "n 3"]) -> float:
    """How far the points are outside the hull of the start, at most, over its size."""
    from scipy.spatial import ConvexHull

    faces = ConvexHull(start).equations
    return float((points @ faces[:, :3].T + faces[:, 3]).max() / np.linalg.norm(start, axis=1).max())


def led(places: Float[np.ndarray, "k 3"]) -> float:
    """The largest `<v, w> - |v|^2` over pairs of places, over the largest |v|^2."""
    products = places @ places.T
    return float((products - np.diag(products)[:, None]).max() / np.diag(products).max())


def by_scipy(points: Float[np.ndarray, "n 3"], radius: float) -> int:
    """The number of clusters by single linkage."""
    from scipy.cluster.hierarchy import fclusterdata

    return int(fclusterdata(points, radius, criterion="distance", method="single").max())


def checks(result: Result) -> list[Check]:
    """The limit in R^3 against what is known of it, and the clusters against SciPy and the energy."""
    spec, found = result.spec, []
    flat, round = (result.paths[space] for space in _SPACES)
    places, start = result.clusters["R^3"].centers, np.asarray(flat.states[0])
    predicted = af.predict_limit(np.eye(3), np.eye(3), np.eye(3))
    found.append(Check("$R^3$: verdict is the shape that was predicted", float(predicted.agrees(result.verdict)), 1.0, 0.0, "polytope"))
    found.append(Check("$R^3$: limits outside the hull of the start", max(outside(places, start), 0.0), 0.0, 1e-6, "polytope"))
    found.append(
        Check(r"$R^3$: largest $\langle v, w \rangle - \lvert v \rvert^2$ over pairs of places", led(places), 0.0, 1e-6, "leaders")
    )
    for space, path in result.paths.items():
        last, radius = np.asarray(path.final.points), spec.radius * size(path)
        # Neighbors on a great circle are a little farther apart than straight through the sphere: far less than clusters are.
        count = result.clusters[space].count
        found.append(Check(f"${space}$: clusters, against SciPy", float(count), float(by_scipy(last, radius)), 0.0, ""))
    masses, centers = result.clusters["S^2"].masses, result.clusters["S^2"].centers
    known = masses @ np.exp(-spec.beta * (1 - centers @ centers.T)) @ masses
    found.append(Check("$S^2$: energy at the end against that of the clusters", result.energy, float(known), 1e-3, "sphere"))
    late = result.counts["S^2"][-len(round) // 4 :]
    found.append(Check("$S^2$: clusters that merge in the last quarter of time", float(np.ptp(late)), 0.0, 0.0, "sphere"))
    found.append(Check("$S^2$: clusters over tokens", len(masses) / spec.on_sphere, 0.0, 0.5, "sphere"))
    return found


def measured(result: Result) -> dict[str, Any]:
    """The verdict, and the clusters by mass."""
    masses = {space: clusters.masses.tolist() for space, clusters in result.clusters.items()}
    return {"R^3": str(result.verdict), "masses of the clusters": masses}


def figure(result: Result) -> "matplotlib.figure.Figure":
    """The tokens with their trails, and how many clusters there are along time."""
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.4 * af.plot.PAGE)
        grid = page.add_gridspec(1, 3, width_ratios=[1.1, 1, 1])
        for i, (space, path) in enumerate(result.paths.items()):
            ax = page.add_subplot(grid[i], projection="3d" if space == "R^3" else None)
            view = (20.0, 30.0) if space == "R^3" else facing(result.clusters[space].centers)
            af.plot.tokens(path.final, ax, trail=path.states, size=16.0, color=colors(result, space), view=view)
            if space == "R^3":
                ax.set(xticks=[-4, 0, 4], yticks=[-4, 0, 4], zticks=[-4, 0, 4])
            ax.set_title(("$R^3$, $z = e^{-t} x$" if space == "R^3" else "$S^2$") + f": {result.clusters[space].count} clusters")
        ax = page.add_subplot(grid[2])
        for color, name, (space, counts) in zip(af.plot.COLORS, ("$R^3$", "$S^2$"), result.counts.items()):
            ax.semilogy(result.paths[space].ts, counts, color=color, label=name)
        ax.set(xlabel="$t$", ylabel="number of clusters")
        ax.legend(loc="upper right")
    return page


def facing(centers: Float[np.ndarray, "k 3"]) -> tuple[float, float]:
    """Elevation and azimuth of an eye that sees the hindmost of the clusters as well as it can be seen."""
    angles = np.array([(e, a) for e in range(-60, 70, 10) for a in range(0, 360, 10)], dtype=float)
    e, a = np.deg2rad(angles).T
    eyes = np.stack([np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)], axis=1)
    elevation, azimuth = angles[(eyes @ centers.T).min(axis=1).argmax()]
    return float(elevation), float(azimuth)


def colors(result: Result, space: str) -> list[str]:
    """A color a cluster."""
    return [af.plot.COLORS[label % len(af.plot.COLORS)] for label in result.clusters[space].labels]


def movie(result: Result, file: str | pathlib.Path) -> pathlib.Path:
    """The tokens in R^3, colored by where they end."""
    return af.plot.movie(result.paths["R^3"], file, color=colors(result, "R^3"))
