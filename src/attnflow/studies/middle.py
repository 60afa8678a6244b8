r"""Lost in the middle: under causal attention with ALiBi the last token hears least those between (after arXiv:2605.09213).

That paper proves a U-shaped profile for causal tokens, independent and uniform, under a smallness condition. Derived here for tokens on
the circle: $\theta_i'$ is the softmax average of $\sin(\theta_j - \theta_i)$ over $j \le i$ with logits
$\beta\cos(\theta_i - \theta_j) - a (s_i - s_j)$, where the order $s_i$ runs from 0 to 1. Uniform tokens stay uniform, and a small mode
$e^{ik\theta}$, of size $\eta(s)$ at order $s$, obeys

$$\frac{d}{dt} \eta(s) = \lambda_k (P\eta)(s), \qquad (P\eta)(s) = \int_0^s \frac{g'(\tau)\, \eta(\tau)}{g(s)} \,d\tau,$$

with $\lambda_k = k^2 I_k(\beta) / (\beta I_0(\beta))$ and $g(s) = e^{as} - 1$. In the variable $g$, $P$ is the Cesaro mean, whose powers
are known: for $T = \lambda_k t$, the kernel of $e^{TP}$ from $\tau$ to the last token $s = 1$ is

$$G_T(\tau) = \frac{g'(\tau)}{g(1)} \sqrt{\frac{T}{L}}\, I_1(2\sqrt{T L}), \qquad L = \log\frac{g(1)}{g(\tau)}.$$

So $n\, \partial\theta_n(t) / \partial\theta_j(0) \to 2 \sum_k G_{\lambda_k t}(\tau_j) \cos k(\theta_n - \theta_j)$. The first factor of $G$
rises with $\tau$ (recency), the others fall from infinity at 0 (primacy). At $\tau = 1$ it rises just if $T < 2 (1 - e^{-a})$: then there
is a minimum between.

If all keys are the same, $e^{t(A - I)}$ with the ALiBi matrix $A$ itself is the rollout of attention; its last row is $G$ with $T = t$,
times $e^{-t}$, and in the end the first token has all of it.
"""

import dataclasses
import math
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import scipy.integrate
import scipy.linalg
import scipy.special
from jaxtyping import Float, Int

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import RISING, Checked, Meta, Positive
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

