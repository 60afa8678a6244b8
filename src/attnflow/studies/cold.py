r"""At low temperature attention on the sphere is a linear flow, which ends on the dominating directions of $V B^\top$ (arXiv:2605.10931).

With the logit $\beta\langle B y, x\rangle$ the average
$m(x) = \int e^{\beta\langle By, x\rangle}\, y \,d\mu(y) / \int e^{\beta\langle By, x\rangle} \,d\mu(y)$ tends to $B^\top x / |B^\top x|$ if
$\mu$ has a positive density, and the flow to $x' = P_x V B^\top x / |B^\top x|$. Measured here:

- the Laplace principle as a rate. With $B = I$, $\beta |m - x|$ tends to $((\frac{d-1}{2})^2 + |\nabla\log\rho|^2)^{1/2}$: $\frac{d-1}{2}$
  for the uniform law. On the circle, on $S^2$ and on laws symmetric about an axis in $\mathbb{R}^4$ and $\mathbb{R}^8$;
- the flow. For a smooth law the distance $W_2$ at a fixed time falls like $1/\beta$, on grids and on tokens; the theorem says
  $(\log(\beta+1)/\beta)^{1/2}$. Tokens stop following where the kernel becomes narrower than their gaps: their number must grow with
  $\beta$;
- concentration. The law tends to the push-forward of the first one under $x \mapsto \Pi x / |\Pi x|$, with the spectral projector $\Pi$ of
  $V B^\top$, which is oblique; the orthogonal one onto the same eigenspace gives another law. At a finite $\beta$ tokens come close to
  that law, and leave it as they cluster, as the bound $(\log(\beta+1)/\beta)^{1/2} e^{Ct} + e^{-ct}$ lets them. ($B^\top$ maps the
  eigenspace to itself here; if not, $n$ tokens soon have none near their keys, and leave earlier.)
"""

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import GEOMETRIC, RISING, Checked, Meta, Positive, Rule, Seed, each_of
from attnflow.studies.tools.fit import PowerLaw, power_law
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

# On the circle: B, and V B^T with the eigenvalues 1 and -1/2 and slanted eigenvectors.
_B = np.array([[1.2, 0.3], [-0.2, 0.8]])
_SLANTED = np.array([[1.0, 0.6], [0.2, 1.0]])
# On S^2: V B^T with the eigenvalue 1 on the plane of the first two axes and -1/2 across it, at a slant; B turns that plane in itself, so
# that tokens that are close to it have their keys close to it too.
_PLANE = np.array([[1.0, 0.0, 1.8], [0.0, 1.0, 0.6], [0.0, 0.0, 1.0]])
_TURN = np.array([[0.8, -0.6, 0.0], [0.6, 0.8, 0.0], [0.0, 0.0, 1.0]])
_GAP = 1.5
# How many of the largest beta a rate is fitted over: it is one in the limit.
_LAST = 4
# Where there are grids.
_SPACES = ("circle", "S^2", "R^4", "R^8")

