r"""The spectrum of $V$ decides what tokens tend to: a polytope, hyperplanes, polytope × subspace, or nothing (arXiv:2305.05465).

Tokens in $\mathbb{R}^d$ under softmax attention with $A = I$, in the frame $z = e^{-tV} x$, from many random starts. The limit of each is
found by `af.limit_shape`, which is told $V$ but not the theorem, and compared with `af.predict_limit`:

- $V = I$: the tokens gather at the vertices of a polytope. The hull of $z$ only shrinks on the way;
- $V$ with a simple largest eigenvalue: the product with the left eigenvector takes at most three values;
- $V = I$ on a subspace and smaller on an invariant complement: a polytope in the one, anything in the other. In the plane the subspace is a
  line and the polytope a segment, so that these are hyperplanes again. The small eigenvalue is negative here: $z$ runs off along them;
- $V = -I$: $z$ diverges like $e^t t^{-1/2}$, because $x$ itself tends to 0 like $t^{-1/2}$.

All of this is about softmax. With doubly stochastic attention and $V = I$ there is no polytope: as the logits
$e^{2t} \langle z_i, z_j\rangle$ grow, the matrix tends to the permutation with the largest sum of logits, the identity, and tokens freeze
where they are before they have gathered.

On the line with $V = 1$ the attention matrix of $x$ tends to a Boolean one: all rows but at most one pick the largest or the smallest
token.

The matrices here are gentle. Measured to $t = 18$ from 100 starts of 20 tokens with other ones, no verdict is wrong, but some are
undecided: with the eigenvalues 1 and 0.8 in the plane 21, because a token whose own pull is $e^{1.6 t}$ follows the others, $e^{2t}$,
late; with 1, 0.3 and -0.2 in space and eigenvectors far from orthogonal 3, whose equation becomes too stiff for explicit steps.
"""

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import Checked, Count, Meta, Seed, each_of
from attnflow.studies.tools.fit import PowerLaw, power_law
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

_FRAMES, _LINE_FRAMES = 151, 31
_FROZEN_TIME = 5.0
# Eigenvectors that are not orthogonal, as columns: with orthogonal ones the left and the right eigenvectors would be the same.
_PLANE = np.array([[1.0, 0.6], [0.5, -1.0]])
_SOLID = np.array([[1.0, 0.0, 0.4], [0.0, 1.0, 0.4], [0.3, 0.0, 1.0]])

_PAPER = "arXiv:2305.05465"
CLAIMS = {
    "polytope": Claim("$V = I$: $z$ tends to the boundary of a convex polytope, in a hull that only shrinks.", _PAPER, "proved"),
    "hyperplanes": Claim("$V$ with a simple largest eigenvalue: $z$ along it takes at most three values in the limit.", _PAPER, "proved"),
    "polytope x subspace": Claim(
        r"$V = I$ on a subspace, smaller on a complement: $z$ tends to $\text{polytope} \times \text{subspace}$.", _PAPER, "proved"
    ),
    "divergence": Claim("$V = -I$: $z$ diverges, like $e^t t^{-1/2}$, while $x$ tends to $0$ like $t^{-1/2}$.", _PAPER, "proved"),
    "boolean": Claim(
        "$d = 1$, $V > 0$: all rows of the matrix but at most one tend to pick the first or the last token.", _PAPER, "proved"
    ),
}


def values(dim: int) -> dict[str, np.ndarray]:
    """V by name, in dimension 2 or 3."""
    if dim == 2:
        simple, several = _with(_PLANE, [1.0, 0.3]), _with(_PLANE, [1.0, -0.5])
    else:
        # Eigenvalues 1 and 0.3 +- 0.6 i.
        simple, several = np.array([[1, 0.2, 0.1], [0, 0.3, -0.6], [0, 0.6, 0.3]]), _with(_SOLID, [1.0, 1.0, -0.5])
    return {"V = I": np.eye(dim), "simple": simple, "paranormal": several, "V = -I": -np.eye(dim)}