_HERE = "derived here, after arXiv:2605.09213"
CLAIMS = {
    "response": Claim(
        r"For causal tokens on the circle with ALiBi slope $a$, uniform at the start, $n\, \partial \theta_n(t) / \partial \theta_j(0)$ "
        r"tends to $2 \sum_k G_{\lambda_k t}(\tau) \cos k(\theta_n - \theta_j)$, "
        r"$G_T = \frac{a e^{a \tau}}{e^a - 1} \sqrt{T/L}\; I_1(2 \sqrt{T L})$, "
        r"$L = \log\bigl((e^a - 1)/(e^{a \tau} - 1)\bigr)$.",
        _HERE,
        "numerics",
    ),
    "shape": Claim(
        "The profile $G_T$ has primacy, and recency with one minimum between them, just if $T < 2 (1 - e^{-a})$; otherwise it falls.",
        _HERE,
        "numerics",
    ),
    "rollout": Claim(
        r"If all keys are equal, the last row of the rollout $e^{t(A - I)}$ is $e^{-t} G_t(\tau)/n$, and at last all is on the first "
        "token.",
        _HERE,
        "numerics",
    ),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """The law, and how many tokens."""

    beta: Positive = 1.0
    """the inverse temperature"""
    slope: Positive = 2.0
    """of ALiBi, over the whole sequence"""
    tokens: Annotated[tuple[Annotated[int, Meta(ge=32)], ...], Meta(min_length=2), RISING] = (128, 256, 512)
    """how many tokens on the circle, rising"""
    times: Annotated[tuple[Positive, ...], Meta(min_length=1), RISING] = (1.0, 2.0)
    """when to look, rising"""
    sources: Annotated[int, Meta(ge=4)] = 32
    """how many tokens are nudged"""
    rollout: Annotated[int, Meta(ge=32)] = 128
    """how many tokens with the same keys"""
    depths: Annotated[tuple[float, ...], Meta(min_length=2), RISING] = (0.5, 1.0, 3.0)
    """the depths $T$ of the rollout, rising; the last above $2 (1 - e^{-a})$ for the slope $a$, the others below"""

    def check(self) -> None:
        if not self.sources <= self.tokens[0] / 2:
            raise ValueError(f"sources must be at most half the tokens, got {self.sources} of {self.tokens[0]}")
        edge = 2 * (1 - math.exp(-self.slope))
        if not self.depths[-2] < edge < self.depths[-1]:
            raise ValueError(f"depths must rise, all but the last below {edge:.3g}, got {list(self.depths)}")


@dataclasses.dataclass(frozen=True)
class Result:
    """For each number of tokens the sources, `n dtheta_n / dtheta_j` `[time, source]` and the closed form; for the fewest tokens the same
    with NumPy for some sources; the last row of the rollout `[depth, token]`, that by SciPy, and what the first token has at last."""

    spec: Spec
    sources: list[Int[np.ndarray, " j"]]
    response: list[Float[np.ndarray, "t j"]]
    predicted: list[Float[np.ndarray, "t j"]]
    by_hand: Float[np.ndarray, "t i"]
    rollout: Float[np.ndarray, "T n"]
    exact: Float[np.ndarray, "T n"]
    first: float

    def error(self, i: int) -> Float[np.ndarray, " t"]:
        """The root mean square over sources of the response less its limit, relative to the limit."""
        apart = self.response[i] - self.predicted[i]
        return np.sqrt((apart**2).mean(axis=1) / (self.predicted[i] ** 2).mean(axis=1))


FAST = Spec(tokens=(64, 256), times=(1.0,), sources=16, rollout=64, depths=(0.8, 3.0))


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """Nudged tokens for each number of them, then the rollout."""
    spec = Spec() if spec is None else spec
    chosen = [np.unique(np.linspace(0.1 * n, n - 2, spec.sources).astype(int)) for n in spec.tokens]
    found = parts(lambda i: _respond(chosen[i], spec.tokens[i], spec), range(len(chosen)), "tokens", progress)
    by_hand = np.stack([_nudged(partial(_by_hand, spec=spec), j, spec.tokens[0]) for j in chosen[0][::8]], axis=1)
    predicted = [_predicted(sources, n, spec) for sources, n in zip(chosen, spec.tokens)]
    return Result(spec, chosen, found, predicted, by_hand, *_roll(spec))


def profile(tau: Any, depth: float, slope: float) -> Float[np.ndarray, " m"]:
    """`G_T(tau)` for 0 < tau < 1."""
    L = np.log(np.expm1(slope) / np.expm1(slope * np.asarray(tau)))
    root = np.sqrt(depth * L)
    return slope * np.exp(slope * np.asarray(tau)) / np.expm1(slope) * depth * scipy.special.iv(1, 2 * root) / root


def angles_of(n: int) -> Float[np.ndarray, " n"]:
    """Multiples of the golden angle: the first s of them are nearly uniform for every s, with less noise than independent ones."""
    return 2 * np.pi * np.mod((np.sqrt(5) - 1) / 2 * np.arange(n), 1)


def _predicted(sources: Int[np.ndarray, " j"], n: int, spec: Spec) -> Float[np.ndarray, "t j"]:
    angles, tau, k = angles_of(n), (sources + 0.5) / n, np.arange(1, 30)
    rates = k**2 * scipy.special.ive(k, spec.beta) / (spec.beta * scipy.special.ive(0, spec.beta))
    waves = np.cos(k[:, None] * (angles[-1] - angles[sources])[None])
    return np.array([2 * sum(profile(tau, rate * t, spec.slope) * wave for rate, wave in zip(rates, waves)) for t in spec.times])


def _respond(sources: Int[np.ndarray, " j"], n: int, spec: Spec) -> Float[np.ndarray, "t j"]:
    law = af.simple_attention(spec.beta, 2, mask=af.ALiBi(spec.slope))

    def last(angles: Float[np.ndarray, " n"]) -> Float[np.ndarray, " t"]:
        mu = af.Particles(np.stack([np.cos(angles), np.sin(angles)], axis=1), order="fraction", space=af.Sphere())
        # Fixed steps: those of two starts are the same, and their errors cancel in the difference.
        x = np.asarray(af.solve(law, mu, spec.times[-1], save_at=spec.times, step=0.05).states)[-len(spec.times) :, -1]
        return np.arctan2(x[:, 1], x[:, 0])

    return np.stack([_nudged(last, j, n) for j in sources], axis=1)


def _nudged(last: Any, j: Any, n: int, size: float = 1e-3) -> Float[np.ndarray, " t"]:
    """n times the derivative of the last angle in that of token j, by central differences."""
    nudge = size * (np.arange(n) == j)
    turn = last(angles_of(n) + nudge) - last(angles_of(n) - nudge)
    return n * (np.mod(turn + np.pi, 2 * np.pi) - np.pi) / (2 * size)


def _by_hand(angles: Float[np.ndarray, " n"], spec: Spec) -> Float[np.ndarray, " t"]:
    """The last angle at each time, by SciPy."""
    order = np.linspace(0, 1, len(angles))
    bias = np.where(np.tri(len(angles)) > 0, -spec.slope * (order[:, None] - order[None]), -np.inf)

    def rate(t: float, theta: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        apart = theta[None] - theta[:, None]
        weights = np.exp(spec.beta * np.cos(apart) + bias)
        return (weights * np.sin(apart)).sum(axis=1) / weights.sum(axis=1)

    span = (0.0, spec.times[-1])
    return scipy.integrate.solve_ivp(rate, span, angles, method="DOP853", t_eval=spec.times, rtol=1e-11, atol=1e-12).y[-1]


def _roll(spec: Spec) -> tuple[Float[np.ndarray, "T n"], Float[np.ndarray, "T n"], float]:
    """The last row of e^{t(A - I)} as a flow of unit vectors, by SciPy, and its first entry after long."""
    n, order = spec.rollout, np.linspace(0, 1, spec.rollout)
    nothing = np.zeros((1, n))
    field = af.normalized_update(af.Attention(af.dot_product(nothing, nothing), np.eye(n), mask=af.ALiBi(spec.slope)))
    times = [*spec.depths, 60.0 + n]
    start = af.Particles(np.eye(n), order="fraction")
    states = np.asarray(af.solve(field, start, times[-1], save_at=times, rtol=1e-9, atol=1e-11).states)[-len(times) :, -1]
    A = np.tril(np.exp(-spec.slope * (order[:, None] - order[None])))
    A = A / A.sum(axis=1, keepdims=True)
    return states[:-1], np.array([scipy.linalg.expm(T * (A - np.eye(n)))[-1] for T in spec.depths]), float(states[-1, 0])


def checks(result: Result) -> list[Check]:
    """The closed form against tokens, tokens and rollout against NumPy and SciPy, and the number of minima."""
    spec, n = result.spec, result.spec.rollout
    limit = np.array([np.exp(-T) * profile((np.arange(n) + 0.5) / n, T, spec.slope) / n for T in spec.depths])
    rolled = np.abs(result.rollout / limit - 1)[:, n // 10 : -1].max()
    errors = np.array([result.error(i) for i in range(len(spec.tokens))])
    order = np.log(errors[-1, 0] / errors[0, 0]) / np.log(spec.tokens[-1] / spec.tokens[0])
    apart = np.abs(result.response[0][:, ::8] - result.by_hand).max(), np.abs(result.rollout - result.exact).max()
    found = [
        Check(f"{spec.tokens[0]} tokens: response against SciPy", float(apart[0]), 0.0, 1e-4),
        Check("rollout against the matrix exponential of SciPy", float(apart[1]), 0.0, 1e-7),
        Check(f"$t = {spec.times[0]:g}$: exponent in $n$ of the error of the closed form", float(order), -1.0, 0.4, "response"),
        Check("rollout over the closed form, less 1, largest", float(rolled), 0.0, 6 / n, "rollout"),
        Check("rollout: share of the first token at last", result.first, 1.0, 1e-3, "rollout"),
    ]
    for t, error in zip(spec.times, errors[-1]):
        found.append(Check(f"$t = {t:g}$, {spec.tokens[-1]} tokens: error of the closed form", float(error), 0.0, 0.02 * t, "response"))
    for T, row in zip(spec.depths, result.rollout):
        below, slopes = float(2 * (1 - np.exp(-spec.slope)) > T), np.diff(row[:-1])
        minima = float(((slopes[:-1] < 0) & (slopes[1:] > 0)).sum())
        found.append(Check(f"$T = {T:g}$: minima of the profile between first and last", minima, below, 0.0, "shape"))
        found.append(Check(f"$T = {T:g}$: the profile rises at the end", float(slopes[-1] > 0), below, 0.0, "shape"))
        found.append(Check(f"$T = {T:g}$: the profile falls at the start", float(slopes[0] < 0), 1.0, 0.0, "shape"))
    return found


def measured(result: Result) -> dict[str, Any]:
    """The errors of the closed form by number of tokens, and where the middle is."""
    middle = {f"T = {T:g}": float(np.argmin(row[:-1])) / result.spec.rollout for T, row in zip(result.spec.depths, result.rollout)}
    return {"relative error": {n: result.error(i) for i, n in enumerate(result.spec.tokens)}, "least heard": middle}


def figure(result: Result) -> "matplotlib.figure.Figure":
    """The profile of the rollout at some depths, and responses against the closed form."""
    spec, n = result.spec, result.spec.rollout
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.4 * af.plot.PAGE)
        left, right = page.subplots(1, 2)
        tau, fine = (np.arange(n) + 0.5) / n, np.linspace(0.3 / n, 1 - 1e-6, 2000)
        for color, T, row in zip(af.plot.COLORS, spec.depths, result.rollout):
            left.semilogy(fine, profile(fine, T, spec.slope), color=color, linewidth=1, label=f"$T = {T:g}$")
            left.semilogy(tau[:-1:2], n * np.exp(T) * row[:-1:2], "o", color=color, markersize=2.5, markeredgewidth=0)
        left.set(xlabel="order of the source $\\tau$", ylabel="heard by the last token, $G_T(\\tau)$")
        left.legend(loc="upper center", ncols=len(spec.depths), bbox_to_anchor=(0.5, 1.14))
        for color, t, x, y in zip(af.plot.COLORS[3:], spec.times, result.predicted[-1], result.response[-1]):
            right.plot(x, y, "o", color=color, markersize=3, markeredgewidth=0, label=f"$t = {t:g}$")
        reach = [result.predicted[-1].min(), result.predicted[-1].max()]
        right.plot(reach, reach, color="0.6", linewidth=0.7, zorder=0)
        right.set(xlabel="closed form", ylabel=r"$n\, \partial\theta_n(t) / \partial\theta_j(0)$", title=f"{spec.tokens[-1]} tokens")
        right.legend(loc="upper left")
    return page
