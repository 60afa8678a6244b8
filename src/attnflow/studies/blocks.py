r"""Whole transformer blocks, heads with perceptrons on the sphere, are one flow, and their tokens gather too (arXiv:2312.10794).

With $H$ heads, each with its own matrices and its own perceptron $f_h$,

$$x_i' = \frac1H \sum_h P_{x_i} f_h\Bigl(V_h \sum_j \mathrm{softmax}_j(\langle Q_h x_i, K_h x_j\rangle)\, x_j\Bigr),
\qquad P_x y = y - \langle x, y\rangle\, x.$$

Shown here for heads near simple attention and perceptrons $U \tanh(W y + b)$ near the identity, with random parts: the flow is the one
that SciPy finds, tokens stay on the sphere and gather in a few clusters, and a stack of layers $x \leftarrow (x + h F(x)) / |x + h F(x)|$
with step $h$ = $t$/depth tends to the flow at order one.
"""

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import jax.numpy as jnp
import numpy as np
import scipy.integrate
import scipy.sparse.csgraph
from jaxtyping import Float, Int

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import RISING, Checked, Count, Meta, Positive, Seed
from attnflow.studies.tools.fit import PowerLaw, power_law

if TYPE_CHECKING:
    import matplotlib.figure

_PAPER, _DIM, _HIDDEN, _RADIUS = "lecture notes on arXiv:2312.10794", 3, 6, 0.1
CLAIMS = {
    "sphere": Claim(
        r"The flow $x_i' = \frac{1}{K} \sum_k P_{x_i} \operatorname{MLP}_k(V_k a_{ik})$, with $a_{ik}$ the softmax average of head $k$ "
        "seen from token $i$, keeps tokens on the sphere.",
        _PAPER,
        "proved",
    ),
    "clusters": Claim("With several heads and perceptrons the tokens gather in a few clusters.", _PAPER, "numerics"),
    "order": Claim(
        r"A stack of normalized layers of step $h = t/\text{depth}$ tends to the flow at time $t$ at order one in $h$.",
        "Euler's method; the limit of arXiv:2312.10794",
        "proved",
    ),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """The blocks and the tokens."""

    n: Annotated[int, Meta(ge=4)] = 96
    """how many tokens, uniform on $S^2$ at the start"""
    heads: Count = 4
    """how many heads"""
    beta: Positive = 4.0
    """the inverse temperature around which the heads are"""
    noise: Annotated[float, Meta(ge=0, le=1)] = 0.3
    """the size of the random part of every matrix"""
    t1: Annotated[float, Meta(gt=0, le=1000)] = 20.0
    """the final time"""
    compared: Positive = 2.0
    """when stacks of layers are compared with the flow"""
    depths: Annotated[tuple[Annotated[int, Meta(ge=5)], ...], Meta(min_length=3), RISING] = (80, 160, 320, 640)
    """how many layers the stacks have, rising"""
    seed: Seed = 5
    """of the matrices and the tokens"""

    def check(self) -> None:
        if not self.compared < self.t1:
            raise ValueError(f"compared must lie between 0 and t1, got {self.compared} and {self.t1}")


@dataclasses.dataclass(frozen=True)
class Result:
    """The path, SciPy's states at some of its frames, how many clusters each frame has, and how far stacks are from the flow."""

    spec: Spec
    path: af.Path
    frames: tuple[int, ...]
    by_hand: Float[np.ndarray, "f n 3"]
    counts: Float[np.ndarray, " t"]
    errors: Float[np.ndarray, " k"]

    @property
    def order(self) -> PowerLaw:
        return power_law(self.spec.compared / np.array(self.spec.depths), self.errors)


FAST = Spec(n=24, heads=2, t1=10.0, compared=1.0, depths=(20, 40, 80))


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """The flow, then stacks of layers."""
    spec = Spec() if spec is None else spec
    rng = np.random.default_rng(spec.seed)
    heads = [matrices(rng, spec) for _ in range(spec.heads)]
    field, x = block(heads), rng.normal(size=(spec.n, _DIM))
    start = af.Particles(x / np.linalg.norm(x, axis=1, keepdims=True), space=af.Sphere())
    times = np.unique(np.append(np.linspace(0, spec.t1, 121), spec.compared))
    path = af.solve(field, start, spec.t1, save_at=times, rtol=1e-9, atol=1e-11, progress=progress)
    at = int(np.searchsorted(times, spec.compared))
    frames = (at, len(times) - 1)
    by_hand = follow(np.asarray(start.points), heads, times[list(frames)])
    stacks = [af.layers(field, start, depth, step=spec.compared / depth).final.points for depth in spec.depths]
    errors = np.array([np.linalg.norm(np.asarray(stack - path.states[at]), axis=1).max() for stack in stacks])
    counts = np.array([float(af.clusters(path[i], _RADIUS).count) for i in range(len(path))])
    return Result(spec, path, frames, by_hand, counts, errors)


def matrices(rng: np.random.Generator, spec: Spec) -> dict[str, np.ndarray]:
    """Those of one head: near simple attention, and a perceptron near the identity."""

    def random(*shape: int) -> np.ndarray:
        return spec.noise * rng.normal(size=shape)

    eye = np.eye(_DIM)
    both = np.concatenate([eye, eye])
    query, key = (np.sqrt(spec.beta) * (eye + random(_DIM, _DIM)) for _ in range(2))
    hidden, out = both + random(_HIDDEN, _DIM), both.T / 2 + random(_DIM, _HIDDEN) / 2
    return {"query": query, "key": key, "value": eye + random(_DIM, _DIM), "hidden": hidden, "out": out, "bias": random(_HIDDEN)}


def block(heads: list[dict[str, np.ndarray]]) -> af.MultiHead:
    """The heads, each with its perceptron after it."""
    fields = []
    for head in heads:
        mlp = af.Perceptron(head["hidden"], head["out"], hidden_bias=head["bias"], activation=jnp.tanh)
        fields.append(af.Attention(af.dot_product(head["query"], head["key"]), head["value"]).then(mlp))
    return af.MultiHead(fields)


def follow(start: Float[np.ndarray, "n 3"], heads: list[dict[str, np.ndarray]], times: Any) -> Float[np.ndarray, "f n 3"]:
    """The flow in NumPy and SciPy. Nothing brings tokens back to the sphere: the projection alone keeps them there."""

    def rate(t: float, flat: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
        x, total = flat.reshape(start.shape), np.zeros(start.shape)
        for head in heads:
            logits = (x @ head["query"].T) @ (x @ head["key"].T).T
            weights = np.exp(logits - logits.max(axis=1, keepdims=True))
            mean = weights @ x / weights.sum(axis=1, keepdims=True)
            total += np.tanh(mean @ head["value"].T @ head["hidden"].T + head["bias"]) @ head["out"].T / len(heads)
        return (total - (total * x).sum(axis=1, keepdims=True) * x).ravel()

    found = scipy.integrate.solve_ivp(rate, (0.0, times[-1]), start.ravel(), method="DOP853", t_eval=times, rtol=1e-10, atol=1e-12)
    return found.y.T.reshape(len(times), *start.shape)


def components(x: Float[np.ndarray, "n 3"]) -> Int[np.ndarray, " n"]:
    """The cluster of every token, by SciPy: parts of the graph of pairs within the radius."""
    return scipy.sparse.csgraph.connected_components(_angles(x) <= _RADIUS)[1]


def alone(x: Float[np.ndarray, "n 3"]) -> float:
    """The share of tokens that are clusters of their own."""
    return float((np.bincount(components(x)) == 1).sum() / len(x))


def compactness(x: Float[np.ndarray, "n 3"]) -> float:
    """The largest angle within a cluster over the smallest between two clusters; with one cluster alone, over a half turn."""
    angles, labels = _angles(x), components(x)
    together = labels[:, None] == labels[None]
    return float(angles[together].max() / angles[~together].min(initial=np.pi))


def _angles(x: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, "n n"]:
    return 2 * np.arcsin(np.clip(np.linalg.norm(x[:, None] - x[None], axis=2) / 2, 0, 1))


def checks(result: Result) -> list[Check]:
    """Against SciPy, the sphere, and the order of Euler's method."""
    spec, states = result.spec, np.asarray(result.path.states)
    apart, end = np.abs(states[list(result.frames)] - result.by_hand).max(axis=(1, 2)), result.by_hand[-1]
    return [
        Check(f"tokens against SciPy at $t = {spec.compared:g}$", float(apart[0]), 0.0, 1e-7),
        Check(f"tokens against SciPy at $t = {spec.t1:g}$", float(apart[1]), 0.0, 1e-5),
        Check("largest distance from the sphere", float(np.abs(np.linalg.norm(states, axis=2) - 1).max()), 0.0, 1e-14, "sphere"),
        Check(
            "the same with SciPy, without retraction", float(np.abs(np.linalg.norm(result.by_hand, axis=2) - 1).max()), 0.0, 1e-7, "sphere"
        ),
        Check("clusters at the end, less those by SciPy", float(result.counts[-1] - len(np.unique(components(end)))), 0.0, 0.0),
        Check("tokens by SciPy: clusters at the end over tokens", len(np.unique(components(end))) / spec.n, 0.0, 1 / 6, "clusters"),
        Check("tokens at the start: share of those alone", alone(states[0]), 1.0, 0.5, "clusters"),
        Check("tokens by SciPy: share of those alone at the end", alone(end), 0.0, 0.1, "clusters"),
        Check("tokens by SciPy: width of a cluster over the gap between two, at most", compactness(end), 0.0, 0.5, "clusters"),
        Check("order of the stack in the step", result.order.slope, 1.0, 0.1, "order"),
    ]


def measured(result: Result) -> dict[str, Any]:
    """The clusters at the end, and the errors of the stacks."""
    return {
        "clusters": int(result.counts[-1]),
        "errors": dict(zip(result.spec.depths, result.errors)),
        "order": [result.order.slope, result.order.half_width],
    }


def figure(result: Result) -> "matplotlib.figure.Figure":
    """The tokens at the start, on the way and at the end, the number of clusters, and the errors of the stacks."""
    spec, path = result.spec, result.path
    labels = af.clusters(path.final, _RADIUS).labels
    colors = np.array(af.plot.COLORS)[labels % len(af.plot.COLORS)].tolist()
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.72 * af.plot.PAGE)
        axes = page.subplot_mosaic([list("aaabbbccc"), list("ddddeeeee")], height_ratios=[1.1, 1])
        for name, i in {"a": 0, "b": result.frames[0], "c": len(path) - 1}.items():
            af.plot.tokens(path[i], axes[name], trail=path.states[: i + 1], color=colors, size=14.0)
            axes[name].set_title(f"$t = {float(path.ts[i]):g}$")
        axes["d"].semilogy(path.ts, result.counts, color=af.plot.COLORS[0])
        axes["d"].set(xlabel="$t$", ylabel=f"clusters, radius {_RADIUS:g}")
        steps = spec.compared / np.array(spec.depths)
        axes["e"].loglog(steps, result.errors, "o", color=af.plot.COLORS[0], markersize=4)
        axes["e"].loglog(steps, result.order(steps), color="0.4", linewidth=1, label=f"order {result.order.slope:.2f}")
        axes["e"].set_xticks(steps, [f"{step:g}" for step in steps])
        axes["e"].set_xticks([], minor=True)
        axes["e"].set(xlabel="step of a layer $h$", ylabel=f"error of the stack at $t = {spec.compared:g}$")
        axes["e"].legend(loc="upper left")
    return page


def movie(result: Result, file: str | pathlib.Path) -> None:
    """The tokens on the sphere."""
    af.plot.movie(result.path, file, size=16.0)
