r"""A few Sinkhorn iterations do not make attention doubly stochastic when logits are large (for the Sinkformers of arXiv:2110.11773).

Sinkformers normalize the rows and the columns of $e^\ell$ in turn, and stop after a few half-steps. For standard normal tokens with logits
$\beta\langle x, y\rangle / \sqrt{d}$ this study has

- the column error $\max_j |\sum_i K_{ij} - 1|$ after $k$ half-steps, rows last, against an iteration written in NumPy;
- its rate in the end: each pair of half-steps shrinks it by $s^2$, where $s$ is the second singular value of the limit;
- the converged solver: doubly stochastic to its tolerance, and of the form $e^{f(x) + \ell(x, y) + g(y)}$, which only one such matrix has;
- causal attention: a doubly stochastic lower-triangular matrix is the identity, and the iteration creeps towards it. For two tokens the
  weight that the second gives the first is $1 / (1/c + 2k)$ after $k$ normalizations of the columns and rows, from $c$.
"""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from jaxtyping import Float

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import RISING, Checked, Count, Meta, Positive, Rule, Seed
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

# The column errors after 5 half-steps of one draw of 128 tokens in R^8, by beta, as they were measured with another code.
_ONE_DRAW = {1.0: 0.065, 5.0: 0.93, 20.0: 2.1}

