r"""Clusters of simple attention live for times $e^{\beta(1 - c)}$ at cosine $c$, and the closest pair merges first (arXiv:2410.06833).

Tokens on the circle gather in a few clusters, which then seem to rest: each merger takes a time that is exponential in $\beta$, so that
the energy climbs a staircase in $\log t$. Shown here, for five tokens:

- $\beta = 4$ to $t = 400$, moved by `solve`: the energy with its plateaus;
- $\beta$ from 500 to 4000 in physical time, to $\log t$ of some thousands, where no stepper of $t$ comes: the mergers and their times,
  against $\log t = \beta (1 - c) - \log(\beta (1 - c^2) (m_1/m_2 + m_2/m_1))$ for two clusters of masses $m_1$, $m_2$ at cosine $c$. In
  every state the pair that merges next is the closest one;
- the time in which an angle with $u' = -c \log(\beta) \sin u$ comes down to $(\log(\beta) / \beta)^{1/2}$, which tends to $1/(2c)$;
- $k$ clusters at equal angles are saddles: the spectrum of the flow there, by automatic differentiation, against its closed form.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Annotated, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import Checked, Meta, Positive, Rule
from attnflow.studies.tools.data import Of
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

# The last inverse temperature of the angle, and where it starts: corrections are of order log log(beta) / log(beta).
_LARGE, _ANGLE = 1e300, 1.0

_PAPER = "arXiv:2410.06833"
CLAIMS = {
    "times": Claim(r"Separated clusters $x$, $y$ stay apart for times of order $e^{\beta (1 - \langle x, y \rangle)}$.", _PAPER, "proved"),
    "staircase": Claim(
        r"On the scale of $\log t$ the energy climbs a staircase to its maximum, from saddle to saddle; clusters at equal angles are "
        "saddles.",
        _PAPER,
        "numerics",
    ),
    "closest": Claim("Of several clusters the closest pair merges first.", _PAPER, "numerics"),
    "window": Claim(
        r"An angle with $u' = -c \log(\beta) \sin u$ comes down to $(\log(\beta)/\beta)^{1/2}$ in the time "
        r"$1/(2c) + O(\log \log \beta / \log \beta)$.",
        _PAPER,
        "sharper than stated",
        "the time $2/c$",
    ),
}


def _different(angles: tuple[float, ...]) -> bool:
    return len({round(angle % (2 * math.pi), 9) for angle in angles}) == len(angles)


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """Which tokens, how sharp, how long."""

    angles: Annotated[tuple[float, ...], Meta(min_length=3), Rule("all different on the circle", _different)] = (0.0, 0.9, 2.1, 3.3, 4.9)
    """where the tokens start, as angles"""
    beta: Positive = 4.0
    """the inverse temperature of the run in t"""
    t1: Positive = 400.0
    """the end of that run"""
    betas: Annotated[tuple[Annotated[float, Meta(ge=50)], ...], Meta(min_length=1, description="where clusters are apart")] = (
        500.0,
        1000.0,
        2000.0,
        4000.0,
    )
    """the inverse temperatures of the staircases"""
    polygon: Annotated[int, Meta(ge=2)] = 3
    """how many clusters the saddle has"""


@dataclasses.dataclass(frozen=True)
class Result:
    """The run in t with its energy, the staircases by inverse temperature, and the spectrum of the saddle two ways."""

    spec: Spec
    ts: Float[np.ndarray, " t"]
    states: Float[np.ndarray, "t n d"]
    energy: Float[np.ndarray, " t"]
    stairs: list[af.Staircase]
    spectrum: Float[np.ndarray, " k"]
    exact: Float[np.ndarray, " k"]


FAST = Spec(t1=40.0, betas=(200.0, 400.0))


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """The run at a moderate beta, the staircases, the saddle."""
    spec = Spec() if spec is None else spec
    mu = on_circle(np.array(spec.angles))
    stair = Of(af.Staircase, plateaus=[af.Particles(mu.points, np.ones(len(mu.points)), space=af.Sphere())])
    (climb,) = parts(lambda start: _climb(start, spec), [mu], "plateaus", progress)
    stairs = parts(lambda beta: af.staircase(af.simple_attention(beta, 2), mu), spec.betas, "mergers", progress, like=stair)
    corners = on_circle(2 * np.pi * np.arange(spec.polygon) / spec.polygon)
    found = af.linearization(af.simple_attention(spec.beta, 2, af.Unnormalized(-spec.beta)), corners)
    return Result(spec, *climb, stairs, np.asarray(found.real), polygon_spectrum(spec))


def _climb(mu: af.Particles, spec: Spec) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, states and energy at the moderate beta."""
    ts = np.concatenate([[0.0], np.geomspace(1e-2, spec.t1, 400)])
    path = af.solve(af.simple_attention(spec.beta, 2), mu, spec.t1, save_at=ts, observe={"energy": lambda nu: scaled_energy(nu, spec.beta)})
    return np.asarray(path.ts), np.asarray(path.states), np.asarray(path.observed["energy"].values)


