r"""Where a network normalizes decides how fast tokens collapse: $e^{-2t}$ for Post-LN, $t^{-2}$ for Pre-LN and Peri-LN (arXiv:2510.22026).

Tokens $x = r\theta$ of which the law sees the directions, from orthonormal ones: they stay equiangular, with a common cosine $g$. As $g$
tends to 1 the average $a$ of a token tends to the token itself, so that $(1 - g)' = -2 (1 - g) / s$ and, with what each scheme makes of
$s$,

- Post-LN, $s = 1$: $1 - g$ falls like $e^{-2t}$;
- Pre-LN, $s = r$, and Peri-LN, $s = r |a|$, with $r' \to 1$: like $t^{-2}$;
- nGPT, $s = |a| / \alpha$: like $e^{-2\alpha t}$;
- square-root scaling, $s = \sqrt{1 + t}$: like $e^{-4\sqrt{t}}$;
- Mix-LN: Post-LN up to a time, then Pre-LN.
"""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from jaxtyping import Float

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import Checked, Meta, Positive
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

# For each scheme: the clock in which log(1 - g) tends to a line, the slope there, the end of time, and its name.
_ROOT = "sqrt"
_CLOCKS = {"post": np.asarray, "pre": np.log, "peri": np.log, "mix": np.log, "ngpt": np.asarray, _ROOT: lambda t: np.sqrt(1 + t)}
_NAMES = {"post": "Post-LN", "pre": "Pre-LN", "peri": "Peri-LN", "mix": "Mix-LN", "ngpt": "nGPT", _ROOT: "square root"}


