r"""Attention moves a Gaussian as a Gaussian: to a blow-up, to infinity, or to one of low rank (arXiv:2501.18322).

From $\mathcal{N}(m, S)$ each law has an affine velocity $V E[y|x]$, so that $S' = M S + S M^\top$ with its own $M$. With $A$ the matrix of
the logit,

- softmax, $\langle Qx, Ky\rangle$: $M = V S A$, $A = K^\top Q$. For $V = I$, $S(t)^{-1} = S_0^{-1} - (A + A^\top)\, t$, up to the time
  when it is singular;
- L2, $-|Qx - Ky|^2$: $M = V (S^{-1} + 2 K^\top K)^{-1} A$, $A = 2 K^\top Q$, for all times;
- Sinkhorn, the same logit: $M = V W A$, where $W$ solves $W + W A S A^\top W = S$.

The velocities are compared with those of tokens on a fine grid, in the plane. In $\mathbb{R}^d$ with random $Q$, $K$, $V$ softmax blows up
in half of the runs; where it settles, $S$ tends to low rank: here to $d/2$, rounded down, or less, but for one in 79. Runs that become too
stiff for explicit steps, a quarter in $\mathbb{R}^3$ and nearly half in $\mathbb{R}^5$, are counted but not judged.
"""

import collections
import dataclasses
import math
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from jaxtyping import Float, Int

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import Checked, Count, Meta, Seed
from attnflow.studies.tools.gaussian_formulas import LAWS, law, matrices, off, velocities
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

_PAPER = "arXiv:2501.18322"
CLAIMS = {
    "gaussian": Claim(
        r"A Gaussian stays one under softmax, L2 and Sinkhorn attention: $V\, E[y \mid x]$ is affine in $x$.", _PAPER, "proved"
    ),
    "blow-up": Claim(
        "Under softmax with $V = I$, $S(t)^{-1} = S_0^{-1} - (A + A^T) t$, up to a blow-up when it is singular.", _PAPER, "proved"
    ),
    "existence": Claim("Under L2 attention the Gaussian exists for all times; $M = V (S^{-1} + 2 K^T K)^{-1} 2 K^T Q$.", _PAPER, "proved"),
    "sinkhorn": Claim(
        "Under Sinkhorn attention $S' = V C A^{-T} + A^{-1} C^T V^T$, "
        r"$C = \tfrac12 \bigl(S^{1/2} (I + 4 S^{1/2} A S A^T S^{1/2})^{1/2} S^{-1/2} - I\bigr)$, "
        r"$A = 2 K^T Q$ for the kernel $e^{-\lvert Qx - Ky \rvert^2}$.",
        f"poster of {_PAPER}",
        "misprint",
        "$S' = V C S^{-1} A^{-T} S + S A^{-1} S^{-1} C^T V^T$, with $A = K^T Q$",
        r"It is an order of matrices, and a factor. The logit $-\lvert Qx - Ky \rvert^2$ has the mixed term $2 \langle Qx, Ky "
        r"\rangle$, so $A = 2 "
        r"K^T Q$. Under the bridge $E[y \mid x] - m = W A (x - m)$ with $W + W A S A^T W = S$, so $S' = V W A S + (V W A S)^T$; "
        r"and $W A S A^T = C$, "
        "because $W = S^{1/2} w S^{1/2}$ with $w N + w N w N = N$, $N = S^{1/2} A S A^T S^{1/2}$. Hence $V W A S = V C A^{-T}$.",
        "We are sure of the formula, which tokens confirm. We have the poster as text, in which formulas are torn apart and may be out of "
        "order; for matrices that commute the two differ in the factor alone.",
    ),
    "rank": Claim("The rank of $S$ is constant in finite time.", _PAPER, "proved"),
    "low rank": Claim("Where softmax attention does not blow up, $S$ tends to a matrix of low rank.", f"poster of {_PAPER}", "numerics"),
}
# Eigenvalues that fall by this factor in the last nine tenths of time, or are so far below the largest, vanish.
_FALLS, _BELOW = 0.3, 1e-2
# Frames of a run: one number, and one program serves all of them.
_FRAMES = 41


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """How many matrices, in which dimensions, how long."""

    draws: Count = 5
    """how many random Q, K for the times of blow-up, and for the velocities"""
    nodes: Annotated[int, Meta(ge=24)] = 40
    """how many tokens along an axis of the plane"""
    longer: Annotated[float, Meta(gt=1, le=10)] = 2.0
    """how long L2 attention runs, over the time when softmax blows up"""
    dims: Annotated[tuple[Annotated[int, Meta(ge=2)], ...], Meta(min_length=1)] = (3, 4, 5)
    """the dimensions for the limits"""
    limits: Annotated[int, Meta(ge=10)] = 200
    """how many random Q, K, V for each of them"""
    late: Annotated[float, Meta(ge=100)] = 1000.0
    """when the limit is looked at"""
    seed: Seed = 0
    """of the random matrices"""