def on_circle(angles: np.ndarray) -> af.Particles:
    return af.Particles(np.stack([np.cos(angles), np.sin(angles)], axis=1), space=af.Sphere())


def scaled_energy(mu: Any, beta: float) -> Any:
    """`sum_ij w_i w_j e^{beta(<x_i,x_j> - 1)}`, which is the sum of squared masses of clusters that are far apart."""
    return 2 * beta * af.energy(mu, beta, -beta)


def polygon_spectrum(spec: Spec) -> np.ndarray:
    """Of USA, scaled by e^-beta, at k equal clusters at equal angles: with `F(u) = e^{beta(cos u - 1)} sin u` the eigenvalues
    `1/k sum_j F'(2 pi j/k) (cos(2 pi j m/k) - 1)`, m = 0, ..., k - 1."""
    k, beta = spec.polygon, spec.beta
    u = 2 * np.pi * np.arange(1, k) / k
    slope = np.exp(beta * (np.cos(u) - 1)) * (np.cos(u) - beta * np.sin(u) ** 2)
    return np.sort([(slope * (np.cos(m * u) - 1)).sum() / k for m in range(k)])[::-1]


def predicted(stair: af.Staircase, beta: float) -> np.ndarray:
    """The log times of the theory, from the clusters before each merger."""
    times = []
    for labels, pair, cosine in zip(stair.labels[:-1], stair.pairs, stair.cosines, strict=True):
        masses = [float(np.mean(labels == labels[token])) for token in pair]
        times.append(af.theory.merger_log_time(cosine, beta, (masses[0], masses[1])))
    return np.array(times)


def largest_cosines(stair: af.Staircase) -> np.ndarray:
    """Of two different clusters before each merger."""
    found = []
    for mu in stair.plateaus[: len(stair.pairs)]:
        points = np.asarray(mu.points)
        found.append((points @ points.T)[~np.eye(len(points), dtype=bool)].max())
    return np.array(found)


def window_time(beta: float) -> float:
    """When `u' = -log(beta) sin u` comes down to the window, by the trapezoidal rule in log u."""
    u = np.exp(np.linspace(math.log(math.log(beta) / beta) / 2, math.log(_ANGLE), 200_001))
    return float(np.trapezoid(u / np.sin(u), np.log(u)) / math.log(beta))


