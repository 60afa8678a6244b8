r"""Consensus-based optimization is softmax attention: the same drift, the same Laplace principle (arXiv:2211.05238, arXiv:2605.10931).

Polarized consensus-based optimization of a function $f$, here without noise, moves particles by

$$x' = m(x) - x, \qquad m(x) = \frac{\int k(x, y)\, e^{-\beta f(y)}\, y \,d\rho(y)}{\int k(x, y)\, e^{-\beta f(y)} \,d\rho(y)}.$$

With $k = e^{-|x-y|^2 / (2\kappa^2)}$ and $f(y) = \frac12 \langle y - c, H (y - c)\rangle$ the logarithm of the weight is a logit,
$A = R = I / \kappa^2$, $P = I / \kappa^2 + \beta H$, $p = \beta H c$, and the drift is that of normalized softmax attention with $V = I$.
Without polarization, $k = 1$, $m$ is one point for all. Then, for a Gaussian $\mathcal{N}(m, S)$,

- Laplace's principle: $m_\beta - c = (S^{-1} + \beta H)^{-1} S^{-1} (m - c)$, which is $H^{-1} S^{-1} (m - c) / \beta$ up to
  $O(\beta^{-2})$;
- the flow: $S = S_0 e^{-2t}$, and where $H$ and $S_0$ commute $m - c$ ends at $(I + \beta H S_0)^{-1/2} (m_0 - c)$: the particles agree on
  a point that is of order $\beta^{-1/2}$ from the minimizer.

On the circle $f(y) = -\frac12 \langle y, B y\rangle$ has two minimizers, the top eigenvectors of $B$. Polarized,
$k = e^{\kappa\langle x, y\rangle}$, particles find both; with $k = 1$ they agree on one point.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Annotated, Any

import jax.numpy as jnp
import numpy as np
import scipy.integrate
from jaxtyping import Float

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import RISING, Checked, Meta, Positive, Rule, Seed
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

# The objective, the start and the polarization in the plane; H and S do not commute, H and the identity do.
_H, _C = np.array([[1.5, 0.5], [0.5, 1.0]]), np.array([0.5, -0.5])
_M, _S, _KAPPA = np.array([-1.0, 1.0]), np.array([[1.0, -0.3], [-0.3, 0.7]]), 0.8
# The objective on the circle, with minimizers (1, 0) and (-1, 0), and the sharpness of its polarization.
_B, _SHARP = np.diag([1.0, 0.0]), 8.0

CLAIMS = {
    "drift": Claim(
        "The drift of polarized consensus-based optimization with a Gaussian kernel and a quadratic $f$ is normalized softmax attention "
        r"with $A = I/\kappa^2$, $P = I/\kappa^2 + \beta H$, $p = \beta H c$, $V = I$.",
        "derived here, after arXiv:2605.10931",
        "proved",
    ),
    "laplace": Claim(
        r"For a Gaussian $N(m, S)$ the consensus point without polarization is $c + (S^{-1} + \beta H)^{-1} S^{-1} (m - c)$, at rate "
        r"$1/\beta$ from $c$.",
        "the Laplace principle of arXiv:2211.05238 and arXiv:2605.10931, here in closed form",
        "proved",
    ),
    "agreement": Claim(
        "From $N(m_0, S_0)$, with $H S_0 = S_0 H$, particles without polarization and noise agree on "
        r"$c + (I + \beta H S_0)^{-1/2} (m_0 - c)$.",
        "derived here",
        "proved",
    ),
    "polarized": Claim(
        "Where $f$ has two minimizers, polarized particles gather near both; without polarization they agree on one point.",
        "arXiv:2211.05238",
        "numerics",
    ),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """How many particles, how sharp, how long."""

    n: Annotated[int, Meta(ge=8)] = 128
    """how many particles"""
    betas: Annotated[
        tuple[Positive, ...], Meta(min_length=3), RISING, Rule("the last from 100 to 3000", lambda betas: 100 <= betas[-1] <= 3000)
    ] = (1.0, 10.0, 100.0, 1000.0)
    """the inverse temperatures in the plane, rising"""
    beta: Positive = 8.0
    """the inverse temperature on the circle"""
    t1: Annotated[float, Meta(ge=8, le=100)] = 12.0
    """the final time"""
    seed: Seed = 0
    """of the particles"""


@dataclasses.dataclass(frozen=True)
class Result:
    """The drift by attention and by its definition; consensus points of a Gaussian by beta, by attention and by quadrature; where the mean
    of a Gaussian ends; paths on the circle, polarized and not, and where these end with SciPy."""

    spec: Spec
    drift: Float[np.ndarray, "n 2"]
    drift_by_hand: Float[np.ndarray, "n 2"]
    points: Float[np.ndarray, "b 2"]
    points_by_hand: Float[np.ndarray, "b 2"]
    agreed: Float[np.ndarray, "b 2"]
    spread: float
    paths: dict[str, af.Path]
    by_hand: dict[str, Float[np.ndarray, "n 2"]]


FAST = Spec(n=32, betas=(1.0, 10.0, 100.0), t1=10.0)


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """In the plane, then on the circle."""
    spec = Spec() if spec is None else spec
    cloud = _M + np.random.default_rng(spec.seed).normal(size=(spec.n, 2))
    law = attention(spec.betas[1], 1 / _KAPPA**2)
    drift = np.asarray(af.normalized_update(law).at(af.Particles(cloud))(jnp.asarray(cloud)))
    found = parts(_gaussians, [(beta, spec) for beta in spec.betas], "betas", progress)
    # More on one side than on the other: from a symmetric start the plain particles would stay.
    angles = np.random.default_rng(spec.seed).vonmises(0.8, 0.6, size=spec.n)
    ring = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    start, paths, by_hand = af.Particles(ring, space=af.Sphere()), {}, {}
    for name, sharp in {"polarized": _SHARP, "plain": 0.0}.items():
        field = af.Attention(af.Quadratic(jnp.asarray(sharp * np.eye(2)), jnp.asarray(-spec.beta * _B)), np.eye(2))
        paths[name] = af.solve(field, start, spec.t1, save_at=120, rtol=1e-9, atol=1e-11)
        by_hand[name] = _circle(ring, sharp, spec)
    points, quadrature, agreed, spreads = zip(*found)
    drifts = drift, drift_by_hand(cloud, spec.betas[1])
    return Result(spec, *drifts, np.array(points), np.array(quadrature), np.array(agreed), max(spreads), paths, by_hand)


def attention(beta: float, sharp: float) -> af.Attention:
    """The law whose normalized drift is that of the particles; `sharp` is 1/kappa^2."""
    kernel = sharp * np.eye(2)
    logit = af.Quadratic(jnp.asarray(kernel), P=jnp.asarray(kernel + beta * _H), R=jnp.asarray(kernel), p=jnp.asarray(beta * _H @ _C))
    return af.Attention(logit, np.eye(2))


def objective(y: Float[np.ndarray, "... 2"]) -> Float[np.ndarray, "..."]:
    return 0.5 * np.einsum("...i,ij,...j->...", y - _C, _H, y - _C)


def drift_by_hand(x: Float[np.ndarray, "n 2"], beta: float) -> Float[np.ndarray, "n 2"]:
    """`m(x) - x` by its definition."""
    kernel = np.exp(-((x[:, None] - x[None]) ** 2).sum(axis=2) / (2 * _KAPPA**2))
    weights = kernel * np.exp(-beta * objective(x))[None]
    return weights @ x / weights.sum(axis=1, keepdims=True) - x


def _gaussians(item: tuple[float, Spec]) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """For one beta: the consensus point of N(m, S), the same by quadrature, where N(m, I) ends, and how narrow it is then."""
    beta, spec = item
    law = attention(beta, 0.0)
    point = np.asarray(law.at(af.Gaussian(_M, _S))(jnp.zeros((1, 2))))[0]
    # The trapezoidal rule is exact to round-off for smooth functions that vanish at the ends, once it resolves them.
    line = np.arange(-7, 7, 0.5 / np.sqrt(2 * beta + 2))
    y = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1)
    weights = np.exp(-beta * objective(y) - 0.5 * np.einsum("...i,ij,...j->...", y - _M, np.linalg.inv(_S), y - _M))
    end = af.solve(af.normalized_update(law), af.Gaussian(_M, np.eye(2)), spec.t1, save_at=1, rtol=1e-10, atol=1e-14).final
    narrow = float(np.abs(np.asarray(end.cov) / np.exp(-2 * spec.t1) - np.eye(2)).max())
    return point, np.einsum("ij,ijk->k", weights, y) / weights.sum(), np.asarray(end.mean), narrow


def _circle(ring: Float[np.ndarray, "n 2"], sharp: float, spec: Spec) -> Float[np.ndarray, "n 2"]:
    """Where the particles of the circle end, as angles moved by SciPy."""

    def rate(t: float, theta: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        apart = theta[None] - theta[:, None]
        weights = np.exp(sharp * np.cos(apart) + spec.beta / 2 * np.cos(theta)[None] ** 2)
        return (weights * np.sin(apart)).sum(axis=1) / weights.sum(axis=1)

    angles = np.arctan2(ring[:, 1], ring[:, 0])
    final = scipy.integrate.solve_ivp(rate, (0.0, spec.t1), angles, method="DOP853", rtol=1e-10, atol=1e-12).y[:, -1]
    return np.stack([np.cos(final), np.sin(final)], axis=1)


def agreement(beta: Any, t: float = math.inf) -> Float[np.ndarray, "2"]:
    """Where particles from N(m, I) agree: `c + (I + beta H)^{-1/2} (m - c)`. Their mean at time t is `(I + beta H e^{-2t})^{1/2}` of the
    way from c to m times that: in every eigenvector of H it obeys `u' = -beta h s u / (1 + beta h s)`, s = e^{-2t}."""
    values, vectors = np.linalg.eigh(_H)
    return _C + vectors @ ((vectors.T @ (_M - _C)) * np.sqrt((1 + beta * values * math.exp(-2 * t)) / (1 + beta * values)))


def checks(result: Result) -> list[Check]:
    """Against definitions, quadrature, closed forms and SciPy."""
    spec, betas = result.spec, np.array(result.spec.betas)
    first = np.linalg.solve(_H, np.linalg.solve(_S, _M - _C))
    scaled = betas[-1] * (result.points[-1] - _C)
    apart = np.linalg.norm(result.agreed - np.array([agreement(beta, spec.t1) for beta in betas]), axis=1)
    far = np.linalg.norm([agreement(beta) - _C for beta in betas], axis=1)
    ends = {name: np.asarray(path.states)[-1] for name, path in result.paths.items()}
    x = ends["polarized"][:, 0]
    return [
        Check("drift: attention against the definition", float(np.abs(result.drift - result.drift_by_hand).max()), 0.0, 1e-11, "drift"),
        Check("consensus points against quadrature", float(np.abs(result.points - result.points_by_hand).max()), 0.0, 1e-10, "laplace"),
        Check(
            r"$\beta (m_\beta - c)$ over its limit", float(np.linalg.norm(scaled) / np.linalg.norm(first)), 1.0, 3 / betas[-1], "laplace"
        ),
        Check("agreement: mean at $t_1$ against the closed form, relative", float((apart / far).max()), 0.0, 1e-9, "agreement"),
        Check("agreement: covariance $e^{2t} S$ less its start", result.spread, 0.0, 1e-3, "agreement"),
        *(
            Check(f"{name}: ends on the circle against SciPy", float(np.abs(ends[name] - result.by_hand[name]).max()), 0.0, 1e-5)
            for name in ends
        ),
        Check("polarized: largest distance from the nearer minimizer", float(np.sqrt(2 - 2 * np.abs(x)).max()), 0.0, 0.3, "polarized"),
        Check("polarized: share of particles at the first minimizer", float((x > 0).mean()), 0.5, 0.4, "polarized"),
        Check("plain: diameter of the cloud at the end", float(np.ptp(ends["plain"], axis=0).max()), 0.0, 0.05, "polarized"),
    ]


def measured(result: Result) -> dict[str, Any]:
    """The exponents in beta of the distances from the minimizer."""
    far = {"consensus point": result.points, "agreement": result.agreed}
    distances = {name: np.linalg.norm(points - _C, axis=1) for name, points in far.items()}
    return {
        name: {"distance": d, "exponent": float(np.polyfit(np.log(result.spec.betas), np.log(d), 1)[0])} for name, d in distances.items()
    }


def figure(result: Result) -> "matplotlib.figure.Figure":
    """Distances from the minimizer against beta, and angles on the circle against time."""
    spec, betas = result.spec, np.geomspace(result.spec.betas[0], result.spec.betas[-1], 100)
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.36 * af.plot.PAGE)
        left, *others = page.subplots(1, 3, width_ratios=[1.2, 1, 1])
        closed = [_C + np.linalg.solve(np.linalg.inv(_S) + beta * _H, np.linalg.solve(_S, _M - _C)) for beta in betas]
        ends = [agreement(beta) for beta in betas]
        for color, name, points, lines in zip(
            af.plot.COLORS, ("consensus point", "agreement"), (result.points, result.agreed), (closed, ends)
        ):
            left.loglog(betas, np.linalg.norm(np.array(lines) - _C, axis=1), color=color, linewidth=1)
            left.loglog(spec.betas, np.linalg.norm(points - _C, axis=1), "o", color=color, markersize=4, label=name)
        left.set(xlabel=r"$\beta$", ylabel="distance from the minimizer")
        left.legend(loc="lower left")
        for ax, (name, path) in zip(others, result.paths.items()):
            x = np.asarray(path.states)[:, :: max(1, spec.n // 64)]
            angles = np.arctan2(x[..., 1], x[..., 0])
            colors = np.where(angles[0] ** 2 < (np.pi / 2) ** 2, af.plot.COLORS[2], af.plot.COLORS[3])
            # A line is broken where it leaves at the one end to come back at the other.
            angles[1:][np.abs(np.diff(angles, axis=0)) > np.pi] = np.nan
            for line, color in zip(angles.T, colors):
                ax.plot(path.ts, line, color=color, linewidth=0.5)
            ax.set(xlabel="$t$", title=name, ylim=(-1.05 * np.pi, 1.05 * np.pi))
            ax.set_yticks([-np.pi, 0, np.pi], ["$-\\pi$", "0", "$\\pi$"])
        others[0].set_ylabel("angle")
    return page