@dataclasses.dataclass(frozen=True)
class Result:
    """`blow_up` `[k, 2]`: times found and in closed form; `inverse` `[k]`: the error of S half way there; `l2` `[k]`: that at the end of
    L2 attention; `paths[law]`: time and largest eigenvalue. `affine[law]` `[k]`: tokens against the Gaussian velocity, in the mean square.
    `formula` `[k, 3]`: the error of S' as stated, as printed, and as printed but with A = 2 K^T Q, against tokens; `residual` `[k]`: of the
    equation for W. `second[law]`: from rank one, the second eigenvalue over the first. `spectra[d]` `[runs, 2, d]`: the eigenvalues at a
    tenth of the last time and then, of runs that got there; `ended[d]`: how many ended how. Errors are relative."""

    spec: Spec
    blow_up: Float[np.ndarray, "k 2"]
    inverse: Float[np.ndarray, " k"]
    l2: Float[np.ndarray, " k"]
    paths: dict[str, list[Float[np.ndarray, "t 2"]]]
    affine: dict[str, Float[np.ndarray, " k"]]
    formula: Float[np.ndarray, "k 3"]
    residual: Float[np.ndarray, " k"]
    second: dict[str, float]
    spectra: dict[int, Float[np.ndarray, "runs 2 d"]]
    ended: dict[int, dict[str, int]]

    def ranks(self, dim: int) -> Int[np.ndarray, " runs"]:
        """The number of eigenvalues that neither vanish along time nor beside the largest."""
        before, last = self.spectra[dim][:, 0], self.spectra[dim][:, 1]
        return ((last > _FALLS * before) & (last > _BELOW * last[:, -1:])).sum(axis=1)


FAST = Spec(draws=2, dims=(3,), limits=10, late=100.0)


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """Softmax and L2 from the same start, velocities of tokens, ranks."""
    spec = Spec() if spec is None else spec
    flows = parts(lambda k: compare(k, spec), range(spec.draws), "blow-up", progress)
    Q, K, S = matrices(spec.seed, spec.draws, 2)
    seen = parts(lambda k: velocities(Q[k], K[k], S[k], spec.nodes), range(spec.draws), "tokens", progress)
    limits = parts(lambda dim: limit(dim, spec), spec.dims, "limits", progress)
    blow_up, inverse, l2 = (np.array([flow[i] for flow in flows]) for i in range(3))
    return Result(
        spec,
        blow_up,
        inverse,
        l2,
        {name: [flow[3][name] for flow in flows] for name in LAWS[:2]},
        {name: np.array([affine[name] for affine, _, _ in seen]) for name in LAWS},
        np.array([formula for _, formula, _ in seen]),
        np.array([residual for _, _, residual in seen]),
        {name: thin(name, spec) for name in LAWS[:2]},
        {dim: spectra for dim, (spectra, _) in zip(spec.dims, limits)},
        {dim: ended for dim, (_, ended) in zip(spec.dims, limits)},
    )


