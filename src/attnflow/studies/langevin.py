r"""The self-bridge is the stationary Langevin pair up to $o(\varepsilon^2)$ in symmetric relative entropy (arXiv:2406.10823).

Let $\ell$ be the law of $(X_0, X_\varepsilon)$ for $dX = \frac12 \nabla\log\rho\,dt + dB$ with $X_0 \sim \rho$, and $\pi$ the Schrodinger
bridge of $\rho$ to itself at temperature $\varepsilon$. The theorem bounds $H(\ell|\pi) + H(\pi|\ell)$ by $C\varepsilon^2$ times the root
of Fisher informations, one of which vanishes in the limit, so that it is $o(\varepsilon^2)$. The slides print the drift with the other
sign, under which $\rho$ is not stationary.

Measured here: it is of order $\varepsilon^4$. For $\mathcal{N}(0, 1)$ it is known in closed form,
$\frac{\varepsilon^4}{1152} (1 + O(\varepsilon))$. For a smooth law on the line a formal expansion gives
$\frac{\varepsilon^4}{72} \int (V'')^2 \,d\rho$, $V = \frac14 (\log\rho)'' + \frac18 ((\log\rho)')^2$: see `attnflow.theory.langevin`.
"""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from jaxtyping import Float

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import FALLING, GEOMETRIC, Checked, Meta, Positive
from attnflow.studies.tools.fit import power_law
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

