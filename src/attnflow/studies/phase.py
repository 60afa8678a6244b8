r"""Tokens in high dimension collapse when the equiangular ones do, at the time $t$ with $g_\beta(t) = 1 - \delta$ (arXiv:2312.10794).

The $n$ tokens start uniformly on the sphere of $\mathbb{R}^d$ and move by simple attention, with softmax (SA) or without a normalization
(USA). Two tokens are together if their cosine is at least $1 - \delta$; the phase diagram shows the share of such pairs over time and
inverse temperature. For $d$ much larger than $n$ the tokens are nearly orthogonal at the start, and then all pairs have nearly the same
cosine: that of the scalar equation $g' = 2 e^{\beta g} (1-g) ((n-1)g+1) / (e^\beta + (n-1) e^{\beta g})$, for USA
$\frac2n e^{\beta g} (1-g) ((n-1)g+1)$, from $g = 0$. Measured here:

- the time at which half of the pairs are together, against that curve, in each dimension. It comes a little early: cosines at the start are
  of size $d^{-1/2}$, and $e^{\beta\langle x, y\rangle}$ gives weight to the larger ones;
- orthonormal tokens, which follow the curve exactly;
- the same diagram for random values, $V = I + C / 4$ with $C$ from a Gaussian or a Wigner ensemble, one for all time or a fresh one a unit
  of time. There is no curve for it.
"""

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import RISING, Checked, Count, Meta, Positive, Rule, Seed
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

_KINDS = {"softmax": "SA", "unnormalized": "USA"}
_WEIGHTS = {"goe": "GOE", "wigner": "Wigner", "resampled": "GOE, resampled"}
# Tokens so close are together for good.
_RADIUS = 0.01