def compare(k: int, spec: Spec) -> tuple[Any, ...]:
    """Softmax and L2 with V = I in R^3 from one start: the first to its blow-up, the second well beyond."""
    from scipy.integrate import solve_ivp
    from scipy.linalg import eigh

    Q, K, S = (each[k] for each in matrices(spec.seed, spec.draws, 3))
    # Singular when (A + A^T) v = S_0^-1 v / t; of A and -A, that for which this is sooner.
    top = eigh(K.T @ Q + Q.T @ K, np.linalg.inv(S), eigvals_only=True)
    Q, exact = (Q, 1 / top[-1]) if top[-1] > -top[0] else (-Q, -1 / top[0])
    A, eye, start, end = K.T @ Q, np.eye(3), af.Gaussian(np.zeros(3), S), spec.longer * exact
    soft = af.solve(law("softmax", Q, K, eye), start, end, save_at=np.append(np.linspace(0, exact, _FRAMES - 1), end))
    half = (_FRAMES - 2) // 2
    inverse = off(soft[half].cov, np.linalg.inv(np.linalg.inv(S) - (A + A.T) * float(soft.ts[half])))
    far = af.solve(law("L2", Q, K, eye), start, end, save_at=_FRAMES, rtol=1e-10, atol=1e-12)

    def rate(t: float, flat: np.ndarray) -> np.ndarray:
        cov = flat.reshape(3, 3)
        M = np.linalg.solve(eye + 2 * cov @ K.T @ K, 2 * cov @ A)
        return (M @ cov + cov @ M.T).ravel()

    oracle = solve_ivp(rate, (0, end), S.ravel(), rtol=1e-10, atol=1e-12).y[:, -1].reshape(3, 3)
    time = float(soft.status.time) if soft.status.kind == "blow-up" else math.nan
    paths = {name: np.stack([path.ts, _spectra(path)[:, -1]], axis=1) for name, path in (("softmax", soft), ("L2", far))}
    return (time, float(exact)), inverse, off(far.final.cov, oracle) if far.status.kind == "reached" else math.nan, paths


def _spectra(path: af.Path) -> Float[np.ndarray, "t d"]:
    return np.linalg.eigvalsh(np.asarray(path.states[1]))


def thin(name: str, spec: Spec) -> float:
    """From a covariance of rank one: the second eigenvalue over the first at the end."""
    Q, K, _ = (each[0] for each in matrices(spec.seed, spec.draws, 3))
    v = np.array([1.0, 0.5, -0.5])
    V = np.random.default_rng([spec.seed, 1]).normal(size=(3, 3)) / 2
    path = af.solve(law(name, Q, K, V), af.Gaussian(np.zeros(3), np.outer(v, v)), 1.0, save_at=_FRAMES, rtol=1e-10, atol=1e-12)
    found = _spectra(path)[-1]
    return float(np.abs(found[1]) / found[2])


def limit(dim: int, spec: Spec) -> tuple[np.ndarray, dict[str, int]]:
    """From S = I under softmax with random Q, K, V: the eigenvalues of S, late, of the runs that get there; and how runs ended."""
    rng, alive, ended = np.random.default_rng([spec.seed, dim, 2]), [], []
    times = np.append(np.linspace(0, spec.late / 10, _FRAMES - 1), spec.late)
    for Q, K, V in rng.normal(size=(spec.limits, 3, dim, dim)) / math.sqrt(dim):
        path = af.solve(
            law("softmax", Q, K, V),
            af.Gaussian(np.zeros(dim), np.eye(dim)),
            spec.late,
            save_at=times,
            rtol=1e-5,
            atol=1e-8,
            max_steps=10_000,
        )
        ended.append(path.status.kind)
        if ended[-1] == "reached":
            alive.append(np.abs(_spectra(path)[-2:]))
    return np.array(alive).reshape(-1, 2, dim), dict(collections.Counter(ended))


