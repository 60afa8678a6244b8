r"""With longer contexts attention must sharpen like $\log n / (1-r)$, or tokens become one or ignore each other (arXiv:2510.05554).

Take $n$ tokens with a common cosine $r$, one layer of softmax attention without residual at $\beta = \gamma \log n$: the cosine of two
outputs tends to 1, $4r/(1+3r)$ or $r$ for $\gamma$ below, at and above $1/(1-r)$. Shown here: the exact value at finite $n$ by its
formula, by attention on the tokens themselves in $\mathbb{R}^n$ for moderate $n$, and by the two rows of the attention matrix for $n$ up
to a million, in which an output in $\mathbb{R}^{n+1}$ is $\sqrt{r}\, e_0 + \sqrt{1-r}\, p$ with $p$ the row.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from jaxtyping import Float

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import Checked, Meta, Positive
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

_PAPER, _SETTING = "arXiv:2510.05554", r"Tokens of common cosine $r$ at $\beta = \gamma \log n$: two outputs have a cosine that tends to "
CLAIMS = {
    "below": Claim(_SETTING + r"$1$ for $\gamma < 1/(1-r)$.", _PAPER, "proved"),
    "critical": Claim(_SETTING + r"$4r/(1+3r)$ for $\gamma = 1/(1-r)$.", _PAPER, "proved"),
    "above": Claim(_SETTING + r"$r$ for $\gamma > 1/(1-r)$.", _PAPER, "proved"),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """Which cosine, which sharpness, how many tokens."""

    cosine: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    """the common cosine r of the tokens"""
    gammas: Annotated[tuple[Positive, ...], Meta(min_length=1)] = (0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5)
    r"""$\gamma$ over its critical value $1/(1-r)$"""
    tokens: Annotated[tuple[Annotated[int, Meta(ge=2)], ...], Meta(min_length=1)] = (10, 100, 1000, 10_000, 100_000, 1_000_000)
    """how many tokens"""
    explicit: Annotated[int, Meta(ge=0)] = 1000
    """up to how many the tokens themselves are moved"""


@dataclasses.dataclass(frozen=True)
class Result:
    """`exact`, `rows`, `moved` `[gammas, tokens]`: the cosine of two outputs by formula, by rows, by the tokens (NaN where too many)."""

    spec: Spec
    exact: Float[np.ndarray, "g n"]
    rows: Float[np.ndarray, "g n"]
    moved: Float[np.ndarray, "g n"]


FAST = Spec(tokens=(10, 100, 10_000), explicit=100)


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """The three ways, for every gamma and n."""
    spec = Spec() if spec is None else spec
    return Result(spec, *np.stack(parts(lambda n: _context(n, spec), spec.tokens, "contexts", progress), axis=2))


def _context(n: int, spec: Spec) -> Float[np.ndarray, "3 g"]:
    """The three ways for one n."""
    r, found = spec.cosine, []
    for gamma in spec.gammas:
        beta = gamma * af.theory.critical_sharpness(r) * math.log(n)
        moved = by_tokens(n, r, beta) if n <= spec.explicit else math.nan
        found.append((af.theory.context_cosine(n, r, beta), by_rows(n, r, beta), moved))
    return np.array(found).T


def by_rows(n: int, r: float, beta: float) -> float:
    """From the first two rows of the attention matrix."""
    logits = np.full((2, n), beta * r)
    logits[[0, 1], [0, 1]] = beta
    p = np.exp(logits - beta)
    p /= p.sum(axis=1, keepdims=True)
    out = np.concatenate([np.full((2, 1), math.sqrt(r)), math.sqrt(1 - r) * p], axis=1)
    return float(out[0] @ out[1] / (np.linalg.norm(out[0]) * np.linalg.norm(out[1])))


def by_tokens(n: int, r: float, beta: float) -> float:
    """From the tokens `sqrt(r) e_0 + sqrt(1-r) e_i`, moved by the law."""
    x = np.concatenate([np.full((n, 1), math.sqrt(r)), math.sqrt(1 - r) * np.eye(n)], axis=1)
    mu = af.Particles(x)
    out = np.asarray(af.simple_attention(beta, n + 1).at(mu)(mu.points[:2]))
    return float(out[0] @ out[1] / (np.linalg.norm(out[0]) * np.linalg.norm(out[1])))


def checks(result: Result) -> list[Check]:
    """Three ways agree; far from the critical gamma the largest n is close to the limit, at it to its own."""
    spec = result.spec
    critical = af.theory.critical_sharpness(spec.cosine)
    found = [
        Check("formula against rows", float(np.abs(result.rows - result.exact).max()), 0.0, 1e-9),
        Check("formula against tokens", float(np.nanmax(np.abs(result.moved - result.exact))), 0.0, 1e-6),
    ]
    n = max(spec.tokens)
    for gamma, row in zip(spec.gammas, result.exact, strict=True):
        limit = af.theory.context_limit(spec.cosine, 1.0 * critical if gamma == 1 else gamma * critical)
        slack = _left(gamma, spec.cosine, n)
        if slack < 0.2:
            claim = "critical" if gamma == 1 else "below" if gamma < 1 else "above"
            name = rf"$\gamma = {gamma:g} \times \text{{critical}}$, $n = {n}$, against the limit"
            found.append(Check(name, float(row[np.argmax(spec.tokens)]), limit, slack, claim))
    return found


def _left(gamma: float, r: float, n: int) -> float:
    """Twice the leading term of the distance from the limit. In units of the critical gamma a token weighs n^gamma times each other one:
    it has the weight n^(gamma - 1) below 1, all but n^(1 - gamma) above."""
    below, above = (1 - r) / r * n ** (2 * gamma - 2), 2 * r * (1 - r) * n ** (1 - gamma)
    return 2 * (0.0 if gamma == 1 else below if gamma < 1 else above) + 2 / (r * n)


def measured(result: Result) -> dict[str, Any]:
    """The exact cosines."""
    return {f"{gamma:g}": dict(zip(map(str, result.spec.tokens), row)) for gamma, row in zip(result.spec.gammas, result.exact, strict=True)}


def figure(result: Result) -> "matplotlib.figure.Figure":
    """The cosine against n, for each gamma."""
    spec = result.spec
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.42 * af.plot.PAGE)
        by_n, by_gamma = page.subplots(1, 2)
        n = np.geomspace(min(spec.tokens), max(spec.tokens), 200)
        critical = af.theory.critical_sharpness(spec.cosine)
        import matplotlib as mpl

        for i, gamma in enumerate(spec.gammas):
            color = mpl.colormaps["viridis"](0.9 * i / max(len(spec.gammas) - 1, 1))
            line = [af.theory.context_cosine(round(k), spec.cosine, gamma * critical * math.log(round(k))) for k in n]
            by_n.semilogx(n, line, color=color, linewidth=1.0, label=rf"${gamma:g}\,\gamma_c$")
            by_n.semilogx(spec.tokens, result.rows[i], "o", color=color, markersize=3.5)
            by_n.semilogx(spec.tokens, result.moved[i], "+", color="0.1", markersize=6)
        by_n.set(xlabel="tokens $n$", ylabel="cosine of two outputs", ylim=(None, 1.02))
        by_n.legend(ncols=1, loc="center left", bbox_to_anchor=(1.0, 0.5))
        x = np.linspace(0.3, 1.8, 400)
        for k, color in zip((10**2, 10**4, 10**6, 10**12), af.plot.COLORS):
            line = [af.theory.context_cosine(k, spec.cosine, g * critical * math.log(k)) for g in x]
            by_gamma.plot(x, line, color=color, linewidth=1.0, label=f"$n = 10^{{{round(math.log10(k))}}}$")
        steps = [af.theory.context_limit(spec.cosine, g * critical) for g in x]
        by_gamma.plot(x, steps, "--", color="0.4", linewidth=0.8, label="limit")
        by_gamma.plot([1], [af.theory.context_limit(spec.cosine, critical)], "o", color="0.1", markersize=4)
        by_gamma.set(xlabel=r"$\gamma\,/\,\gamma_c$", ylabel="cosine of two outputs")
        by_gamma.legend(loc="lower left")
    return page