CLAIMS = {
    "pair": Claim(
        r"$H(l \mid \pi) + H(\pi \mid l) = o(\varepsilon^2)$, $\pi$ the self-bridge of $\rho$, $l$ the law of $(X_0, X_\varepsilon)$, "
        r"$dX = \tfrac12 \nabla \log \rho\, dt + dB$, $X_0 \sim \rho$.",
        "slides on arXiv:2406.10823, Theorem 1",
        "misprint",
        r"$dX = \tfrac12 \nabla g\, dt + dB$ with $\rho = e^{-g}$",
        r"It is a sign. $dX = b\, dt + dB$ keeps $\rho$ if $b = \tfrac12 \nabla \log \rho$, by its Fokker-Planck equation, and "
        r"$\log \rho = -g$: the "
        r"drift is $-\tfrac12 \nabla g$. With the other sign $\rho$ is not stationary.",
        r"We are sure: a later slide has $x - \tfrac{\varepsilon}{2} \nabla g$, with the right sign.",
    ),
    "constant": Claim(
        r"On the line $H(l \mid \pi) + H(\pi \mid l)$ of bridge and Langevin pair is $\frac{\varepsilon^4}{72} \int (V'')^2\, d\rho$, "
        r"$V = \tfrac14 (\log \rho)'' + \tfrac18 ((\log \rho)')^2$.",
        "formal expansion in the setting of arXiv:2406.10823, Theorem 1",
        "numerics",
    ),
    "gaussian": Claim(
        r"For $N(0, 1)$ the symmetric entropy of bridge and Langevin pair is $\frac{\varepsilon^4}{1152} (1 + O(\varepsilon))$: "
        r"$\varepsilon^2$ is not sharp.",
        "a case of arXiv:2406.10823, Theorem 1",
        "proved",
    ),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """At which temperatures, on how fine a grid."""

    eps: Annotated[tuple[Positive, ...], Meta(min_length=4), FALLING, GEOMETRIC] = (0.4, 0.2, 0.1, 0.05, 0.025)
    """the temperatures, falling by one factor"""
    nodes: Annotated[int, Meta(ge=16)] = 600
    """how many points the grid has"""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One law: `divergence[k]` is `H(l|pi) + H(pi|l)` at `eps[k]` on the grid, `closed` its closed form if there is one, `constant` its
    limit over eps^4, `fisher` the Fisher information of the law."""

    law: str
    eps: Float[np.ndarray, " k"]
    divergence: Float[np.ndarray, " k"]
    constant: float
    fisher: float
    closed: Float[np.ndarray, " k"] | None = None

    @property
    def limit(self) -> float:
        """`divergence / (constant eps^4)` taken to eps = 0 through its last three values, with errors in eps and eps^2."""
        ratio, halving = (self.divergence / (self.constant * self.eps**4))[-3:], self.eps[-1] / self.eps[-2]
        first = (ratio[1:] - halving * ratio[:-1]) / (1 - halving)
        return float((first[1] - halving**2 * first[0]) / (1 - halving**2))


@dataclasses.dataclass(frozen=True)
class Result:
    spec: Spec
    comparisons: list[Comparison]


FAST = Spec(eps=(0.32, 0.16, 0.08, 0.04), nodes=400)


def laws() -> dict[str, af.Gaussian | af.GaussianMixture]:
    return {
        "N(0, 1)": af.Gaussian([0.0], [[1.0]]),
        "N(0, 1/4)": af.Gaussian([0.0], [[0.25]]),
        "1/2 N(-2, 1) + 1/2 N(2, 1)": af.GaussianMixture([0.5, 0.5], [[-2.0], [2.0]], [[[1.0]], [[1.0]]]),
        "0.3 N(-2, 1) + 0.7 N(1, 2)": af.GaussianMixture([0.3, 0.7], [[-2.0], [1.0]], [[[1.0]], [[2.0]]]),
    }


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """Every law, on the grid; Gaussians in closed form too."""
    spec = Spec() if spec is None else spec
    return Result(spec, parts(lambda item: compare(*item, spec), laws().items(), "bridge against Langevin", progress, like=Comparison))


def compare(name: str, law: Any, spec: Spec) -> Comparison:
    eps, gaussian = np.asarray(spec.eps), isinstance(law, af.Gaussian)
    on_grid = af.GaussianMixture([1.0], law.mean[None], law.cov[None]) if gaussian else law
    divergence = np.asarray(af.theory.langevin_divergence(on_grid, eps, spec.nodes))
    closed = np.asarray(af.theory.langevin_divergence(law, eps)) if gaussian else None
    constant, fisher = float(af.theory.langevin_constant(law)), float(af.theory.fisher_information(law))
    return Comparison(name, eps, divergence, constant, fisher, closed)


def checks(result: Result) -> list[Check]:
    """Grid against closed form, the order, and the constant, which for N(0, 1) is 1/1152."""
    found = []
    for c in result.comparisons:
        order = np.log(c.divergence[-1] / c.divergence[-2]) / np.log(c.eps[-1] / c.eps[-2])
        if c.closed is not None:
            found.append(Check(f"${_tex(c.law)}$: grid against closed form", float(np.abs(c.divergence / c.closed - 1).max()), 0.0, 1e-5))
        found += [
            Check(rf"${_tex(c.law)}$: order at the smallest $\varepsilon$", float(order), 4.0, 0.3, "pair"),
            Check(rf"${_tex(c.law)}$: divergence over the constant times $\varepsilon^4$ in the limit", c.limit, 1.0, 0.005, "constant"),
        ]
    standard = result.comparisons[0]
    found.append(
        Check(
            r"$N(0, 1)$: divergence over $\varepsilon^4/1152$ in the limit",
            standard.limit * standard.constant * 1152,
            1.0,
            1e-3,
            "gaussian",
        )
    )
    return found


def measured(result: Result) -> dict[str, Any]:
    """All numbers, with a power law fitted over the whole range, whose order bends up to 4 as eps falls."""
    numbers = {}
    for c in result.comparisons:
        fit = power_law(c.eps, c.divergence)
        numbers[c.law] = dataclasses.asdict(c) | {
            "limit": c.limit,
            "order over all eps": [fit.slope, fit.half_width],
            "over eps^2": c.divergence / c.eps**2,
        }
    return numbers


def figure(result: Result) -> "matplotlib.figure.Figure":
    """The divergence against eps; the same in units of its limit."""
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.42 * af.plot.PAGE)
        left, right = page.subplots(1, 2)
        for color, c in zip(af.plot.COLORS, result.comparisons):
            left.loglog(c.eps, c.divergence, "o", color=color, markersize=4, label=f"${_tex(c.law)}$,  $I = {c.fisher:.3g}$")
            left.loglog(c.eps, c.constant * c.eps**4, color=color, linewidth=0.8)
            ratio = c.divergence / (c.constant * c.eps**4)
            right.semilogx(c.eps, ratio, "o-", color=color, markersize=4)
            if c.closed is not None:
                exact = c.closed / (c.constant * c.eps**4)
                label = "closed form" if c is result.comparisons[0] else None
                right.semilogx(c.eps, exact, "x", color="0.2", markersize=6, markeredgewidth=0.8, label=label)
        corner = result.comparisons[0]
        left.loglog(corner.eps, 1e-2 * corner.eps**2, ":", color="0.4", linewidth=1)
        left.annotate(r"$\varepsilon^2$", (corner.eps[-2], 1.4e-2 * corner.eps[-2] ** 2), ha="right")
        left.set(ylabel=r"$H(\ell\,|\,\pi) + H(\pi\,|\,\ell)$")
        left.legend(loc="upper left", fontsize=7, title=r"lines: $\varepsilon^4/72 \int (V'')^2\, d\rho$", title_fontsize=7)
        left.set_ylim(top=30 * left.get_ylim()[1])
        right.legend(loc="lower left")
        right.axhline(1, color="0.6", linewidth=0.6, zorder=0)
        right.set(ylabel=r"the same over $\varepsilon^4/72 \int (V'')^2\, d\rho$", ylim=(0, 1.1))
        for ax in (left, right):
            ax.set_xticks(corner.eps, [f"{e:g}" for e in corner.eps])
            ax.set_xticks([], minor=True)
            ax.set_xlabel(r"$\varepsilon$")
    return page


def _tex(law: str) -> str:
    return law.replace("1/2", r"\frac{1}{2}").replace("1/4", r"\frac{1}{4}")