def _with(vectors: np.ndarray, eigenvalues: list[float]) -> np.ndarray:
    return vectors @ np.diag(eigenvalues) @ np.linalg.inv(vectors)


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """How many starts, of how many tokens, until when."""

    starts: Count = 100
    """how many random starts for every V"""
    tokens: Annotated[int, Meta(ge=3)] = 20
    """how many tokens, uniform in $[-5, 5]^d$"""
    t1: Annotated[float, Meta(ge=1)] = 18.0
    """the final time"""
    t_raw: Annotated[float, Meta(ge=100)] = 1000.0
    """the final time of x itself for V = -I"""
    dims: Annotated[tuple[int, ...], Meta(min_length=1), each_of(2, 3)] = (2, 3)
    """the dimensions, of 2 and 3"""
    frozen: Annotated[int, Meta(ge=0)] = 10
    """how many starts, at most, are also moved by Sinkhorn attention"""
    seed: Seed = 0
    """of the starts"""


@dataclasses.dataclass(frozen=True)
class Geometry:
    """One V: what was predicted, and the verdict on every start; the frames `[t, n, d]` of the first one are kept."""

    name: str
    value: Float[np.ndarray, "d d"]
    predicted: af.Prediction
    verdicts: list[af.Verdict]
    ts: Float[np.ndarray, " t"]
    states: Float[np.ndarray, "t n d"]

    @property
    def dim(self) -> int:
        return len(self.value)

    @property
    def rate(self) -> float:
        """The share of starts whose verdict is what was predicted."""
        return sum(self.predicted.agrees(v) for v in self.verdicts) / len(self.verdicts)

    @property
    def wrong(self) -> int:
        """How many verdicts are decided, and not what was predicted."""
        return sum(v.shape != "undecided" and not self.predicted.agrees(v) for v in self.verdicts)

    @property
    def counts(self) -> dict[int, int]:
        """How often each number of vertices, hyperplanes or diverging tokens occurs."""
        return dict(sorted(collections.Counter(v.count for v in self.verdicts if v.count is not None).items()))


@dataclasses.dataclass(frozen=True)
class Line:
    """d = 1: the frames `[s, t, n]` of z for every start, the distance `[s, t, n]` of each row from Boolean; at the end how many rows pick
    another token than the largest and the smallest `[s]`, how many leaders there are `[s]`, and the numerical rank `[s]`."""

    ts: Float[np.ndarray, " t"]
    states: Float[np.ndarray, "s t n"]
    distances: Float[np.ndarray, "s t n"]
    others: Int[np.ndarray, " s"]
    leaders: Int[np.ndarray, " s"]
    ranks: Int[np.ndarray, " s"]

    def open_rows(self, tolerance: float = 1e-3) -> Int[np.ndarray, " s"]:
        """How many rows are not Boolean at the end."""
        return (self.distances[:, -1] > tolerance).sum(axis=1)


@dataclasses.dataclass(frozen=True)
class Result:
    """`swelling`: the largest growth of the hull of z in any direction between two frames for V = I, over its size. `raw`: the largest |x|
    `[t]` at `raw_ts` for V = -I. `frozen`: for Sinkhorn attention with V = I the number of places at the end over that of tokens."""

    spec: Spec
    geometries: list[Geometry]
    swelling: float
    raw_ts: Float[np.ndarray, " t"]
    raw: Float[np.ndarray, " t"]
    line: Line
    frozen: Float[np.ndarray, " s"]

    @property
    def decay(self) -> PowerLaw:
        """Of |x| for V = -I, over the last decade of time."""
        late = self.raw_ts >= self.raw_ts[-1] / 10
        return power_law(self.raw_ts[late], self.raw[late])


FAST = Spec(starts=1, tokens=12, frozen=0)


