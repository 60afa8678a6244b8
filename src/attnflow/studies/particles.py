r"""Interacting particles step by step: Sinkhorn attention keeps their mean, softmax does not (slides of arXiv:2406.10823).

Two updates, with the attention matrix $K$ of the tokens themselves at temperature $\varepsilon$:

- raw, $x_i \leftarrow x_i + \sum_j K_{ij} V x_j$;
- normalized, $z_i \leftarrow z_i + \sum_j K_{ij} V z_j - V z_i$.

The columns of a Sinkhorn matrix sum to one, so the raw mean obeys $m \leftarrow (I + V) m$ and the normalized one stays. With $V = I$ the
normalized update is $z \leftarrow K z$. By Jensen's inequality the average of every convex function then falls; the distance from the mean
shrinks at least by the second singular value of $K$. Tokens never spread, logits stay bounded, and so do the entries of $K$ from below:
the cloud shrinks to its mean, geometrically. The slides of the paper list "vertices of a polytope" for this case, which is the limit for
softmax in the rescaled flow (arXiv:2305.05465), where logits grow.
"""

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from jaxtyping import Float

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import Checked, Meta, Seed

if TYPE_CHECKING:
    import matplotlib.figure

_LAWS = {"Sinkhorn": af.Sinkhorn, "softmax": af.Softmax}

