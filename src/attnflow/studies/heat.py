r"""The bridge step $x \leftarrow 2x - B(x)$ is a second-order scheme for the heat flow, Euler a first-order one (arXiv:2406.10823).

Both are schemes for $\partial_t \rho = \frac12 \Delta\rho$, whose characteristics are $x' = -\frac12 \nabla\log\rho_t(x)$:

- bridge: $x \leftarrow 2x - B(x)$, $B$ the barycentric map of the self-bridge of the scheme's own law at temperature $\varepsilon$;
- Euler: $x \leftarrow x - \frac{\varepsilon}{2} \nabla\log\rho(x)$.

The sources prove that both converge uniformly on $[0, T]$ and call the bridge first order. Measured here is the largest $W_2$ of the
scheme after $k$ steps to $\rho_{k\varepsilon}$, over $k\varepsilon \le T$, against $\varepsilon$: the bridge is of order two. Measured too
is $W_2$ of Euler and bridge after one step, over $\varepsilon$. By the expansion of $B$ in $\varepsilon$ it is $c\,\varepsilon$, with $c$
the norm in $L^2(\rho)$ of $\frac18 \nabla\Delta\log\rho + \frac1{16} \nabla|\nabla\log\rho|^2$, that is $1/(8 s^3)$ for
$\mathcal{N}(0, s^2)$; a poster of the authors has $\varepsilon^2$.

Gaussians are in closed form, and the score of Euler is that of its own law. A mixture does not stay one under Euler, and the score of the
law that it becomes is not known: there the score is that of the exact law at the time of the step, which makes it Euler's method for the
characteristics. Mixtures are quadrature tokens, without sampling noise, compared with the same tokens moved along the exact
characteristics. On the line that is $W_2$, by sorting; in the plane the distance token to token is an upper bound of $W_2$.
"""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import DIFFERENT, Checked, Count, Meta, Positive, Rule
from attnflow.studies.tools.fit import PowerLaw, power_law
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

# Tokens lighter than this share of the heaviest are left out: they cost as much as the others, and W2 does not see them.
_LIGHT = 1e-14
# The tolerance of the bridges, far below the smallest error of a scheme.
_BRIDGE = 1e-10

