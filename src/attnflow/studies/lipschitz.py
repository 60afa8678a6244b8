r"""How much attention amplifies a change of its tokens: like $n^{1/2}$ and like $R^2$, and never beyond the bound (arXiv:2312.14820).

For softmax attention on $n$ tokens in the ball of radius $R$, as a map of all tokens together,
$\mathrm{Lip} \le \sqrt{3}\, |V|\, (|A|^2 R^4 (4n+1) + n)^{1/2}$. The local constant is the largest singular value of the derivative. Three
families of tokens, with $A = V = I$ unless said otherwise:

- one leader: a token at $R e$, all others at $R e / 2$. If $R^2/4$ is well above $\log n$, all attend to the leader alone; when it moves,
  so do $n$ outputs, and the constant is $n^{1/2}$;
- two poles, $R e$ and $-R e$, and a token at 0, which attends to all three alike. For large $R$ the poles attend to themselves; the output
  of the token moves along $e$ by $a = \frac23 R^2 + \frac13$ times its own change, the covariance of the tokens and its own weight, and by
  a third of that of each pole: the constant is $(a^2 + \frac29)^{1/2}$, up to $O(R^{-4})$;
- random tokens in the ball with random $Q$, $K$, $V$: the bound holds; it is far from sharp.

The derivative is checked against finite differences of the velocity, without automatic derivatives.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Annotated, Any

import jax
import numpy as np
from jaxtyping import Float

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import DIFFERENT, Checked, Count, Meta, Positive, Seed
from attnflow.studies.tools.fit import power_law
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

_PAPER = "arXiv:2312.14820"
CLAIMS = {
    "bound": Claim(
        r"On $n$ tokens in the ball of radius $R$ softmax attention has "
        r"$\mathrm{Lip} \le \sqrt{3}\, \lvert V \rvert \sqrt{\lvert A \rvert^2 R^4 (4n+1) + n}$.",
        _PAPER,
        "proved",
    ),
    "length": Claim("The growth like $n^{1/2}$ is reached, as long as $n$ is below an exponential of $R^2$.", _PAPER, "proved"),
    "radius": Claim("The growth like $R^2$ is reached.", _PAPER, "proved"),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """How many tokens, how far out, how many draws."""

    lengths: Annotated[tuple[Annotated[int, Meta(ge=2)], ...], Meta(min_length=3), DIFFERENT] = (4, 16, 64, 256)
    """the numbers of tokens with one leader, and of random tokens"""
    radius: Positive = 8.0
    """their R with one leader"""
    radii: Annotated[tuple[Positive, ...], Meta(min_length=3), DIFFERENT] = (2.0, 4.0, 8.0, 16.0)
    """the R of two poles, and of random tokens"""
    draws: Count = 20
    """how many random Q, K, V and tokens for every n and R"""
    dim: Count = 2
    """the dimension"""
    seed: Seed = 0
    """of the random ones"""

    def check(self) -> None:
        if not self.radius**2 / 4 >= 6 + math.log(max(self.lengths)):
            raise ValueError(f"radius^2 / 4 must be at least 6 + log n, for a leader that all attend to, got radius = {self.radius}")


@dataclasses.dataclass(frozen=True)
class Result:
    """`leader` `[n]` and `poles` `[R]`: the local constants. `random` `[n, R, draws]`: those over the bound. `difference`: that of the
    constants by automatic derivatives and by finite differences, relative."""

    spec: Spec
    leader: Float[np.ndarray, " n"]
    poles: Float[np.ndarray, " r"]
    random: Float[np.ndarray, "n r k"]
    difference: float


FAST = Spec(lengths=(4, 8, 16), radii=(2.0, 4.0, 8.0), draws=4)


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """The three families, and finite differences."""
    spec = Spec() if spec is None else spec
    leader = parts(lambda n: constant(simple(spec.dim), with_leader(n, spec)), spec.lengths, "leader", progress)
    poles = parts(lambda R: constant(simple(spec.dim), with_poles(R, spec.dim)), spec.radii, "poles", progress)
    jobs = [(n, R) for n in spec.lengths for R in spec.radii]
    random = np.array(parts(lambda job: at_random(*job, spec), jobs, "random", progress)).reshape(len(spec.lengths), len(spec.radii), -1)
    return Result(spec, np.array(leader), np.array(poles), random, against_differences(spec))


def simple(dim: int) -> af.Attention:
    return af.Attention(af.dot_product(np.eye(dim), np.eye(dim)), np.eye(dim))


def with_leader(n: int, spec: Spec) -> Float[np.ndarray, "n d"]:
    x = np.zeros((n, spec.dim))
    x[:, 0] = spec.radius / 2
    x[0, 0] = spec.radius
    return x


def with_poles(R: float, dim: int) -> Float[np.ndarray, "3 d"]:
    return np.outer([R, 0.0, -R], np.eye(dim)[0])


def constant(law: af.Attention, x: Float[np.ndarray, "n d"]) -> float:
    """The local Lipschitz constant; power iteration settles slowly where two singular values are close."""
    return float(af.local_lipschitz(law, af.Particles(x), iterations=1000, tolerance=1e-4))


def at_random(n: int, R: float, spec: Spec) -> list[float]:
    """The local constants at random over the bound."""
    found = []
    for draw in range(spec.draws):
        rng = np.random.default_rng([spec.seed, n, int(1000 * R), draw])
        Q, K, V = rng.normal(size=(3, spec.dim, spec.dim)) / math.sqrt(spec.dim)
        mu = af.samplers.ball(n, spec.dim, radius=R, key=jax.random.key(int(rng.integers(2**31))))
        law = af.Attention(af.dot_product(Q, K), V)
        found.append(constant(law, np.asarray(mu.points)) / float(af.theory.lipschitz_bound(K.T @ Q, V, R, n)))
    return found


def against_differences(spec: Spec) -> float:
    """The constant against the largest singular value of a matrix of central differences, relative."""
    rng, n, h = np.random.default_rng(spec.seed), min(spec.lengths), 1e-5
    x, law = rng.normal(size=(n, spec.dim)), simple(spec.dim)

    def velocity(x: np.ndarray) -> np.ndarray:
        return softmax(x @ x.T) @ x

    columns = [(velocity(x + h * e.reshape(x.shape)) - velocity(x - h * e.reshape(x.shape))).ravel() / (2 * h) for e in np.eye(x.size)]
    return abs(constant(law, x) / float(np.linalg.norm(np.array(columns), 2)) - 1)


def softmax(logits: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def checks(result: Result) -> list[Check]:
    """The bound, both growths, and the derivative."""
    spec, n, R = result.spec, np.array(result.spec.lengths), np.array(result.spec.radii)
    eye = np.eye(spec.dim)
    above = [found / float(af.theory.lipschitz_bound(eye, eye, spec.radius, int(k))) for found, k in zip(result.leader, n)]
    above += [found / float(af.theory.lipschitz_bound(eye, eye, r, 3)) for found, r in zip(result.poles, R)]
    # What the others weigh beside the leader; a constant is found by power iteration to 1e-4.
    slack = 1e-3 + spec.radius**2 * float(n.max()) * math.exp(-(spec.radius**2) / 4)
    known, far = np.sqrt((2 / 3 * R**2 + 1 / 3) ** 2 + 2 / 9), np.flatnonzero(np.median(R) <= R)
    return [
        Check("random tokens, $Q$, $K$, $V$: largest constant over the bound", float(result.random.max()), 0.0, 1.0, "bound"),
        Check("leader and poles: largest constant over the bound", float(max(above)), 0.0, 1.0, "bound"),
        Check(
            "leader: constant over $n^{1/2}$, farthest from 1", float(np.abs(result.leader / np.sqrt(n) - 1).max()), 0.0, slack, "length"
        ),
        Check("leader: power of $n$", power_law(n, result.leader).slope, 0.5, slack, "length"),
        Check(
            "poles: constant over the closed form, less 1, at large $R$",
            float(np.abs(result.poles / known - 1)[far].max()),
            0.0,
            1e-3,
            "radius",
        ),
        Check("poles: power of $R$ in the constant less 1/3", _last_power(R, result.poles - 1 / 3), 2.0, 0.02, "radius"),
        Check("automatic derivatives against finite differences, relative", result.difference, 0.0, 1e-4),
    ]


def _last_power(x: np.ndarray, y: np.ndarray) -> float:
    i, j = np.argsort(x)[-2:]
    return math.log(y[j] / y[i]) / math.log(x[j] / x[i])


def measured(result: Result) -> dict[str, Any]:
    """The local constants, and how near the bound random tokens come."""
    return {
        "leader": dict(zip(map(str, result.spec.lengths), result.leader.tolist())),
        "poles": dict(zip(map(str, result.spec.radii), result.poles.tolist())),
        "largest over the bound, random": float(result.random.max()),
    }


def figure(result: Result) -> "matplotlib.figure.Figure":
    """The constant against n with a leader, against R with two poles, and how near random tokens come to the bound."""
    spec, eye = result.spec, np.eye(result.spec.dim)
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.36 * af.plot.PAGE)
        left, middle, right = page.subplots(1, 3)
        n, R = np.array(spec.lengths), np.array(spec.radii)
        left.loglog(n, result.leader, "o", color=af.plot.COLORS[0], markersize=4, label="one leader")
        left.loglog(n, np.sqrt(n), color="0.5", linewidth=0.8, label="$n^{1/2}$")
        left.loglog(n, [af.theory.lipschitz_bound(eye, eye, spec.radius, int(k)) for k in n], "--", color=af.plot.COLORS[4], label="bound")
        left.set(xlabel="$n$", ylabel="local Lipschitz constant", title=f"$R = {spec.radius:g}$")
        middle.loglog(R, result.poles, "o", color=af.plot.COLORS[0], markersize=4, label="two poles")
        middle.loglog(R, 2 / 3 * R**2 + 1 / 3, color="0.5", linewidth=0.8, label=r"$\frac{2}{3}R^2 + \frac{1}{3}$")
        middle.loglog(R, [af.theory.lipschitz_bound(eye, eye, r, 3) for r in R], "--", color=af.plot.COLORS[4], label="bound")
        middle.set(xlabel="$R$", title="$n = 3$")
        for color, r, shares in zip(af.plot.COLORS, R, result.random.transpose(1, 0, 2)):
            right.loglog(n, shares.max(axis=1), "o-", color=color, markersize=3, linewidth=0.8, label=f"$R = {r:g}$")
        right.axhline(1, color=af.plot.COLORS[4], linewidth=1, linestyle="--")
        right.set(xlabel="$n$", ylabel="largest constant / bound", title="random $Q$, $K$, $V$, tokens")
        for ax, ticks in ((left, n), (middle, R), (right, n)):
            ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            ax.set_xticks([], minor=True)
            ax.legend(fontsize=7)
    return page
