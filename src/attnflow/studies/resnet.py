r"""A residual network in continuous depth is the flow of $x' = g(W_t x + b_t)$, a homeomorphism (arXiv:2312.10794, arXiv:1806.07366).

Layers $x_{k+1} = x_k + h\, g(W_k x_k + b_k)$ are Euler's method for it: the map of the network tends to that of the flow at order one in
$h$. The map of the flow can be inverted, by going back, and keeps orientation: by Liouville's formula its derivative has the determinant

$$\det D\Phi(x_0) = \exp\left(\int_0^T \sum_i g'(W_t x + b_t)_i\, (W_t)_{ii} \,dt\right) > 0,$$

so that it makes an area $\int \det D\Phi$ of a disc, and of the density of a cloud $\rho_T(x_T) = \rho_0(x_0) / \det D\Phi(x_0)$. Here $g$
is $\tanh$, and the weights turn with depth, $W_t = \cos(t)\, W + \sin(t)\, W'$, in the plane.
"""

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.integrate
from jaxtyping import Array, Float

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import RISING, Checked, Meta, Seed
from attnflow.studies.tools.fit import PowerLaw, power_law

if TYPE_CHECKING:
    import matplotlib.figure

CLAIMS = {
    "order": Claim(
        r"The network $x_{k+1} = x_k + h\, g(W_k x_k + b_k)$ of depth $T/h$ tends to the flow map of $x' = g(W_t x + b_t)$ at order one "
        "in $h$.",
        "arXiv:1806.07366; lecture notes on arXiv:2312.10794",
        "proved",
    ),
    "inverse": Claim(r"The flow map $x(0) \mapsto x(T)$ is one to one: the flow back in depth undoes it.", "Picard and Lindelof", "proved"),
    "liouville": Claim(
        r"The determinant of the flow map is $\exp \int_0^T \sum_i g'(W_t x + b_t)_i\, (W_t)_{ii}\, dt$ along the path, and is positive.",
        "Liouville's formula",
        "proved",
    ),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """The depth and the points."""

    t1: Annotated[float, Meta(gt=0, le=10)] = 3.0
    """the depth T of the network in continuous time"""
    depths: Annotated[tuple[Annotated[int, Meta(ge=4)], ...], Meta(min_length=3), RISING] = (12, 24, 48, 96, 192)
    """how many layers the networks have, rising"""
    cloud: Annotated[int, Meta(ge=16)] = 400
    """how many points of a Gaussian cloud are moved"""
    boundary: Annotated[int, Meta(ge=64)] = 400
    """how many points a circle has"""
    seed: Seed = 9
    """of the weights and the cloud"""


@dataclasses.dataclass(frozen=True)
class Result:
    """The path of the cloud, where SciPy has it at the end and where it comes back to from the library's end; errors of the networks; for
    points of the disc the determinant by differences and by Liouville; the images of circles, the area in the unit one and that by
    the integral of determinants."""

    spec: Spec
    path: af.Path
    by_hand: Float[np.ndarray, "n 2"]
    back: Float[np.ndarray, "n 2"]
    errors: Float[np.ndarray, " k"]
    differences: Float[np.ndarray, " m"]
    determinants: Float[np.ndarray, " m"]
    circles: Float[np.ndarray, "c b 2"]
    area: float
    integral: float

    @property
    def order(self) -> PowerLaw:
        return power_law(self.spec.t1 / np.array(self.spec.depths), self.errors)


class Turning(eqx.Module):
    """The network at depth t: `W_t = cos(t) W + sin(t) W'`, `b_t = cos(t) b`."""

    first: Float[Array, "2 2"]
    second: Float[Array, "2 2"]
    bias: Float[Array, "2"]

    def __call__(self, t: Any) -> af.ResNet:
        return af.ResNet(jnp.cos(t) * self.first + jnp.sin(t) * self.second, jnp.cos(t) * self.bias)


FAST = Spec(t1=2.0, depths=(8, 16, 32), cloud=32, boundary=128)
_RADII = (0.25, 0.5, 0.75, 1.0)


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """All points in one flow, as nothing of them interacts; then networks, and the same in SciPy."""
    spec = Spec() if spec is None else spec
    rng = np.random.default_rng(spec.seed)
    weights = rng.normal(size=(2, 2, 2)) * 1.2, rng.normal(size=2)
    field = af.Scheduled(Turning(*(jnp.asarray(part) for part in (*weights[0], weights[1]))))
    cloud, (disc, area_weights), size = rng.normal(size=(spec.cloud, 2)), quadrature(), 1e-4
    angles = 2 * np.pi * np.arange(spec.boundary) / spec.boundary
    rings = np.concatenate([radius * np.stack([np.cos(angles), np.sin(angles)], axis=1) for radius in _RADII])
    around = np.concatenate([disc + size * np.array(side) for side in ((1, 0), (-1, 0), (0, 1), (0, -1))])
    path = af.solve(
        field, af.Particles(np.concatenate([cloud, rings, around])), spec.t1, save_at=73, rtol=1e-11, atol=1e-13, progress=progress
    )
    moved, near = np.asarray(path.final.points), len(cloud) + len(rings)
    right, left, up, down = moved[near:].reshape(4, -1, 2)
    differences = _cross(right - left, up - down) / (2 * size) ** 2
    circles = moved[len(cloud) : near].reshape(len(_RADII), -1, 2)
    end, _ = follow(cloud, (0.0, spec.t1), weights)
    back, _ = follow(moved[: len(cloud)], (spec.t1, 0.0), weights)
    _, logarithms = follow(disc, (0.0, spec.t1), weights)
    start = af.Particles(cloud)
    networks = [af.layers(field, start, depth, step=spec.t1 / depth).final.points for depth in spec.depths]
    errors = np.array([np.linalg.norm(np.asarray(network) - end, axis=1).max() for network in networks])
    outer = circles[-1]
    area = float(_cross(outer, np.roll(outer, -1, axis=0)).sum() / 2)
    determinants = np.exp(logarithms)
    shown = dataclasses.replace(path, states=path.states[:, : len(cloud)], measure=start)
    return Result(spec, shown, end, back, errors, differences, determinants, circles, area, float(area_weights @ determinants))


def quadrature(radial: int = 16, around: int = 48) -> tuple[Float[np.ndarray, "m 2"], Float[np.ndarray, " m"]]:
    """Points and weights for integrals over the unit disc: Gauss and Legendre in the radius, equal angles."""
    nodes, weights = np.polynomial.legendre.leggauss(radial)
    r, angles = (nodes + 1) / 2, 2 * np.pi * (np.arange(around) + 0.5) / around
    points = r[:, None, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)[None]
    return points.reshape(-1, 2), np.repeat(weights / 2 * r, around) * 2 * np.pi / around


def follow(points: Float[np.ndarray, "n 2"], span: tuple[float, float], weights: Any) -> tuple[np.ndarray, np.ndarray]:
    """The points at the end of a span of depth, which may go back, and the logarithms of the determinants there, by SciPy."""
    (first, second), bias = weights

    def rate(t: float, flat: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
        matrix = np.cos(t) * first + np.sin(t) * second
        x = flat.reshape(3, -1)[:2]
        g = np.tanh(matrix @ x + np.cos(t) * bias[:, None])
        return np.concatenate([g.ravel(), np.diag(matrix) @ (1 - g**2)])

    start = np.concatenate([points.T.ravel(), np.zeros(len(points))])
    final = scipy.integrate.solve_ivp(rate, span, start, method="DOP853", rtol=1e-11, atol=1e-13).y[:, -1].reshape(3, -1)
    return final[:2].T, final[2]


def _cross(a: Float[np.ndarray, "n 2"], b: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, " n"]:
    return a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]


def checks(result: Result) -> list[Check]:
    """Against SciPy forth and back, Liouville's formula, and the area of a polygon."""
    start, end = (np.asarray(result.path.states)[i] for i in (0, -1))
    ratio = result.differences / result.determinants
    return [
        Check("cloud against SciPy", float(np.abs(end - result.by_hand).max()), 0.0, 1e-7),
        Check("order of the network in the step", result.order.slope, 1.0, 0.1, "order"),
        Check("cloud moved back by SciPy, distance from the start", float(np.abs(result.back - start).max()), 0.0, 1e-9, "inverse"),
        Check("determinant by differences over Liouville's, less 1", float(np.abs(ratio - 1).max()), 0.0, 1e-4, "liouville"),
        Check("smallest determinant is positive", float(result.differences.min() > 0), 1.0, 0.0, "liouville"),
        Check(
            "area in the image of the circle over the integral",
            result.area / result.integral,
            1.0,
            80 / result.spec.boundary**2,
            "liouville",
        ),
    ]


def measured(result: Result) -> dict[str, Any]:
    """The order, the determinants and the area."""
    return {
        "order": [result.order.slope, result.order.half_width],
        "errors": dict(zip(result.spec.depths, result.errors)),
        "determinants": [result.determinants.min(), result.determinants.max()],
        "area": result.area,
    }


def figure(result: Result) -> "matplotlib.figure.Figure":
    """The cloud and circles at the start and at the end, and the errors of networks."""
    spec = result.spec
    states, steps = np.asarray(result.path.states), spec.t1 / np.array(result.spec.depths)
    angles = 2 * np.pi * np.arange(spec.boundary + 1) / spec.boundary
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.36 * af.plot.PAGE)
        first, last, right = page.subplots(1, 3)
        for ax, x, title in ((first, states[0], "$t = 0$"), (last, states[-1], f"$t = {spec.t1:g}$")):
            ax.plot(*x.T, ".", color=af.plot.COLORS[6], markersize=2.5, markeredgewidth=0)
            ax.set(xlabel="$x_1$", ylabel="$x_2$", title=title, aspect="equal")
        for radius, ring in zip(_RADII, result.circles):
            first.plot(radius * np.cos(angles), radius * np.sin(angles), color=af.plot.COLORS[4], linewidth=0.9)
            last.plot(*np.append(ring, ring[:1], axis=0).T, color=af.plot.COLORS[4], linewidth=0.9)
        right.loglog(steps, result.errors, "o", color=af.plot.COLORS[0], markersize=4)
        right.loglog(steps, result.order(steps), color="0.4", linewidth=1, label=f"order {result.order.slope:.2f}")
        right.set_xticks(steps, [str(depth) for depth in spec.depths])
        right.set_xticks([], minor=True)
        right.set(xlabel="layers", ylabel="largest error of the network")
        right.invert_xaxis()
        right.legend(loc="lower left")
    return page


def movie(result: Result, file: str | pathlib.Path) -> None:
    """The cloud along depth."""
    af.plot.movie(result.path, file)