CLAIMS = {
    "cut": Claim(
        r"After 5 half-steps, rows last, a column of the attention matrix of 128 standard normal tokens in $R^8$ with logits "
        r"$\beta \langle x, y \rangle / \sqrt{d}$ misses the sum 1 by about 0.1, 1 and 2 for $\beta = 1$, 5 and 20.",
        "numerics of this library, for arXiv:2110.11773",
        "numerics",
    ),
    "limit": Claim(
        "Row and column normalizations in turn tend to the one doubly stochastic matrix $e^{f(x) + l(x, y) + g(y)}$.",
        "Sinkhorn 1964; arXiv:2110.11773",
        "proved",
    ),
    "rate": Claim(
        "In the end two half-steps shrink the column error by $s^2$, with $s$ the second singular value of the limit.",
        "Knight 2008, doi:10.1137/060659624",
        "proved",
    ),
    "causal": Claim(
        "A doubly stochastic lower-triangular matrix is the identity, which the iteration approaches like $1/k$ only.",
        "elementary",
        "proved",
    ),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """How many tokens, how sharp, how many half-steps."""

    n: Annotated[int, Meta(ge=2)] = 128
    """how many tokens, standard normal"""
    d: Count = 8
    """their dimension"""
    betas: Annotated[tuple[Positive, ...], Meta(min_length=1), RISING] = (1.0, 5.0, 20.0)
    """the factors of the logits, rising"""
    half_steps: Annotated[
        tuple[Count, ...],
        Meta(min_length=3),
        RISING,
        Rule("odd", lambda steps: all(k % 2 for k in steps)),
        Rule("5 among them", lambda steps: 5 in steps),
    ] = (1, 3, 5, 9, 17, 33)
    """after how many half-steps to look: odd, so that rows come last, and rising; 5 among them"""
    draws: Count = 16
    """how many clouds of tokens"""
    causal: Annotated[int, Meta(ge=2, le=16)] = 8
    """how many causal tokens"""
    normalizations: Annotated[int, Meta(ge=64)] = 4096
    """how many times the columns and the rows of causal matrices are normalized"""
    seed: Seed = 0
    """of the draws"""


@dataclasses.dataclass(frozen=True)
class Result:
    """Column errors `[draw, beta, half-steps]`, by the library and by NumPy; of the converged matrix the worst row or column error, the
    distance from the form `f + l + g` in logarithms, and the second singular value, `[draw, beta]`; the distance of causal matrices from
    the identity after each normalization, for all tokens and for two; whether the library refuses a causal mask."""

    spec: Spec
    errors: Float[np.ndarray, "r b k"]
    independent: Float[np.ndarray, "r b k"]
    converged: Float[np.ndarray, "r b"]
    form: Float[np.ndarray, "r b"]
    second: Float[np.ndarray, "r b"]
    causal: Float[np.ndarray, " c"]
    pair: Float[np.ndarray, " c"]
    refused: bool

    @property
    def shrinking(self) -> Float[np.ndarray, " r"]:
        """By how much two half-steps shrink the column error at the smallest beta, over the last that were made."""
        pairs = (self.spec.half_steps[-1] - self.spec.half_steps[-2]) / 2
        return (self.errors[:, 0, -1] / self.errors[:, 0, -2]) ** (1 / pairs)


FAST = Spec(n=32, d=4, draws=2, half_steps=(1, 5, 17), causal=3, normalizations=1024)


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """Each draw with all its logits, then causal matrices."""
    spec = Spec() if spec is None else spec
    drawn = parts(lambda draw: _draw(draw, spec), range(spec.draws), "draws", progress)
    errors, independent, converged, form, second = (np.stack(column) for column in zip(*drawn))
    kernel = np.tril(np.exp(np.random.default_rng(spec.seed).normal(size=(spec.causal, spec.causal))))
    causal, pair = _creep(kernel, spec), _creep(np.tri(2), spec)
    return Result(spec, errors, independent, converged, form, second, causal, pair, _refused(spec))


def law(beta: float, normalize: af.Sinkhorn, spec: Spec) -> af.Attention:
    eye = np.eye(spec.d)
    return af.Attention(af.dot_product(eye, eye, temperature=spec.d**0.5 / beta), eye, normalize)


def _draw(draw: int, spec: Spec) -> tuple[np.ndarray, ...]:
    """Both column errors, and the three numbers of the converged matrix, for one cloud."""
    x = np.random.default_rng([spec.seed, draw]).normal(size=(spec.n, spec.d))
    mu, errors, independent, limits = af.Particles(x), [], [], []
    for beta in spec.betas:
        logits = beta * x @ x.T / spec.d**0.5
        cut = [np.asarray(law(beta, af.Sinkhorn(half_steps=k), spec).weights(mu.points, mu)) for k in spec.half_steps]
        errors.append([column_error(matrix) for matrix in cut])
        independent.append([column_error(by_hand(logits, k)) for k in spec.half_steps])
        limit = np.asarray(law(beta, af.Sinkhorn(), spec).weights(mu.points, mu))
        # What is left of log K - l when the part in x alone and the part in y alone are taken out; weights below e^{-600} are not normal.
        rest = np.log(np.maximum(limit, 1e-300)) - logits
        rest = rest - rest[:1] - rest[:, :1] + rest[0, 0]
        whole = max(column_error(limit), column_error(limit.T))
        limits.append((whole, np.abs(rest[limit > 1e-250]).max(initial=0), np.linalg.svd(limit, compute_uv=False)[1]))
    return np.array(errors), np.array(independent), *np.array(limits).T


def column_error(matrix: Float[np.ndarray, "n n"]) -> float:
    return float(np.abs(matrix.sum(axis=0) - 1).max())


def by_hand(logits: Float[np.ndarray, "n n"], half_steps: int) -> Float[np.ndarray, "n n"]:
    """e^logits with rows and columns normalized in turn, rows first."""
    for k in range(half_steps):
        logits = logits - np.logaddexp.reduce(logits, axis=1 - k % 2, keepdims=True)
    return np.exp(logits)


def _creep(kernel: Float[np.ndarray, "n n"], spec: Spec) -> Float[np.ndarray, " c"]:
    """How far a causal matrix, its rows normalized, is from the identity after 0, 1, ... normalizations of its columns and rows."""
    matrix, found = kernel / kernel.sum(axis=1, keepdims=True), []
    for _ in range(spec.normalizations + 1):
        found.append(np.abs(matrix - np.eye(len(matrix))).max())
        matrix = matrix / matrix.sum(axis=0)
        matrix = matrix / matrix.sum(axis=1, keepdims=True)
    return np.array(found)


def _refused(spec: Spec) -> bool:
    try:
        af.simple_attention(1.0, spec.d, af.Sinkhorn(), mask=af.Causal())
    except ValueError as error:
        return "identity" in str(error)
    return False


def checks(result: Result) -> list[Check]:
    """Against NumPy, singular values and the closed form for two tokens."""
    spec, at = result.spec, result.spec.half_steps.index(5)
    apart = np.abs(result.errors - result.independent) / (1 + result.independent)
    after = result.errors[:, :, at]
    medians = np.median(after, axis=0)
    found = [Check("column errors against NumPy, the largest difference", float(apart.max()), 0.0, 1e-11, "cut")]
    if (spec.n, spec.d) == (128, 8):
        for beta, column in zip(spec.betas, after.T):
            if beta in _ONE_DRAW:
                name = (
                    rf"$\beta = {beta:g}$: share of draws with an error after 5 half-steps below that of another draw, {_ONE_DRAW[beta]:g}"
                )
                found.append(Check(name, float((column < _ONE_DRAW[beta]).mean()), 0.5, 0.49, "cut"))
    k = np.arange(spec.normalizations + 1)
    late = k >= spec.normalizations // 4
    slope = np.polyfit(np.log(k[late]), np.log(result.causal[late]), 1)[0]
    return [
        *found,
        Check(r"share of $\beta$ with a larger error than the one before", float((np.diff(medians) > 0).mean()), 1.0, 0.0, "cut"),
        Check("converged: worst row or column", float(result.converged.max()), 0.0, 2e-10, "limit"),
        Check(r"converged: $\log K - l$ is $f(x) + g(y)$, up to", float(result.form.max()), 0.0, 1e-8, "limit"),
        Check(
            rf"$\beta = {spec.betas[0]:g}$: shrinking in two half-steps over $s^2$",
            float(np.mean(result.shrinking / result.second[:, 0] ** 2)),
            1.0,
            0.02,
            "rate",
        ),
        Check(
            "two causal tokens: 1/distance from the identity less $2 + 2k$",
            float(np.abs(1 / result.pair - 2 - 2 * k).max()),
            0.0,
            1e-7,
            "causal",
        ),
        Check("causal: exponent of the distance from the identity in $k$", float(slope), -1.0, 0.1, "causal"),
        Check("Sinkhorn with a causal mask is refused", float(result.refused), 1.0, 0.0, "causal"),
    ]


def measured(result: Result) -> dict[str, Any]:
    """The column errors after 5 half-steps, by beta."""
    after = result.errors[:, :, result.spec.half_steps.index(5)]
    return {
        f"beta = {beta:g}": {"least": column.min(), "median": np.median(column), "largest": column.max()}
        for beta, column in zip(result.spec.betas, after.T)
    }


def figure(result: Result) -> "matplotlib.figure.Figure":
    """The column error against the number of half-steps, and causal matrices."""
    spec = result.spec
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.4 * af.plot.PAGE)
        left, right = page.subplots(1, 2)
        for color, beta, column in zip(af.plot.COLORS, spec.betas, np.moveaxis(result.errors, 1, 0)):
            left.loglog(spec.half_steps, np.median(column, axis=0), "o-", color=color, markersize=4, label=f"$\\beta = {beta:g}$")
            left.fill_between(spec.half_steps, column.min(axis=0), column.max(axis=0), color=color, alpha=0.15, linewidth=0)
        left.axvline(5, color="0.6", linestyle=":", linewidth=0.8)
        left.set_xticks(spec.half_steps, [str(k) for k in spec.half_steps])
        left.set_xticks([], minor=True)
        left.set(xlabel="half-steps, rows last", ylabel="largest column error")
        left.legend(loc="lower left", title="median and range", title_fontsize=8)
        k = np.arange(1, spec.normalizations + 1)
        right.loglog(k, result.causal[1:], color=af.plot.COLORS[4], label=f"{spec.causal} causal tokens")
        right.loglog(k, result.pair[1:], color=af.plot.COLORS[5], label="two causal tokens")
        right.loglog(k, 1 / (2 + 2 * k), ":", color=af.plot.COLORS[1], linewidth=2.2, label="$1/(2 + 2k)$")
        right.set(xlabel="normalizations of columns and rows $k$", ylabel="largest entry of $|K - I|$")
        right.legend(loc="lower left")
    return page