def law(value: np.ndarray) -> af.Attention:
    return af.Attention(af.dot_product(np.eye(len(value)), np.eye(len(value))), value)


def starts(spec: Spec, dim: int) -> Iterator[af.Particles]:
    """The same starts for every V of a dimension."""
    for i in range(spec.starts):
        yield af.Particles(np.random.default_rng([spec.seed, dim, i]).uniform(-5, 5, size=(spec.tokens, dim)))


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """Every V from every start, then the raw tokens for V = -I, then the line. One program is compiled for each dimension."""
    spec = Spec() if spec is None else spec
    jobs = [(name, value) for dim in spec.dims for name, value in values(dim).items()]
    geometries, swollen = zip(*parts(lambda job: _geometry(*job, spec), jobs, "limit geometries", progress, like=(Geometry, None)))
    largest = max(most for (name, _), most in zip(jobs, swollen) if name == "V = I")
    (raw,) = parts(_raw, [spec], "raw tokens", progress)
    (line,) = parts(_line, [spec], "line", progress, like=Line)
    (frozen,) = parts(_frozen, [spec], "Sinkhorn", progress)
    return Result(spec, list(geometries), largest, *raw, line, frozen)


def _geometry(name: str, value: np.ndarray, spec: Spec) -> tuple[Geometry, float]:
    field, eye = af.rescaled(law(value)), np.eye(len(value))
    verdicts, first, swollen = [], None, 0.0
    for mu in starts(spec, len(value)):
        path = af.solve(field, mu, spec.t1, save_at=_FRAMES)
        verdicts.append(af.limit_shape(path, value=value))
        swollen = max(swollen, swelling(np.asarray(path.states)))
        first = path if first is None else first
    assert first is not None
    ts, states = np.asarray(first.ts), np.asarray(first.states)
    return Geometry(name, value, af.predict_limit(eye, eye, value), verdicts, ts, states), swollen


def swelling(states: Float[np.ndarray, "t n d"]) -> float:
    """How much the hull grows between two frames, at most, in 200 directions; over its first radius."""
    directions = np.random.default_rng(0).normal(size=(200, states.shape[2]))
    support = (states @ (directions / np.linalg.norm(directions, axis=1, keepdims=True)).T).max(axis=1)
    return float(np.diff(support, axis=0).max() / np.linalg.norm(states[0], axis=1).max())


def _raw(spec: Spec) -> tuple[np.ndarray, np.ndarray]:
    """The largest |x| for V = -I from the first start."""
    times = np.concatenate([[0.0], np.geomspace(0.01, spec.t_raw, 80)])
    dim = min(spec.dims)
    path = af.solve(law(-np.eye(dim)), next(starts(spec, dim)), spec.t_raw, save_at=times)
    return times[1:], np.linalg.norm(np.asarray(path.states)[1:], axis=2).max(axis=1)


def _line(spec: Spec) -> Line:
    one = np.eye(1)
    field, every = af.rescaled(law(one)), []
    for mu in starts(spec, 1):
        path = af.solve(field, mu, spec.t1, save_at=_LINE_FRAMES)
        # The matrix is that of x = e^t z.
        frames = [af.leaders(law(one), af.Particles(jnp.exp(t) * z.points)) for t, z in zip(path.ts, path)]
        x, last = np.asarray(path.final.points)[:, 0], frames[-1]
        rank = af.attention_rank(law(one), af.Particles(jnp.exp(path.ts[-1]) * path.final.points)).numerical
        other = int((~np.isin(last.picked, [x.argmin(), x.argmax()])).sum())
        every.append((np.asarray(path.states)[..., 0], [frame.distance for frame in frames], other, len(last.tokens), int(rank)))
    states, distances, others, leaders, ranks = (np.array(column) for column in zip(*every))
    return Line(np.asarray(path.ts), states, distances, others, leaders, ranks)