def checks(result: Result) -> list[Check]:
    """Closed forms, SciPy, tokens; and the ranks."""
    (found, exact), wrong = result.blow_up.T, result.formula[:, 1:].min(axis=1)
    limits = {dim: result.ranks(dim) for dim in result.spec.dims}
    return [
        *(
            Check(f"{name}: tokens less the affine velocity", float(gap.max()), 0.0, 1e-5, "gaussian")
            for name, gap in result.affine.items()
        ),
        Check("softmax: time of blow-up over the closed form", float((found / exact).max()), 1.0, 1e-5, "blow-up"),
        Check("softmax: $S$ half way to the blow-up against the closed form", float(result.inverse.max()), 0.0, 1e-5, "blow-up"),
        Check(f"L2: $S$ at {result.spec.longer:g} times that time, against SciPy", float(result.l2.max()), 0.0, 1e-8, "existence"),
        Check("Sinkhorn: residual of $W + W A S A^T W = S$", float(result.residual.max()), 0.0, 1e-12, "sinkhorn"),
        Check("Sinkhorn: $S'$ by the formula against tokens", float(result.formula[:, 0].max()), 0.0, 1e-6, "sinkhorn"),
        Check("Sinkhorn: error of the formula over that as printed", float((result.formula[:, 0] / wrong).max()), 0.0, 1e-2, "sinkhorn"),
        *(Check(f"{name}: second eigenvalue from rank one", second, 0.0, 1e-9, "rank") for name, second in result.second.items()),
        *(
            Check(f"$d = {d}$: share of limits with rank below $d$", float((rank < d).mean()), 1.0, 0.0, "low rank")
            for d, rank in limits.items()
        ),
        *(
            Check(f"$d = {d}$: share of limits with rank at most $d/2$", float((rank <= d // 2).mean()), 1.0, 0.1)
            for d, rank in limits.items()
        ),
    ]


def measured(result: Result) -> dict[str, Any]:
    """The ranks of the limits, how often there is none, and how wrong the printed formula is."""
    return {
        "runs by rank of the limit": {f"d = {dim}": np.bincount(result.ranks(dim), minlength=dim + 1).tolist() for dim in result.spec.dims},
        "runs by how they ended": {f"d = {dim}": ended for dim, ended in result.ended.items()},
        "relative error of S' under Sinkhorn attention": dict(
            zip(("as stated", "as printed", "with A = 2 K^T Q"), result.formula.T.tolist())
        ),
    }


def figure(result: Result) -> "matplotlib.figure.Figure":
    """The largest eigenvalue up to the blow-up and beyond, and the ranks of the limits."""
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.38 * af.plot.PAGE)
        left, right = page.subplots(1, 2)
        for color, (name, paths) in zip(af.plot.COLORS, result.paths.items()):
            for k, (path, (_, exact)) in enumerate(zip(paths, result.blow_up)):
                left.semilogy(path[:, 0] / exact, path[:, 1], color=color, linewidth=0.9, label=None if k else name)
        left.axvline(1, color="0.6", linewidth=0.6, linestyle="--")
        left.set(xlabel="$t$ / closed-form time of blow-up", ylabel=r"$\lambda_{\max}(S)$", title="softmax and L2")
        left.set_ylim(top=1e4)
        left.legend(loc="lower right")
        dims = result.spec.dims
        for i, (color, dim) in enumerate(zip(af.plot.COLORS, dims)):
            counts = np.bincount(result.ranks(dim), minlength=max(dims) + 1)
            width = 0.8 / len(dims)
            right.bar(np.arange(max(dims) + 1) - 0.4 + (i + 0.5) * width, counts / counts.sum(), width, color=color, label=f"$d = {dim}$")
        right.set(xlabel="rank of the limit", ylabel="share of runs that settle", title="softmax, random $Q$, $K$, $V$")
        right.legend(loc="upper right")
    return page