_PAPER = "arXiv:2510.22026"
CLAIMS = {
    "post": Claim(r"Under Post-LN tokens collapse exponentially, $1 - \cos \sim e^{-2t}$.", _PAPER, "proved"),
    "pre": Claim(r"Under Pre-LN, Peri-LN and, in the end, Mix-LN tokens collapse algebraically, $1 - \cos \sim t^{-2}$.", _PAPER, "proved"),
    "ngpt": Claim(r"Under nGPT with step $\alpha$ tokens collapse exponentially, $1 - \cos \sim e^{-2 \alpha t}$.", _PAPER, "proved"),
    "sqrt": Claim(r"Under square-root scaling tokens collapse like $e^{-4 \sqrt{t}}$.", _PAPER, "proved"),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """How many tokens, how sharp, how long."""

    n: Annotated[int, Meta(ge=2)] = 8
    """how many tokens, orthonormal at the start"""
    beta: Positive = 1.0
    """the inverse temperature"""
    short: Annotated[float, Meta(ge=8, le=16, description="for 1 - cos above round-off")] = 12.0
    """the end of time where collapse is exponential"""
    long: Annotated[float, Meta(ge=100)] = 3000.0
    """the end of time where it is algebraic"""
    alpha: Positive = 0.5
    """the step of nGPT"""
    switch: Positive = 2.0
    """when Mix-LN goes from Post-LN to Pre-LN"""


@dataclasses.dataclass(frozen=True)
class Result:
    """For each scheme the times, the mean of 1 - cos over pairs, and the mean radius."""

    spec: Spec
    ts: dict[str, Float[np.ndarray, " t"]]
    gaps: dict[str, Float[np.ndarray, " t"]]
    radii: dict[str, Float[np.ndarray, " t"]]

    def slope(self, scheme: str) -> float:
        """Of log(1 - g) in the clock of the scheme, over the last part of the run."""
        clock, gap = _CLOCKS[scheme](self.ts[scheme]), np.log(self.gaps[scheme])
        last = self.ts[scheme] >= (0.6 if scheme in ("post", "ngpt", _ROOT) else 0.2) * self.ts[scheme][-1]
        return float(np.polyfit(clock[last], gap[last], 1)[0])


FAST = Spec(n=4, long=300.0)


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """Each scheme from the same tokens."""
    spec = Spec() if spec is None else spec
    found = dict(zip(_NAMES, parts(lambda scheme: follow(scheme, spec), _NAMES, "schemes", progress)))
    return Result(spec, *({scheme: values[k] for scheme, values in found.items()} for k in range(3)))


def follow(scheme: str, spec: Spec) -> tuple[Float[np.ndarray, " t"], Float[np.ndarray, " t"], Float[np.ndarray, " t"]]:
    """The times, the mean of 1 - cos over pairs and the mean radius under one scheme."""
    start, law = af.Particles(np.eye(spec.n)), af.simple_attention(spec.beta, spec.n)
    algebraic = scheme in ("pre", "peri", "mix")
    end = spec.long if algebraic else {"post": 1.0, "ngpt": 1 / spec.alpha, _ROOT: 2.0}[scheme] * spec.short
    times = np.geomspace(1e-2, end, 200) if algebraic else np.linspace(0.01, end, 200)
    if scheme == "mix":
        # A jump of the field is a time to stop at.
        times = np.unique(np.append(times, spec.switch))
    field = af.with_norm(law, scheme, switch=spec.switch, alpha=spec.alpha)
    path = af.solve(field, start, float(times[-1]), save_at=times, rtol=1e-9, atol=1e-12)
    x = np.asarray(path.states)
    r = np.linalg.norm(x, axis=2)
    theta = x / r[..., None]
    apart = ((theta[:, :, None] - theta[:, None]) ** 2).sum(axis=3) / 2
    return np.asarray(path.ts), apart.sum(axis=(1, 2)) / (spec.n * (spec.n - 1)), r.mean(axis=1)


def checks(result: Result) -> list[Check]:
    """The rates of collapse."""
    expected = {"post": -2.0, "pre": -2.0, "peri": -2.0, "mix": -2.0, "ngpt": -2 * result.spec.alpha, _ROOT: -4.0}
    clock = dict.fromkeys(expected, r"$\log t$") | {"post": "$t$", "ngpt": "$t$", _ROOT: r"$\sqrt{1 + t}$"}
    claim = {"peri": "pre", "mix": "pre"}
    return [
        Check(
            rf"{_NAMES[scheme]}: slope of $\log(1 - g)$ in {clock[scheme]}",
            result.slope(scheme),
            rate,
            _left(result, scheme) if scheme in ("post", "ngpt", _ROOT) else 0.02 * abs(rate) + 0.02,
            claim.get(scheme, scheme),
        )
        for scheme, rate in expected.items()
    ]


def _left(result: Result, scheme: str) -> float:
    """What is left of the slope where collapse is exponential: the equation of the gap is linear up to the gap itself, the largest there is
    in the part of the run that is fitted; and 1e-3 for the square root, whose clock is right up to its inverse."""
    ts, gaps = result.ts[scheme], result.gaps[scheme]
    return 10 * float(gaps[ts >= 0.6 * ts[-1]].max()) + (1e-3 if scheme == _ROOT else 1e-5)


def measured(result: Result) -> dict[str, Any]:
    """The slopes."""
    return {_NAMES[scheme]: result.slope(scheme) for scheme in _NAMES}


def figure(result: Result) -> "matplotlib.figure.Figure":
    """Exponential collapse on a linear axis of time, algebraic collapse on a logarithmic one."""
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.4 * af.plot.PAGE)
        fast, slow = page.subplots(1, 2)
        colors = dict(zip(_NAMES, af.plot.COLORS))
        for scheme, name in _NAMES.items():
            algebraic = scheme in ("pre", "peri", "mix")
            ax = slow if algebraic else fast
            (ax.loglog if algebraic else ax.semilogy)(result.ts[scheme], result.gaps[scheme], color=colors[scheme], label=name)
        t = result.ts["pre"][result.ts["pre"] > 30]
        guide = 0.3 * result.gaps["pre"][-1] * (t / t[-1]) ** -2.0
        slow.loglog(t, guide, "--", color="0.5", linewidth=0.8)
        slow.annotate("$t^{-2}$", (t[len(t) // 2], guide[len(t) // 2]), textcoords="offset points", xytext=(-16, -8), color="0.4")
        fast.set(xlabel="$t$", ylabel=r"$1 - \cos$")
        slow.set(xlabel="$t$", ylabel=r"$1 - \cos$")
        for ax in (fast, slow):
            ax.legend(loc="lower left")
    return page