_PAPER = "arXiv:2605.10931"
CLAIMS = {
    "laplace": Claim(
        r"For a positive density and $B = I$, "
        r"$\beta \lvert m - x \rvert \to \sqrt{(\tfrac{d-1}{2})^2 + \lvert \nabla \log \rho \rvert^2}$.",
        _PAPER,
        "proved",
    ),
    "flow": Claim(
        r"$W_2$ of the law at $\beta$ to the flow $x' = P_x V B^T x / \lvert B^T x \rvert$ is $O((\log(\beta+1)/\beta)^{1/2})$.",
        _PAPER,
        "proved",
    ),
    "target": Claim(
        r"$x' = P_x V B^T x / \lvert B^T x \rvert$ takes $\mu_0$ to its image under $\Pi x / \lvert \Pi x \rvert$, $\Pi$ spectral, like "
        "$e^{-ct}$.",
        _PAPER,
        "proved",
    ),
    "cold": Claim(
        r"At $\beta$, $W_2$ to the image under $\Pi x / \lvert \Pi x \rvert$ is $O((\log(\beta+1)/\beta)^{1/2} e^{Ct} + e^{-ct})$.",
        _PAPER,
        "proved",
    ),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """At which temperatures, on how fine grids, with how many tokens."""

    betas: Annotated[tuple[Positive, ...], Meta(min_length=_LAST), RISING, GEOMETRIC] = (8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
    """the inverse temperatures, rising by one factor"""
    cells: Annotated[int, Meta(ge=16)] = 512
    """how many cells the circle has; the angle of symmetric laws has half as many"""
    frequency: Annotated[int, Meta(ge=4)] = 24
    """how fine the grid of $S^2$ is"""
    t1: Positive = 1.0
    r"""when finite and infinite $\beta$ are compared"""
    tokens: Annotated[tuple[Annotated[int, Meta(ge=8)], ...], Rule("none or several", lambda tokens: len(tokens) != 1)] = (64, 512, 4096)
    """how many tokens follow on the circle; none leaves them out"""
    concentrating: Annotated[int, Meta(ge=50)] = 1000
    """how many tokens concentrate on $S^2$"""
    cold: Annotated[tuple[Positive, ...], Meta(min_length=1)] = (20.0, 100.0, 500.0)
    r"""at which $\beta$ they do, beside the limit"""
    t2: Positive = 6.0
    """until when they do"""
    spaces: Annotated[tuple[str, ...], each_of(*_SPACES), Rule("circle among them", lambda spaces: "circle" in spaces)] = _SPACES
    r"""where there are grids: the circle, and some of $S^2$, $\mathbb{R}^4$ and $\mathbb{R}^8$"""
    seed: Seed = 0
    """of the tokens on $S^2$"""


@dataclasses.dataclass(frozen=True)
class Laplace:
    """One law: `error[k]` is the largest `|m - x|` at `betas[k]`, `constant` what `beta |m - x|` should tend to."""

    law: str
    betas: Float[np.ndarray, " k"]
    error: Float[np.ndarray, " k"]
    constant: float

    @property
    def fit(self) -> PowerLaw:
        return power_law(self.betas[-_LAST:], self.error[-_LAST:])

    @property
    def limit(self) -> float:
        """`beta |m - x|` taken to beta = infinity through its last two values, with an error in 1/beta."""
        scaled, factor = (self.betas * self.error)[-2:], self.betas[-1] / self.betas[-2]
        return float((factor * scaled[1] - scaled[0]) / (factor - 1))


@dataclasses.dataclass(frozen=True)
class Flow:
    """`error[k]` is W2 at t1 between the law at `betas[k]` and the limit, from one start."""

    start: str
    betas: Float[np.ndarray, " k"]
    error: Float[np.ndarray, " k"]

    @property
    def fit(self) -> PowerLaw:
        return power_law(self.betas[-_LAST:], self.error[-_LAST:])


@dataclasses.dataclass(frozen=True)
class Concentration:
    """Tokens on S^2 at times `ts`: W2 to the push-forward under the spectral projector, in the limit and at each beta; in the limit also to
    that under the orthogonal one; the distance of the two targets. `straight` is the largest error of a token in the limit flow, whose
    `x(t)` is `e^{tM} x / |e^{tM} x|`, M = V B^T, because B turns."""

    ts: Float[np.ndarray, " t"]
    oblique: Float[np.ndarray, " t"]
    orthogonal: Float[np.ndarray, " t"]
    cold: dict[float, Float[np.ndarray, " t"]]
    apart: float
    straight: float

    @property
    def rate(self) -> float:
        """How fast the limit flow approaches its target, over the second half."""
        half = len(self.ts) // 2
        return float(np.polyfit(self.ts[half:], np.log(self.oblique[half:]), 1)[0])


@dataclasses.dataclass(frozen=True)
class Result:
    spec: Spec
    laplace: list[Laplace]
    flows: list[Flow]
    concentration: Concentration


FAST = Spec((8.0, 16.0, 32.0, 64.0), 128, t1=0.5, tokens=(), concentrating=100, cold=(2.0, 60.0), t2=5.0, spaces=("circle",))


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """The average, the flow, and the end."""
    spec = Spec() if spec is None else spec
    meshes = grids(spec)
    laws = [(f"{name}, {law}", axes, law, spec) for name, axes in meshes.items() for law in ("uniform", "curved")]
    start = af.Grid.from_density(lambda x: (1 + x[:, 0] * x[:, 1]) / (2 * np.pi), meshes["circle"])
    V = _SLANTED @ np.diag([1.0, -0.5]) @ np.linalg.inv(_SLANTED) @ np.linalg.inv(_B.T)
    plans = [("circle, grid", start, _B, V, spec), *((f"circle, {n} tokens", start.quantiles(n), _B, V, spec) for n in spec.tokens)]
    if "$R^4$" in meshes:
        plans.append(("$R^4$, grid", af.Grid.uniform(meshes["$R^4$"]), np.diag([2.0, 1.0, 1.0, 1.0]), np.eye(4), spec))
    laplace = parts(lambda plan: principle(*plan), laws, "Laplace principle", progress, like=Laplace)
    flows = parts(lambda plan: flow(*plan), plans, "flows", progress, like=Flow)
    return Result(spec, laplace, flows, parts(concentrate, [spec], "concentration", progress, like=Concentration)[0])


def grids(spec: Spec) -> dict[str, list[Any]]:
    """The axes; a rule around the bands of a zonal grid that is fine enough for the largest beta."""
    nodes = max(32, math.ceil(3.2 * math.sqrt(2 * spec.betas[-1])))
    meshes: dict[str, list[Any]] = {"circle": [af.Circle(spec.cells)], "$S^2$": [af.Icosphere(spec.frequency)]}
    meshes |= {f"$R^{d}$": [af.Zonal(d, spec.cells // 2, nodes)] for d in (4, 8)}
    return {name: axes for name, axes in meshes.items() if name.replace("$", "") in spec.spaces}


def principle(name: str, axes: list[Any], law: str, spec: Spec) -> Laplace:
    """The average on a grid against x, for the uniform law or one with density `1 + x_1^2` up to a factor."""
    mu = af.Grid.uniform(axes)
    x, d = mu.points, mu.dim
    slope = jnp.zeros(len(x))
    if law == "curved":
        mass = mu.mass * (1 + x[:, 0] ** 2)
        mu = mu.with_state(mass / mass.sum())
        # |grad log (1 + x_1^2)| on the sphere.
        slope = 2 * jnp.abs(x[:, 0]) * jnp.sqrt(jnp.maximum(1 - x[:, 0] ** 2, 0)) / (1 + x[:, 0] ** 2)
    error = [float(jnp.linalg.norm(af.simple_attention(beta, d).at(mu)(x) - x, axis=1).max()) for beta in spec.betas]
    return Laplace(name, np.array(spec.betas), np.array(error), float(jnp.hypot((d - 1) / 2, slope).max()))


def pair(B: np.ndarray, V: np.ndarray) -> tuple[Callable[[float], af.Attention], af.ZeroTemperature]:
    """The law at a given beta, `beta <B y, x> = <I x, B y> / (1/beta)`, and its limit."""
    eye = np.eye(len(B))
    return lambda beta: af.Attention(af.dot_product(eye, B, 1 / beta), V), af.ZeroTemperature(af.dot_product(eye, B), V)


def flow(name: str, start: Any, B: np.ndarray, V: np.ndarray, spec: Spec) -> Flow:
    law, limit = pair(B, V)
    end = af.solve(limit, start, spec.t1, save_at=1).final
    error = [float(af.wasserstein2(af.solve(law(beta), start, spec.t1, save_at=1).final, end)) for beta in spec.betas]
    return Flow(name, np.array(spec.betas), np.array(error))


def concentrate(spec: Spec) -> Concentration:
    M = _PLANE @ np.diag([1.0, 1.0, 1.0 - _GAP]) @ np.linalg.inv(_PLANE)
    # B turns, so that B^-T = B and V B^T = M.
    B, V = _TURN, M @ _TURN
    law, limit = pair(B, V)
    start = af.samplers.sphere(spec.concentrating, 3, key=jax.random.key(spec.seed))
    oblique = af.Particles(af.theory.cold_limit(start.points, B, V), space=af.Sphere())
    # The eigenspace is that of the first two axes, on which this projects orthogonally.
    flat = start.points * jnp.array([[1.0, 1.0, 0.0]])
    orthogonal = af.Particles(flat / jnp.linalg.norm(flat, axis=1, keepdims=True), space=af.Sphere())

    def distances(path: Any, target: Any) -> np.ndarray:
        return np.array([float(af.wasserstein2(frame, target)) for frame in path])

    path = af.solve(limit, start, spec.t2, save_at=13)
    exact = np.asarray(start.points) @ np.asarray(jax.scipy.linalg.expm(spec.t2 * jnp.asarray(M))).T
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    return Concentration(
        np.asarray(path.ts),
        distances(path, oblique),
        distances(path, orthogonal),
        {beta: distances(af.solve(law(beta), start, spec.t2, save_at=13), oblique) for beta in spec.cold},
        float(af.wasserstein2(oblique, orthogonal)),
        float(np.abs(np.asarray(path.final.points) - exact).max()),
    )


def checks(result: Result) -> list[Check]:
    """Rates, constants, and which projector it is."""
    found = []
    for law in result.laplace:
        found.append(Check(rf"{law.law}: rate of $\lvert m - x \rvert$ in $\beta$", law.fit.slope, -1.0, 0.1, "laplace"))
        found.append(Check(rf"{law.law}: limit of $\beta \lvert m - x \rvert$", law.limit, law.constant, 0.01 * law.constant, "laplace"))
    for one in (flow for flow in result.flows if "grid" in flow.start):
        found.append(Check(rf"{one.start}: rate of $W_2$ at $t_1$ in $\beta$", one.fit.slope, -1.0, 0.15, "flow"))
    if count := len(result.spec.tokens):
        grid, few, many = (result.flows[i].error for i in (0, 1, count))
        found.append(Check(r"circle: $W_2$ at the smallest $\beta$, most tokens over grid", float(many[0] / grid[0]), 1.0, 0.05, "flow"))
        found.append(Check(r"circle: $W_2$ at the largest $\beta$, grid over fewest tokens", float(grid[-1] / few[-1]), 0.0, 0.5, "flow"))
    end, least = result.concentration, [result.concentration.cold[beta].min() for beta in sorted(result.concentration.cold)]
    return [
        *found,
        Check(r"$S^2$: tokens of the limit flow against $e^{tM} x / \lvert e^{tM} x \rvert$", end.straight, 0.0, 1e-5, "target"),
        Check("$S^2$: $W_2$ to the spectral push-forward at the end", float(end.oblique[-1]), 0.0, 0.02, "target"),
        Check(
            "$S^2$: $W_2$ to the orthogonal one, over the distance of the two", float(end.orthogonal[-1] / end.apart), 1.0, 0.05, "target"
        ),
        Check("$S^2$: rate of approach in $t$", end.rate, -_GAP, 0.2, "target"),
        Check(r"$S^2$: least $W_2$ over $t$, largest over smallest $\beta$", float(least[-1] / least[0]), 0.0, 0.6, "cold"),
    ]


def measured(result: Result) -> dict[str, Any]:
    """Every error and fitted rate."""
    numbers: dict[str, Any] = {"concentration": dataclasses.asdict(result.concentration) | {"rate": result.concentration.rate}}
    for kind, items in (("Laplace principle", result.laplace), ("flow", result.flows)):
        numbers[kind] = [dataclasses.asdict(item) | {"rate": [item.fit.slope, item.fit.half_width]} for item in items]
    return numbers


def figure(result: Result) -> "matplotlib.figure.Figure":
    """The Laplace principle in units of its limit; the flow against beta; the end against time."""
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.4 * af.plot.PAGE)
        left, middle, right = page.subplots(1, 3)
        for i, law in enumerate(result.laplace):
            style = {"color": af.plot.COLORS[i // 2], "marker": "os"[i % 2], "markerfacecolor": "white" if i % 2 else None}
            label = law.law.split(",")[0] if i % 2 == 0 else None
            left.semilogx(law.betas, law.betas * law.error / law.constant, markersize=4, linewidth=0.9, label=label, **style)
        left.axhline(1, color="0.6", linewidth=0.6, zorder=0)
        left.set(title="average; open: not uniform", ylabel=r"$\beta\,|m - x|$ over its limit", xlabel=r"$\beta$")
        left.legend()
        for color, one in zip(af.plot.COLORS, result.flows):
            middle.loglog(
                one.betas, one.error, "o-" if "grid" in one.start else "o--", color=color, markersize=3.5, linewidth=0.9, label=one.start
            )
        betas, guide = result.flows[0].betas, 0.35 * (result.flows[0].error * result.flows[0].betas)[-1] / result.flows[0].betas
        middle.loglog(betas, guide, ":", color="0.4", linewidth=1)
        middle.annotate(r"$1/\beta$", (betas[1], guide[1]), va="top", ha="right")
        middle.set(title=f"flow at $t = {result.spec.t1:g}$", xlabel=r"$\beta$", ylabel=r"$W_2$ to the limit flow")
        middle.legend(fontsize=7)
        end = result.concentration
        right.semilogy(end.ts, end.oblique, "-", color=af.plot.COLORS[5], label=r"$\beta = \infty$")
        right.semilogy(end.ts, end.orthogonal, "-.", color=af.plot.COLORS[4], label=r"$\beta = \infty$, orthogonal $\Pi$")
        for color, (beta, distances) in zip(af.plot.COLORS, end.cold.items()):
            right.semilogy(end.ts, distances, "o--", color=color, markersize=3, linewidth=0.9, label=f"$\\beta = {beta:g}$")
        right.set(title=r"end on $S^2$", xlabel="$t$", ylabel=r"$W_2$ to the push-forward under $\Pi$")
        right.legend(fontsize=7)
    return page