CLAIMS = {
    "mean": Claim(
        r"Sinkhorn attention moves the mean by $m \leftarrow (I + V) m$, and not at all in the normalized update; softmax moves it "
        "otherwise.",
        "elementary: columns sum to one",
        "proved",
    ),
    "consensus": Claim(
        r"Under $z \leftarrow K z$ with $K$ the Sinkhorn matrix of $z$ tokens shrink to their mean, in each step by its second singular "
        "value or more.",
        "slides of arXiv:2406.10823",
        "differs",
        "With $W_Q^T W_K > 0$ and $W_V = I$ the limit of the normalized update is the vertices of a polytope.",
        r"Our setting: $W_Q^T W_K = W_V = I$, $\varepsilon = 1$, $K$ the converged Sinkhorn matrix of the tokens $z$ "
        r"themselves, tokens in the plane in "
        "three groups. $K$ is doubly stochastic and its entries stay away from 0 while tokens stay bounded, so that $z - m$ "
        "shrinks in each step by "
        "a factor below 1.",
        "We are sure of the limit in this setting. The table beside the update is that of softmax attention in the rescaled flow "
        "(arXiv:2305.05465), where logits grow and vertices are right; we think it was meant there.",
    ),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """The tokens and the temperature."""

    n: Annotated[int, Meta(ge=6)] = 96
    """how many tokens in the plane, in three groups at the start"""
    eps: Annotated[float, Meta(ge=0.25, description="as the time to shrink is exponential in 1/eps")] = 1.0
    r"""the temperature of the logits $\langle x, y\rangle / \varepsilon$"""
    steps: Annotated[int, Meta(ge=2)] = 5
    """how many updates are shown"""
    long: int = 60
    """after how many the cloud is a point"""
    seed: Seed = 0
    """of the start"""

    def check(self) -> None:
        if self.long < self.steps:
            raise ValueError(f"long must be at least steps, got {self.long} and {self.steps}")


@dataclasses.dataclass(frozen=True)
class Result:
    """Tokens `[step, token, 2]` under each law: raw, raw with NumPy, normalized, normalized with NumPy; a slow Sinkhorn path to show; and
    the second singular values of its matrices at the steps of the normalized update."""

    spec: Spec
    raw: dict[str, Float[np.ndarray, "k n 2"]]
    raw_by_hand: dict[str, Float[np.ndarray, "k n 2"]]
    normalized: dict[str, Float[np.ndarray, "l n 2"]]
    normalized_by_hand: dict[str, Float[np.ndarray, "k n 2"]]
    second: Float[np.ndarray, " s"]
    slow: af.Path

    def spread(self, name: str) -> Float[np.ndarray, " k"]:
        """The root mean square distance from the mean at each step of the normalized update."""
        z = self.normalized[name]
        return np.sqrt(((z - z.mean(axis=1, keepdims=True)) ** 2).sum(axis=2).mean(axis=1))


FAST = Spec(n=24, steps=3, long=40)


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """Both updates under both laws, by layers and by hand."""
    spec = Spec() if spec is None else spec
    mu, raw, normalized = af.Particles(start(spec)), {}, {}
    for name in _LAWS:
        raw[name] = np.asarray(af.layers(law(name, spec), mu, spec.steps).states)
        normalized[name] = np.asarray(af.layers(af.normalized_update(law(name, spec)), mu, spec.long).states)
    by_hand = {name: follow(mu.points, spec.steps, name, spec, frame=False) for name in _LAWS}
    framed = {name: follow(mu.points, spec.steps, name, spec, frame=True) for name in _LAWS}
    second = [np.linalg.svd(matrix(z, "Sinkhorn", spec), compute_uv=False)[1] for z in framed["Sinkhorn"][:-1]]
    # As deep as before: the same program serves.
    slow = af.layers(af.normalized_update(law("Sinkhorn", spec)), mu, spec.long, step=spec.steps / spec.long)
    return Result(spec, raw, by_hand, normalized, framed, np.array(second), slow)


def start(spec: Spec) -> Float[np.ndarray, "n 2"]:
    """Three groups of unequal size, so that no symmetry keeps the mean."""
    rng = np.random.default_rng(spec.seed)
    centers = np.array([[1.6, 0.2], [-0.9, 1.1], [-0.4, -1.2]])
    return centers[rng.choice(3, spec.n, p=[0.2, 0.5, 0.3])] + 0.35 * rng.normal(size=(spec.n, 2))


def law(name: str, spec: Spec) -> af.Attention:
    eye = np.eye(2)
    return af.Attention(af.dot_product(eye, eye, temperature=spec.eps), eye, _LAWS[name]())


def follow(points: Any, steps: int, name: str, spec: Spec, frame: bool) -> Float[np.ndarray, "k n 2"]:
    """The update in NumPy."""
    states = [np.asarray(points)]
    for _ in range(steps):
        x = states[-1]
        states.append(matrix(x, name, spec) @ x + (0 if frame else x))
    return np.stack(states)


def matrix(x: Float[np.ndarray, "n 2"], name: str, spec: Spec) -> Float[np.ndarray, "n n"]:
    """Softmax or Sinkhorn of <x_i, x_j> / eps in NumPy; the latter by the symmetric update K = e^{f + l + f}, until nothing changes."""
    logits = x @ x.T / spec.eps
    if name == "softmax":
        return np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
    f = -np.diag(logits) / 2
    for _ in range(10_000):
        target = -np.logaddexp.reduce(logits + f[None], axis=1)
        f = (f + target) / 2
        if np.abs(f - target).max() < 1e-13 * (1 + np.abs(f).max()):
            break
    return np.exp(logits + f[:, None] + f[None])


def checks(result: Result) -> list[Check]:
    """Against NumPy, conservation and singular values."""
    spec, scale = result.spec, 2.0 ** np.arange(result.spec.steps + 1)[:, None, None]
    m = start(spec).mean(axis=0)
    found = []
    for name in _LAWS:
        # The raw tokens grow like 2^k.
        raw = np.abs(result.raw[name] - result.raw_by_hand[name]) / scale
        framed = np.abs(result.normalized[name][: spec.steps + 1] - result.normalized_by_hand[name])
        found.append(Check(f"{name}: raw update against NumPy", float(raw.max()), 0.0, 1e-7))
        found.append(Check(f"{name}: normalized update against NumPy", float(framed.max()), 0.0, 1e-7))
    drift = {name: np.linalg.norm((result.raw[name] / scale).mean(axis=1) - m, axis=1).max() for name in _LAWS}
    moved = {name: np.linalg.norm(result.normalized[name].mean(axis=1) - m, axis=1).max() for name in _LAWS}
    spread = result.spread("Sinkhorn")
    shrinking = spread[1 : spec.steps + 1] / spread[: spec.steps]
    return [
        *found,
        Check("Sinkhorn: the raw mean is $(I + V)^k m$, up to a factor", float(drift["Sinkhorn"]), 0.0, 1e-9, "mean"),
        Check("Sinkhorn: the normalized mean stays", float(moved["Sinkhorn"]), 0.0, 1e-9, "mean"),
        Check("softmax moves both means by more than 0.05", float(min(drift["softmax"], moved["softmax"]) > 0.05), 1.0, 0.0, "mean"),
        Check(
            "Sinkhorn: largest shrinking over the singular value, less 1",
            float(max(0, *(shrinking / result.second - 1))),
            0.0,
            1e-8,
            "consensus",
        ),
        Check(
            f"Sinkhorn: distance from the mean after {spec.long} steps over that at the start",
            float(spread[-1] / spread[0]),
            0.0,
            1e-10,
            "consensus",
        ),
    ]


def measured(result: Result) -> dict[str, Any]:
    """The spread of the tokens and where their mean is, at the steps shown."""
    shown = slice(result.spec.steps + 1)
    return {name: {"spread": result.spread(name)[shown], "mean": z.mean(axis=1)[shown]} for name, z in result.normalized.items()}


def figure(result: Result) -> "matplotlib.figure.Figure":
    """The tokens at every step of the normalized update, with their mean and where it was."""
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.37 * af.plot.PAGE)
        panels = page.subplots(2, result.spec.steps + 1, sharex=True, sharey=True)
        m = start(result.spec).mean(axis=0)
        for k, ax in enumerate(panels[0]):
            ax.set_title(f"$k = {k}$")
        for color, row, (name, states) in zip(af.plot.COLORS, panels, result.normalized.items()):
            for ax, z in zip(row, states):
                ax.plot(*z.T, ".", color=color, markersize=4, markeredgewidth=0)
                ax.plot(*m, "+", color="0.2", markersize=9, markeredgewidth=0.9, label="mean at the start")
                ax.plot(*z.mean(axis=0), "o", color=af.plot.COLORS[4], markersize=4, fillstyle="none", label="mean")
                ax.set(aspect="equal", xticks=[-1, 1], yticks=[-1, 1])
            row[0].set_ylabel(name)
        page.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return page


def movie(result: Result, file: str | pathlib.Path) -> None:
    """The Sinkhorn flow in small steps."""
    af.plot.movie(result.slow, file, fps=12.0)
