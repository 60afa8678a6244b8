"""The figures of the study of limit geometries."""

from typing import TYPE_CHECKING, Any

import numpy as np

import attnflow as af
from attnflow.numerics.dominant import Dominant, dominant

if TYPE_CHECKING:
    import matplotlib.figure

_TITLES = {
    "V = I": "$V = I$: polytope",
    "simple": "simple $\\lambda_1$: hyperplanes",
    "paranormal": "paranormal $V$: polytope × subspace",
    "V = -I": "$V = -I$: divergence",
}
# The half-width of each picture, and the time it shows: what runs off is shown on its way.
_REACH = {"V = I": 5.6, "simple": 6.5, "paranormal": 9.0, "V = -I": 14.0}
_SHOWN = {"V = I": np.inf, "simple": np.inf, "paranormal": 2.0, "V = -I": 3.0}


def gallery(result: Any) -> "matplotlib.figure.Figure":
    """One row a dimension, one column a V: tokens at the start, their ways, where they are, the limit found, and how many starts agree."""
    dims = sorted({g.dim for g in result.geometries})
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, (0.05 + 0.25 * len(dims)) * af.plot.PAGE)
        for row, dim in enumerate(dims):
            for column, g in enumerate(g for g in result.geometries if g.dim == dim):
                ax = page.add_subplot(len(dims), 4, 4 * row + column + 1, projection=None if dim == 2 else "3d")
                last = int(np.searchsorted(g.ts, min(_SHOWN[g.name], g.ts[-1])))
                _ways(ax, g, last)
                _limit(ax, g)
                share = f"{round(g.rate * len(g.verdicts))} of {len(g.verdicts)}"
                ax.set_title((f"{_TITLES[g.name]}\n" if row == 0 else "") + f"$d = {dim}$: {share}; $t = {g.ts[last]:.2g}$")
                _frame(ax, _REACH[g.name], dim)
    return page


def _ways(ax: Any, g: Any, last: int) -> None:
    """The start in gray, the ways as thin lines, the tokens at the time shown. Flat axes clip; solid ones do not, so lines stop."""
    x, blue = g.states[: last + 1], af.plot.COLORS[0]
    if g.dim == 3:
        x = np.where((np.abs(x) <= _REACH[g.name]).all(axis=2, keepdims=True), x, np.nan)
    for way in x.swapaxes(0, 1):
        ax.plot(*way.T, color=blue, alpha=0.45, linewidth=0.5)
    ax.scatter(*x[0].T, s=5, color="0.65", linewidths=0)
    ax.scatter(*x[-1].T, s=11, color=blue, linewidths=0, zorder=4)


def _limit(ax: Any, g: Any) -> None:
    """The limit of the first start: edges of the polytope, hyperplanes, or the edges of the product."""
    verdict, part, reach = g.verdicts[0], dominant(g.value), _REACH[g.name]
    style = {"color": af.plot.COLORS[4], "linewidth": 0.9}
    if verdict.shape == "polytope" and len(verdict.vertices) > g.dim:
        for a, b in edges(verdict.vertices):
            ax.plot(*np.stack([a, b]).T, **style)
        if g.dim == 3:
            _faces(ax, verdict.vertices, style["color"])
    elif isinstance(part, Dominant) and len(part.left) < g.dim:
        # The complement, where left vanishes.
        along = np.linalg.svd(part.left)[2][len(part.left) :]
        if verdict.shape == "hyperplanes":
            for value in verdict.values:
                _plane(ax, value * part.left[0] / (part.left[0] @ part.left[0]), along, reach, style)
        elif verdict.shape == "polytope x subspace":
            feet = verdict.vertices @ part.right.T
            for foot in feet:
                ax.plot(*_inside(foot, along[0], reach).T, **style)
            for a, b in edges(verdict.vertices):
                ax.plot(*(np.stack([a, b]) @ part.right.T).T, **style)


def _faces(ax: Any, vertices: np.ndarray, color: str) -> None:
    from mpl_toolkits.mplot3d.art3d import Poly3DCollection
    from scipy.spatial import ConvexHull

    faces = [vertices[simplex] for simplex in ConvexHull(vertices).simplices]
    ax.add_collection3d(Poly3DCollection(faces, facecolor=color, edgecolor="none", alpha=0.08))