_PAPER = "arXiv:2312.10794"
CLAIMS = {
    "softmax": Claim(
        r"For $d$ much larger than $n$ uniform tokens under SA come together when the equiangular ones do, where "
        r"$g_\beta(t) = 1 - \delta$.",
        _PAPER,
        "proved",
    ),
    "unnormalized": Claim(
        "For $d$ much larger than $n$ uniform tokens under USA come together when "
        r"$g' = \frac{2 e^{\beta g} (1 - g) ((n-1) g + 1)}{n}$ is at $g = 1 - \delta$.",
        _PAPER,
        "proved",
    ),
    "orthonormal": Claim(r"Orthonormal tokens stay equiangular, with the cosine $g_\beta(t)$ of a scalar equation.", _PAPER, "proved"),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """The tokens, the axes of the diagrams, and how often each point is drawn."""

    n: Annotated[int, Meta(ge=2)] = 32
    """how many tokens"""
    dims: Annotated[tuple[Annotated[int, Meta(ge=2)], ...], Meta(min_length=1), RISING] = (2, 8, 32, 128)
    """the dimensions, increasing"""
    delta: Annotated[float, Meta(gt=0, lt=1)] = 1e-3
    r"""two tokens with a cosine of at least $1 - \delta$ are together"""
    t1: Positive = 30.0
    """the final time of SA"""
    beta: Positive = 9.0
    """the largest inverse temperature of SA"""
    usa_t1: Positive = 4.0
    r"""the final time of USA, whose rates grow like $e^\beta$"""
    usa_beta: Positive = 5.0
    """the largest inverse temperature of USA"""
    betas: Annotated[int, Meta(ge=2)] = 90
    """how many inverse temperatures, from 0"""
    frames: Annotated[int, Meta(ge=2)] = 61
    """how many times"""
    seeds: Count = 32
    """how many starts for each inverse temperature"""
    random_dim: Annotated[int, Rule("0 or at least 2", lambda dim: dim == 0 or dim >= 2)] = 8
    """the dimension for random matrices; 0 leaves them out"""
    seed: Seed = 0
    """the first seed"""

    def axes(self, kind: str) -> tuple[np.ndarray, np.ndarray]:
        """Inverse temperatures and times of the diagram of a law."""
        beta, end = (self.beta, self.t1) if kind == "softmax" else (self.usa_beta, self.usa_t1)
        return np.linspace(0, beta, self.betas), np.linspace(0, end, self.frames)


@dataclasses.dataclass(frozen=True)
class Diagram:
    """The share of pairs that are together, `[beta, time]`, with its standard error; `times[beta]` is when half are, NaN if never."""

    kind: str
    name: str
    dim: int
    betas: Float[np.ndarray, " b"]
    ts: Float[np.ndarray, " t"]
    share: Float[np.ndarray, "b t"]
    error: Float[np.ndarray, "b t"]

    @property
    def times(self) -> Float[np.ndarray, " b"]:
        return crossing(self.ts, self.share, 0.5)


@dataclasses.dataclass(frozen=True)
class Result:
    """Diagrams by law and dimension, those of random matrices, the curve of each law, and how far orthonormal tokens are from it."""

    spec: Spec
    diagrams: list[Diagram]
    random: list[Diagram]
    curves: dict[str, Float[np.ndarray, " b"]]
    orthonormal: float

    def ratio(self, diagram: Diagram) -> Float[np.ndarray, " b"]:
        """The time at which half of the pairs are together over that of the curve, where both are in the diagram."""
        return diagram.times / self.curves[diagram.kind]


FAST = Spec(n=6, dims=(48,), t1=12.0, beta=2.0, usa_beta=2.0, betas=3, frames=25, seeds=4, random_dim=0)


def crossing(ts: np.ndarray, values: Float[np.ndarray, "b t"], level: float) -> Float[np.ndarray, " b"]:
    """When each row first reaches the level, by linear interpolation; NaN if it does not."""
    found = np.full(len(values), np.nan)
    for i, row in enumerate(values):
        k = int(np.argmax(row >= level))
        if row[k] >= level:
            found[i] = ts[0] if k == 0 else ts[k - 1] + (ts[k] - ts[k - 1]) * (level - row[k - 1]) / (row[k] - row[k - 1])
    return found


def curve(n: int, delta: float, betas: np.ndarray, ts: np.ndarray, kind: Any) -> Float[np.ndarray, " b"]:
    """When `g_beta(t) = 1 - delta`, NaN if later than the last of `ts`."""
    fine = np.linspace(0, ts[-1], 4001)
    return crossing(fine, np.stack([np.asarray(af.theory.equiangular(n, beta, fine, kind)) for beta in betas]), 1 - delta)


def together(mu: af.Particles, delta: float) -> Any:
    """The share of pairs of different tokens with a cosine of at least 1 - delta."""
    n = len(mu.points)
    near = mu.points @ mu.points.T >= 1 - delta
    return jnp.sum(jnp.where(jnp.eye(n, dtype=bool), False, near)) / (n * (n - 1))


def member(key: Any, beta: Any, *, n: int, dim: int, kind: str) -> Any:
    return af.simple_attention(beta, dim, _normalization(kind)), af.samplers.sphere(n, dim, key=key, dtype=jnp.float32)


def random_member(key: Any, beta: Any, *, n: int, dim: int, weights: str, layers: int) -> Any:
    """`A = beta I`, `V = I + C / 4`, C from an ensemble whose spectrum fills [-2, 2]: one for all time, or a fresh one a unit of time."""
    start, draw = jax.random.split(key)
    ensemble = af.matrices.wigner if weights == "wigner" else af.matrices.goe

    def law(key: Any) -> af.Attention:
        eye = jnp.eye(dim, dtype=jnp.float32)
        return af.Attention(af.Quadratic(beta * eye), eye + ensemble(dim, key=key, dtype=jnp.float32) / 4)

    field = af.resampled(law, draw, 1.0, layers) if weights == "resampled" else law(draw)
    return field, af.samplers.sphere(n, dim, key=start, dtype=jnp.float32)


def _normalization(kind: str) -> Any:
    return None if kind == "softmax" else af.Unnormalized()


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """Every diagram is one sweep, and a part, which itself shows how far it is."""
    spec = Spec() if spec is None else spec
    plans = [
        (functools.partial(member, n=spec.n, dim=dim, kind=kind), kind, _KINDS[kind], dim, spec, progress)
        for kind in _KINDS
        for dim in spec.dims
    ]
    diagrams = parts(lambda plan: _diagram(*plan), plans, "diagrams", like=Diagram)
    random = []
    if spec.random_dim:
        make = functools.partial(random_member, n=spec.n, dim=spec.random_dim, layers=math.ceil(spec.t1))
        plans = [
            (functools.partial(make, weights=weights), "softmax", name, spec.random_dim, spec, progress)
            for weights, name in _WEIGHTS.items()
        ]
        random = parts(lambda plan: _diagram(*plan), plans, "random values", like=Diagram)
    curves = {kind: curve(spec.n, spec.delta, *spec.axes(kind), kind) for kind in _KINDS}
    return Result(spec, diagrams, random, curves, max(parts(lambda kind: _orthonormal(kind, spec), _KINDS, "orthonormal", progress)))


def _diagram(make: Any, kind: str, name: str, dim: int, spec: Spec, progress: bool) -> Diagram:
    betas, ts = spec.axes(kind)
    seeds, observe = range(spec.seed, spec.seed + spec.seeds), {"share": functools.partial(together, delta=spec.delta)}
    # Under random values tokens that are together may part again, or turn for ever.
    until = af.Consensus(_RADIUS) if name in _KINDS.values() else None
    found = af.sweep(
        make, {"beta": betas}, seeds, ts[-1], save_at=ts, observe=observe, rtol=1e-3, atol=1e-5, until=until, progress=progress
    )
    mean, error = (np.asarray(part.share, np.float64) for part in af.over_seeds(found))
    return Diagram(kind, name, dim, betas, ts, mean, error)


def _orthonormal(kind: str, spec: Spec) -> float:
    """The largest difference between the common cosine of n orthonormal tokens and the scalar equation, over the whole diagram."""

    def make(key: Any, beta: Any) -> Any:
        return af.simple_attention(beta, spec.n, _normalization(kind)), af.samplers.orthonormal(spec.n, spec.n, key=key)

    betas, ts = spec.axes(kind)
    betas = betas[:: max(1, len(betas) // 8)]
    cosine = {"cosine": lambda mu: mu.points[0] @ mu.points[1]}
    found = af.sweep(make, {"beta": betas}, [spec.seed], ts[-1], save_at=ts, observe=cosine, rtol=1e-6, until=af.Consensus(1e-4))
    exact = np.stack([np.asarray(af.theory.equiangular(spec.n, beta, ts, kind)) for beta in betas])  # pyright: ignore[reportArgumentType]
    return float(np.abs(found.cosine.values[:, 0] - exact).max())


def checks(result: Result) -> list[Check]:
    """Both laws in the largest dimension against the curve, and what is exact."""
    largest = [diagram for diagram in result.diagrams if diagram.dim == result.spec.dims[-1]]
    found = [
        Check(
            f"{diagram.name}, $d = {diagram.dim}$: time of the transition over that of the curve, farthest from 1",
            _farthest(result.ratio(diagram)),
            1.0,
            0.25,
            diagram.kind,
        )
        for diagram in largest
    ]
    name = "orthonormal tokens: largest difference from the scalar equation"
    return [*found, Check(name, result.orthonormal, 0.0, 1e-4, "orthonormal")]


def _farthest(ratio: np.ndarray) -> float:
    """The ratio farthest from 1; NaN, which no check passes, if there is none."""
    known = ratio[np.isfinite(ratio)]
    return float(known[np.abs(np.log(known)).argmax()]) if len(known) else math.nan


def measured(result: Result) -> dict[str, Any]:
    """The times of all transitions, the curves, and their ratios."""
    return {
        "curves": result.curves,
        "transitions": {
            f"{d.name}, d = {d.dim}": {
                "beta": d.betas,
                "time": d.times,
                "farthest ratio": _farthest(result.ratio(d)),
                "largest standard error of the share": float(d.error.max()),
            }
            for d in [*result.diagrams, *result.random]
        },
        "orthonormal": result.orthonormal,
    }


def figure(result: Result) -> "matplotlib.figure.Figure":
    """A row of diagrams a law, with the curve on top, and one for random matrices."""
    rows = [[d for d in result.diagrams if d.kind == kind] for kind in _KINDS] + ([result.random] if result.random else [])
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.27 * af.plot.PAGE * len(rows))
        panels = page.subplots(len(rows), max(map(len, rows)), squeeze=False)
        image = None
        for line, diagrams in zip(panels, rows, strict=True):
            for ax in line[len(diagrams) :]:
                ax.set_axis_off()
            for ax, diagram in zip(line, diagrams):
                image = _image(ax, diagram)
                if diagram.name in _KINDS.values():
                    ax.plot(result.curves[diagram.kind], diagram.betas, color=af.plot.COLORS[4], linewidth=1.2)
                ax.set(title=f"{diagram.name}, $d = {diagram.dim}$", xlabel="$t$", xlim=diagram.ts[[0, -1]], ylim=diagram.betas[[0, -1]])
            line[0].set_ylabel(r"$\beta$")
        assert image is not None
        page.colorbar(image, ax=panels, label="share of pairs together", shrink=0.6, pad=0.01)
    return page


def _image(ax: Any, diagram: Diagram) -> Any:
    return ax.pcolormesh(diagram.ts, diagram.betas, diagram.share, cmap="Blues", vmin=0, vmax=1, shading="nearest", rasterized=True)