_PAPER, _POSTER = "arXiv:2406.10823, Theorem ", "poster of arXiv:2406.10823, "
CLAIMS = {
    "bridge": Claim(
        r"The bridge step $x \leftarrow 2x - B$ is a scheme of second order for the heat flow: the supremum of $W_2$ over "
        r"$k \varepsilon \le T$ falls like $\varepsilon^2$.",
        _POSTER + "theorem on uniform convergence",
        "sharper than stated",
        "a first order approximation of the heat flow",
    ),
    "euler": Claim(
        r"Euler steps $x - \tfrac{\varepsilon}{2} \nabla \log \rho$ tend to the heat flow uniformly on $[0, T]$, with order one.",
        _PAPER + "3",
        "proved",
    ),
    "one step": Claim(
        r"After one step the $W_2$ of Euler and bridge over $\varepsilon$ tends to $0$, like $c\, \varepsilon$.", _PAPER + "2", "proved"
    ),
    "gaussian": Claim(
        r"For $N(0, s^2)$ the distance $W_2(\text{Euler}, \text{bridge})$ is $\frac{\varepsilon^2}{8 s^3} (1 + o(1))$ after one step.",
        _POSTER + "Proposition 1",
        "misprint",
        r"$W_2 < K \varepsilon\, C(\varepsilon)$ with $C(\varepsilon) = O(\varepsilon^2)$ for Gaussian marginals",
        r"It is an exponent: $C(\varepsilon) = O(\varepsilon)$. The bridge of $N(0, s^2)$ has $B(x) = x\, (\sqrt{s^4 + \varepsilon^2/4} - "
        r"\varepsilon/2)/s^2$, so $2x - B = x\, (1 + \tfrac{\varepsilon}{2 s^2} - \tfrac{\varepsilon^2}{8 s^4} + \dots)$, of "
        r"which Euler has the first two "
        r"terms: after a step they are $\frac{\varepsilon^2}{8 s^3}$ apart.",
        r"We are sure of the distance for the surrogate $\sigma_\varepsilon = \rho$ of the heat flow. The proposition itself, "
        r"that the distance is "
        r"$o(\varepsilon)$, holds; with another surrogate, or another meaning of $C$, the exponent may be right.",
    ),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """Up to what time, in how many steps, on how many tokens."""

    t1: Positive = 0.5
    """the final time"""
    steps: Annotated[tuple[Count, ...], Meta(min_length=3), DIFFERENT] = (4, 8, 16, 32, 64)
    r"""on the line: how many steps to the final time, for each $\varepsilon$ = `t1` / steps"""
    nodes: Annotated[int, Meta(ge=16)] = 400
    """on the line: how many quadrature tokens"""
    plane_steps: Annotated[tuple[Count, ...], DIFFERENT, Rule("none or at least three", lambda steps: len(steps) not in (1, 2))] = (
        3,
        4,
        6,
        8,
        12,
    )
    """in the plane: how many steps; none leaves it out"""
    plane_nodes: Annotated[int, Meta(ge=16)] = 108
    """in the plane: how many quadrature tokens along an axis"""


@dataclasses.dataclass(frozen=True)
class Rates:
    """The errors on one law, eps by eps.

    - `bridge`, `euler`: the largest W2 to the heat flow up to the final time.
    - `one_step`: `W2(Euler, bridge) / eps` after one step; `coefficient`: the c of its limit `c eps`.
    - `aliasing`: how well the tokens are a quadrature at the smallest eps, `e^{-2 pi^2 eps / h^2}` with h their spacing at the end.
    """

    law: str
    eps: Float[np.ndarray, " k"]
    bridge: Float[np.ndarray, " k"]
    euler: Float[np.ndarray, " k"]
    one_step: Float[np.ndarray, " k"]
    coefficient: float
    aliasing: float = 0.0

    def fit(self, what: str) -> PowerLaw:
        return power_law(self.eps, getattr(self, what))


@dataclasses.dataclass(frozen=True)
class Result:
    spec: Spec
    rates: list[Rates]


FAST = Spec(t1=0.25, steps=(2, 4, 8), nodes=160, plane_steps=())


def laws() -> dict[str, af.Gaussian | af.GaussianMixture]:
    """The starts; the mixture on the line is `1/2 N(-2, 1) + 1/2 N(2, 1)`."""
    return {
        "N(0, 1)": af.Gaussian([0.0], [[1.0]]),
        "N(0, 1/4)": af.Gaussian([0.0], [[0.25]]),
        "mixture on the line": af.GaussianMixture([0.5, 0.5], [[-2.0], [2.0]], [[[1.0]], [[1.0]]]),
        "mixture in the plane": af.GaussianMixture(
            [0.4, 0.6], [[-1.5, 0.0], [1.5, 0.5]], [[[1.0, 0.2], [0.2, 1.0]], [[1.2, -0.3], [-0.3, 1.0]]]
        ),
    }


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """Every law, every eps."""
    spec = Spec() if spec is None else spec
    on_line, in_plane = (spec.steps, spec.nodes), (spec.plane_steps, spec.plane_nodes)
    plans = {name: (law, *(on_line if law.dim == 1 else in_plane)) for name, law in laws().items()}
    return Result(spec, [measure(name, law, spec.t1, steps, nodes, progress) for name, (law, steps, nodes) in plans.items() if steps])


def measure(name: str, law: af.Gaussian | af.GaussianMixture, t1: float, steps: Sequence[int], nodes: int, progress: bool = False) -> Rates:
    """Both schemes on one law: in closed form for a Gaussian, on quadrature tokens for a mixture."""
    start = law if isinstance(law, af.Gaussian) else _tokens(law, nodes)
    found = np.array(parts(lambda count: _errors(law, start, t1 / count, count), steps, name, progress))
    aliasing = 0.0 if isinstance(start, af.Gaussian) else _aliasing(law, start, t1, t1 / max(steps))
    return Rates(name, t1 / np.array(steps), found[:, 0], found[:, 1], found[:, 2], coefficient(law, start), aliasing)


def _errors(law: Any, start: Any, eps: float, count: int) -> tuple[float, float, float]:
    """The largest errors of the bridge and of Euler over so many steps, and their distance over eps after one."""
    euler, exact, worst, one_step = start, start, np.zeros(2), 0.0
    path = af.gradient_flow(start, eps, count, tolerance=_BRIDGE)
    for k in range(count):
        now, bridge = af.heat_flow(law, k * eps), path[k + 1]
        euler = _euler_step(euler, now, eps)
        exact = _moved(exact, now, eps)
        if k == 0:
            one_step = _distance(bridge, euler) / eps
        worst = np.maximum(worst, [_distance(bridge, exact), _distance(euler, exact)])
    return float(worst[0]), float(worst[1]), one_step


def _euler_step(mu: Any, now: Any, eps: float) -> Any:
    """With the score of mu itself if it is a Gaussian; tokens with that of the exact law of now."""
    if isinstance(mu, af.Gaussian):
        inverse = jnp.linalg.inv(mu.cov)
        return af.euler_step(mu, af.Affine(-inverse, inverse @ mu.mean), eps)
    return af.euler_step(mu, partial(_score, now), eps)


def _moved(mu: Any, now: Any, eps: float) -> Any:
    """The exact heat flow for a time eps, from the exact law of now."""
    return af.heat_flow(mu, eps) if isinstance(mu, af.Gaussian) else mu.with_state(af.characteristics(now, mu.points, eps))


def _tokens(law: af.GaussianMixture, nodes: int) -> af.Particles:
    grid = af.quadrature(law, nodes)
    points, weights = np.asarray(grid.points), np.asarray(grid.weights)
    kept = weights > _LIGHT * weights.max()
    return af.Particles(points[kept], weights=weights[kept])


def _distance(mu: Any, nu: Any) -> float:
    """W2 of Gaussians and on the line; in the plane the distance token to token, an upper bound."""
    if mu.dim == 1:
        return float(_wasserstein2(mu, nu))
    return float(np.sqrt(np.asarray(mu.weights) @ np.sum((np.asarray(mu.points) - np.asarray(nu.points)) ** 2, axis=1)))


@eqx.filter_jit
def _wasserstein2(mu: Any, nu: Any) -> Float[Array, ""]:
    return af.wasserstein2(mu, nu)


def _aliasing(law: Any, tokens: af.Particles, t1: float, eps: float) -> float:
    """`e^{-2 pi^2 eps / h^2}`: the grid began with equal spacings, and the heat flow widens a Gaussian by `((v + t) / v)^1/2`."""
    spacing = max(np.diff(np.unique(axis)).max() for axis in np.asarray(tokens.points).T)
    narrowest = np.linalg.eigvalsh(np.asarray(law.covs)).min()
    return math.exp(-2 * math.pi**2 * eps / (spacing**2 * (narrowest + t1) / narrowest))


def coefficient(law: Any, tokens: Any) -> float:
    """The norm in L2(rho) of `1/8 grad Laplace log rho + 1/16 grad |grad log rho|^2`: in closed form, or by automatic derivatives of the
    score at quadrature tokens of the law."""
    if isinstance(law, af.Gaussian):
        return float(law.cov[0, 0]) ** -1.5 / 8
    squares = np.sum(np.asarray(_second_term(law, tokens.points)) ** 2, axis=1)
    return math.sqrt(np.asarray(tokens.weights) @ squares)


@eqx.filter_jit
def _second_term(law: af.GaussianMixture, points: Float[Array, "n d"]) -> Float[Array, "n d"]:
    def potential(x: Float[Array, " d"]) -> Float[Array, ""]:
        score = lambda x: law.score(x[None])[0]  # noqa: E731
        return jnp.trace(jax.jacfwd(score)(x)) / 8 + jnp.sum(score(x) ** 2) / 16

    return jax.vmap(jax.jacfwd(potential))(points)


@eqx.filter_jit
def _score(law: af.GaussianMixture, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    return law.score(x)


def checks(result: Result) -> list[Check]:
    """The orders, the limit of one step, and that the tokens are a quadrature good enough to see the smallest error."""
    found = []
    for rates in result.rates:
        limit = (rates.one_step / rates.eps)[rates.eps.argmin()]
        close = "one step" if rates.aliasing else "gaussian"
        found += [
            Check(f"{rates.law}: order of the bridge", rates.fit("bridge").slope, 2.0, 0.15, "bridge"),
            Check(f"{rates.law}: order of Euler", rates.fit("euler").slope, 1.0, 0.15, "euler"),
            Check(rf"{rates.law}: order of $W_2/\varepsilon$ between Euler and bridge", rates.fit("one_step").slope, 1.0, 0.15, close),
            Check(
                rf"{rates.law}: $W_2/\varepsilon^2$ between Euler and bridge",
                float(limit),
                rates.coefficient,
                0.2 * rates.coefficient,
                close,
            ),
        ]
        if rates.aliasing:
            found.append(
                Check(f"{rates.law}: aliasing of the tokens over the smallest error", float(rates.aliasing / rates.bridge.min()), 0.0, 0.1)
            )
    return found


def measured(result: Result) -> dict[str, Any]:
    """Every error; the fitted orders with the half-width of their 95 % interval, which is wide where the points bend; and the order between
    the two smallest eps."""
    whats = ("bridge", "euler", "one_step")

    def last(rates: Rates, what: str) -> float:
        i, j = np.argsort(rates.eps)[:2]
        return float(np.log(getattr(rates, what)[j] / getattr(rates, what)[i]) / np.log(rates.eps[j] / rates.eps[i]))

    return {
        rates.law: dataclasses.asdict(rates)
        | {"order": {what: [rates.fit(what).slope, rates.fit(what).half_width] for what in whats}}
        | {"last order": {what: last(rates, what) for what in whats}}
        for rates in result.rates
    }


def figure(result: Result) -> "dict[str, matplotlib.figure.Figure]":
    """The errors of both schemes against eps, a panel a law; the distance of the schemes after one step."""
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.72 * af.plot.PAGE)
        for ax, rates in zip(page.subplots(2, 2, sharey=True).flat, result.rates):
            _lines(ax, rates, {"bridge": "bridge", "euler": "Euler"})
            ax.set_title(rates.law)
        for ax in page.axes[::2]:
            ax.set_ylabel(r"$\sup_{t \leq T} W_2$ to the heat flow")
        column = af.plot.new_figure(1.3 * af.plot.COLUMN, af.plot.COLUMN)
        ax = column.add_subplot()
        for color, rates in zip(af.plot.COLORS, result.rates):
            slope = rates.fit("one_step")
            ax.loglog(rates.eps, rates.one_step, "o", color=color, markersize=4, label=f"{rates.law}: {_order(slope)}")
            ax.loglog(rates.eps, rates.coefficient * rates.eps, "--", color=color, linewidth=0.8)
        _ticks(ax, result.rates[0].eps)
        ax.set(ylabel=r"$W_2(\mathrm{Euler}, \mathrm{bridge})\,/\,\varepsilon$ after one step")
        ax.legend(title="order; dashed: the limit $c\\,\\varepsilon$")
    return {"rates": page, "one_step": column}


def _lines(ax: Any, rates: Rates, schemes: dict[str, str]) -> None:
    across = np.geomspace(rates.eps.min(), rates.eps.max(), 50)
    for color, (scheme, label) in zip(af.plot.COLORS, schemes.items()):
        line = rates.fit(scheme)
        ax.fill_between(across, *line.band(across), color=color, alpha=0.25, linewidth=0)
        ax.loglog(across, line(across), color=color, linewidth=0.9)
        ax.loglog(rates.eps, getattr(rates, scheme), "o", color=color, markersize=4, label=f"{label}: {_order(line)}")
    ax.legend(title="order")
    _ticks(ax, rates.eps)


def _ticks(ax: Any, eps: np.ndarray) -> None:
    """The temperatures themselves: there is hardly a decade of them."""
    ax.set_xticks(eps, [f"{value:.3g}" for value in eps])
    ax.set_xticks([], minor=True)
    ax.set_xlabel(r"$\varepsilon$")


def _order(line: PowerLaw) -> str:
    return f"${line.slope:.2f} \\pm {line.half_width:.2f}$"