def _plane(ax: Any, foot: np.ndarray, along: np.ndarray, reach: float, style: dict) -> None:
    """A line in the plane, a square of a plane in space."""
    if len(foot) == 2:
        ax.plot(*_inside(foot, along[0], reach).T, **style)
        return
    from mpl_toolkits.mplot3d.art3d import Poly3DCollection

    corners = foot + 0.8 * reach * np.array([[-1, -1], [-1, 1], [1, 1], [1, -1]]) @ along
    ax.add_collection3d(Poly3DCollection([corners], facecolor=style["color"], edgecolor=style["color"], alpha=0.18, linewidth=0.6))


def _inside(foot: np.ndarray, along: np.ndarray, reach: float) -> np.ndarray:
    """The part of a line that lies in the box, as its two ends."""
    steps = np.linspace(-3, 3, 601) * reach
    points = foot + steps[:, None] * along
    kept = points[(np.abs(points) <= reach).all(axis=1)]
    return kept[[0, -1]] if len(kept) else np.full((2, len(foot)), np.nan)


def edges(vertices: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """The edges of the hull of vertices in R^2 or R^3: those between facets that do not lie in one plane."""
    from scipy.spatial import ConvexHull

    if len(vertices) <= vertices.shape[1]:
        return [(a, b) for i, a in enumerate(vertices) for b in vertices[:i]]
    found = ConvexHull(vertices)
    sides: dict[tuple[int, ...], list[np.ndarray]] = {}
    for simplex, equation in zip(found.simplices, found.equations):
        for skip in range(len(simplex)) if len(simplex) == 3 else [None]:
            side = tuple(sorted(int(v) for i, v in enumerate(simplex) if i != skip))
            sides.setdefault(side, []).append(equation)
    return [(vertices[i], vertices[j]) for (i, j), at in sides.items() if len(at) == 1 or not np.allclose(at[0], at[1], atol=1e-6)]


def _frame(ax: Any, reach: float, dim: int) -> None:
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach))
    if dim == 2:
        ax.set(aspect="equal", xticks=[-5, 0, 5], yticks=[-5, 0, 5])
        return
    ax.set(zlim=(-reach, reach), xticks=[-5, 0, 5], yticks=[-5, 0, 5], zticks=[-5, 0, 5])
    ax.tick_params(labelsize=6, pad=-3)
    ax.view_init(18, -62)
    ax.set_box_aspect((1, 1, 1), zoom=1.2)


def boolean(result: Any) -> "matplotlib.figure.Figure":
    """The line: z of the first start, its attention matrix early and late, and how far the rows are from Boolean over all starts."""
    line = result.line
    x0 = line.states[0, 0]
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.3 * af.plot.PAGE)
        left, early, late, right = page.subplots(1, 4, width_ratios=[1.25, 1, 1, 1.5])
        for way in line.states[0].T:
            left.plot(line.ts, way, color=af.plot.COLORS[0 if way[-1] > 0 else 4], linewidth=0.8, alpha=0.8)
        left.set(xlabel="$t$", ylabel="$z$", title="$d = 1$, $V = 1$", xlim=(0, 6))
        for ax, t in ((early, 0.0), (late, float(line.ts[-1]))):
            z = np.sort(line.states[0, 0 if t == 0 else -1][np.argsort(x0)])
            _matrix(ax, np.exp(t) * z, t)
        worst = np.maximum(line.distances.max(axis=2), 1e-16)
        for way in worst:
            right.semilogy(line.ts, way, color=af.plot.COLORS[0], linewidth=0.5, alpha=0.35)
        right.semilogy(line.ts, np.median(worst, axis=0), color=af.plot.COLORS[4], label="median")
        right.set(
            xlabel="$t$", ylabel=r"largest $1 - \max_j P_{ij}$ of a row", title=f"{len(line.states)} starts", xlim=(0, 8), ylim=(1e-14, 2)
        )
        right.legend(loc="upper right")
    return page


def _matrix(ax: Any, x: np.ndarray, t: float) -> None:
    """The softmax of `x_i x_j`, tokens in increasing order."""
    logits = x[:, None] * x[None]
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    ax.imshow(weights / weights.sum(axis=1, keepdims=True), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    ax.set(title=f"$P$ at $t = {t:g}$", xlabel="key", ylabel="query", xticks=[], yticks=[])