def _frozen(spec: Spec) -> Float[np.ndarray, " s"]:
    """For some of the starts in the plane: how many tokens stay apart, under Sinkhorn attention with V = I."""
    field = af.rescaled(af.Attention(af.dot_product(np.eye(2), np.eye(2)), np.eye(2), af.Sinkhorn(tolerance=1e-6, max_iterations=5000)))
    found = []
    for mu in itertools.islice(starts(spec, 2), spec.frozen):
        x = np.asarray(af.solve(field, mu, _FROZEN_TIME, save_at=1, rtol=1e-5).final.points)
        together = np.linalg.norm(x[:, None] - x[None], axis=2) < 0.05
        found.append(len(np.unique(together.argmax(axis=1))) / len(x))
    return np.array(found)


def checks(result: Result) -> list[Check]:
    """The verdicts against the theorems, and what is known about the way there."""
    found = []
    for g in result.geometries:
        where = f"$d = {g.dim}$, " + (f"${g.name}$" if "=" in g.name else g.name)
        found.append(Check(f"{where}: share of starts that tend to {g.predicted.shape}", g.rate, 1.0, 0.02, g.predicted.shape))
        found.append(Check(f"{where}: verdicts for another shape", float(g.wrong), 0.0, 0.0, g.predicted.shape))
        if g.name == "V = -I":
            # |z| = e^t |x| and |x| ~ t^(-1/2), over the last tenth of the run.
            window = 0.1 * result.spec.t1
            expected = 1 - 0.5 * math.log(1 / 0.9) / window
            growth = float(np.median([math.nan if v.growth is None else v.growth for v in g.verdicts]))
            found.append(Check(rf"{where}: $d \log \lvert z \rvert / dt$ at the end", growth, expected, 0.01, "divergence"))
    line = result.line
    return [
        *found,
        Check("$V = I$: largest growth of the hull of $z$", max(result.swelling, 0.0), 0.0, 1e-6, "polytope"),
        Check(r"$V = -I$: power of $t$ in $\lvert x \rvert$", result.decay.slope, -0.5, 0.02, "divergence"),
        *(Check("Sinkhorn, $V = I$: places over tokens, on average", float(x.mean()), 1.0, 0.15) for x in [result.frozen] if len(x)),
        Check("line: starts with more than one row that is not Boolean", float((line.open_rows() > 1).sum()), 0.0, 0.0, "boolean"),
        Check("line: starts with more than one row that picks neither end", float((line.others > 1).sum()), 0.0, 0.0, "boolean"),
        # A row that is not Boolean can add one to the rank.
        Check("line: numerical rank less the number of leaders, largest", float(np.abs(line.ranks - line.leaders).max()), 0.0, 1.0),
    ]


def measured(result: Result) -> dict[str, Any]:
    """For every V the rate, how often each count occurs, and the slowest start; then the line."""
    return {
        "geometries": {
            f"d = {g.dim}, {g.name}": {
                "predicted": g.predicted.shape,
                "rate": g.rate,
                "undecided": sum(v.shape == "undecided" for v in g.verdicts),
                "counts": {str(k): n for k, n in g.counts.items()},
                "moved at most": max((v.moved for v in g.verdicts if v.moved is not None), default=None),
            }
            for g in result.geometries
        },
        "swelling of the hull": result.swelling,
        "power of t in |x| for V = -I": [result.decay.slope, result.decay.half_width],
        "places over tokens with Sinkhorn attention": result.frozen,
        "line": {
            "rows that are not Boolean, by start": result.line.open_rows(),
            "leaders": result.line.leaders,
            "ranks": result.line.ranks,
        },
    }


def figure(result: Result) -> "dict[str, matplotlib.figure.Figure]":
    """The geometries, and the way to a Boolean matrix on the line."""
    from attnflow.studies.tools.geometry_drawing import boolean, gallery

    return {"geometries": gallery(result), "leaders": boolean(result)}