def checks(result: Result) -> list[Check]:
    """Who merges when, how the energy climbs, and what the saddle is."""
    spec = result.spec
    falls = float(np.maximum(-np.diff(result.energy), 0).max())
    found = [Check(rf"$\beta = {spec.beta:g}$: the energy never falls", falls, 0.0, 1e-9, "staircase")]
    for beta, stair in zip(spec.betas, result.stairs, strict=True):
        name = rf"$\beta = {beta:g}$: "
        off = float(np.abs(stair.log_times - predicted(stair, beta)).max())
        found += [
            Check(name + "clusters at the end", float(len(stair.plateaus[-1].points)), 1.0, 0.0, "staircase"),
            Check(name + "log times of mergers against theory", off, 0.0, 0.02 + 40 / beta, "times"),
            Check(
                name + "pair that merges is the closest", float(np.abs(stair.cosines - largest_cosines(stair)).max()), 0.0, 1e-12, "closest"
            ),
            Check(
                name + r"log time over $\beta$ of the first merger, against $1 - \cos$",
                stair.log_times[0] / beta,
                1 - stair.cosines[0],
                10 / beta,
                "times",
            ),
            Check(name + "error of the log times", float(stair.errors.max()), 0.0, 1e-2),
        ]
    spectrum = float(np.abs(result.spectrum - result.exact).max())
    beta = max(spec.betas)
    return [
        *found,
        Check(f"spectrum at {spec.polygon} clusters", spectrum, 0.0, 1e-13, "staircase"),
        Check("it is a saddle: largest eigenvalue is positive", float(result.spectrum[0] > 0), 1.0, 0.0, "staircase"),
        Check(rf"$\beta = {beta:g}$: time to the window against $\log \tan$", window_time(beta), af.theory.window_time(_ANGLE, beta), 1e-8),
        Check(rf"$\beta = 10^{{{math.log10(_LARGE):g}}}$: $c$ times the time to the window", window_time(_LARGE), 0.5, 0.02, "window"),
    ]


def measured(result: Result) -> dict[str, Any]:
    """The mergers by inverse temperature."""
    return {
        f"{beta:g}": {"log_times": stair.log_times, "theory": predicted(stair, beta), "pairs": stair.pairs, "cosines": stair.cosines}
        for beta, stair in zip(result.spec.betas, result.stairs, strict=True)
    }


def figure(result: Result) -> "matplotlib.figure.Figure":
    """Angles and energy at a moderate beta; the staircases; times against the theory."""
    spec = result.spec
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.62 * af.plot.PAGE)
        (angles, stairs), (energy, times) = page.subplots(2, 2)
        theta = np.unwrap(np.arctan2(result.states[..., 1], result.states[..., 0]), axis=0) / np.pi
        angles.semilogx(result.ts[1:], theta[1:], color=af.plot.COLORS[0], linewidth=0.9)
        angles.set(ylabel=r"angle$\,/\,\pi$", title=rf"$\beta = {spec.beta:g}$", xlabel="$t$")
        energy.semilogx(result.ts[1:], result.energy[1:], color=af.plot.COLORS[0])
        energy.set(xlabel="$t$", ylabel=r"energy $2\beta e^{-\beta} E$", ylim=(None, 1.03))
        for color, beta, stair in zip(af.plot.COLORS, spec.betas, result.stairs):
            levels = [float(jnp.sum(jnp.exp(2 * mu.log_weights))) for mu in stair.plateaus]
            stairs.stairs(
                levels, np.concatenate([[0], stair.log_times / beta, [2.1]]), baseline=None, color=color, label=rf"$\beta = {beta:g}$"
            )
            times.plot(predicted(stair, beta), stair.log_times, "o", color=color, markersize=4)
        for cosine in result.stairs[-1].cosines:
            stairs.axvline(1 - cosine, color="0.6", linewidth=0.6, linestyle=":", zorder=0)
        stairs.set(
            xlabel=r"$\log t\,/\,\beta$",
            ylabel=r"energy $2\beta e^{-\beta} E$",
            title=r"dotted: $1 - \langle x_i, x_j\rangle$ of the pair",
            ylim=(None, 1.03),
        )
        stairs.legend(loc="upper left")
        ends = np.array([min(s.log_times.min() for s in result.stairs) / 1.3, max(s.log_times.max() for s in result.stairs) * 1.3])
        times.loglog(ends, ends, color="0.6", linewidth=0.8, zorder=0)
        times.set(xlabel=r"$\log t$ of a merger, theory", ylabel="measured")
    return page
