r"""The score from $n$ tokens: the bridge has less bias than the kernel density, Richardson's extrapolation less still (arXiv:2406.10823).

Three estimates of $\nabla\log\rho$ from $n$ independent tokens, with the kernel $e^{-|x-y|^2 / (2\varepsilon)}$: the score of the kernel
density $(E[y|x] - x) / \varepsilon$, that is softmax attention; the bridge score $2 (B(x) - x) / \varepsilon$, doubly stochastic
attention; and $2 s_{\varepsilon/2} - s_\varepsilon$ of the bridge scores $s$. They are compared with the exact score of a mixture of two
Gaussians in $\mathbb{R}^1$, $\mathbb{R}^2$ and $\mathbb{R}^5$, at fixed points drawn from it; independent clouds split the squared error
into bias and variance. Errors are over the mean of $|\nabla\log\rho|^2$ at the points.

Known from expansions in $\varepsilon$: the biases $\varepsilon \nabla(\frac12 \Delta U + \frac12 |\nabla U|^2)$ of the kernel density and
$\varepsilon \nabla(\frac14 \Delta U + \frac18 |\nabla U|^2)$ of the bridge, $U = \log\rho$, and that Richardson's is of order
$\varepsilon^3$; the variances $c / (n\, \varepsilon^{d/2 + 1})$ as long as a kernel holds many tokens, with the least $c$ for the kernel
density. On quadrature tokens, which stand for $n = \infty$, the biases show without variance ($d = 1, 2$).
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import RISING, Checked, Count, Meta, Positive, Seed
from attnflow.studies.tools.parts import parts

if TYPE_CHECKING:
    import matplotlib.figure

METHODS = ("kernel density", "bridge", "Richardson")
# Quadrature tokens along an axis that stand for n = infinity; they serve colder than a cloud does, by so many halvings.
_NODES, _COLDER = {1: 800, 2: 72}, 3
# Far below the fluctuations of a cloud; far below the smallest bias.
_TOLERANCE, _FINE = 1e-5, 1e-10

_PAPER, _EXPANSION = "arXiv:2406.10823", r"expansion in $\varepsilon$ after arXiv:2406.10823"
CLAIMS = {
    "bridge": Claim(
        r"$(B - x)/\varepsilon$ tends to $\tfrac12 \nabla \log \rho$ as $\varepsilon$ falls, with a bias of order $\varepsilon$.",
        _PAPER,
        "proved",
    ),
    "bias": Claim(
        r"The score of the bridge has the bias $\varepsilon \nabla \bigl(\tfrac14 \Delta U + \tfrac18 \lvert \nabla U \rvert^2\bigr)$, "
        r"that of the kernel density $\varepsilon \nabla \bigl(\tfrac12 \Delta U + \tfrac12 \lvert \nabla U \rvert^2\bigr)$, "
        r"$U = \log \rho$.",
        _EXPANSION,
        "numerics",
    ),
    "richardson": Claim(
        r"The extrapolation $2 s_{\varepsilon/2} - s_\varepsilon$ of bridge scores has a bias of order $\varepsilon^3$.",
        _EXPANSION,
        "numerics",
    ),
    "sampled": Claim(
        r"Scores from $n$ tokens have a variance of order $1/n$; each at its best $\varepsilon$, the bridge errs less than the kernel "
        "density, and on the line Richardson's extrapolation less than the bridge.",
        _EXPANSION,
        "numerics",
    ),
}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """How many tokens, which temperatures, how many clouds."""

    dims: Annotated[tuple[Count, ...], Meta(min_length=1)] = (1, 2, 5)
    """the dimensions"""
    n: Annotated[tuple[Annotated[int, Meta(ge=2)], ...], Meta(min_length=2), RISING] = (128, 512, 2048)
    """how many tokens a cloud has"""
    largest_eps: Positive = 5.12
    """the largest temperature; the others are its halves"""
    halvings: Annotated[int, Meta(ge=5)] = 9
    """how many halves there are"""
    clouds: Annotated[int, Meta(ge=2)] = 16
    """how many independent clouds"""
    points: Count = 64
    """at how many points the scores are compared"""
    seed: Seed = 0
    """the seed; the same one gives the same numbers"""

    @property
    def eps(self) -> Float[np.ndarray, " k"]:
        """The temperatures of the estimates, falling; that after the last serves Richardson's extrapolation only."""
        return self.largest_eps * 0.5 ** np.arange(self.halvings)


@dataclasses.dataclass(frozen=True)
class Errors:
    """The errors in one dimension, by method, number of tokens and eps.

    - `bias2` `[3, n, k]`: the squared bias, without its share of variance, so that it may be slightly negative; `variance`: likewise.
    - `limit` `[3, l]`: the squared bias for n = infinity at `limit_eps`, NaN where it is not known.
    - `first` `[3]`: the limit of `limit / eps^2` by the theory; `converged`: whether all bridges are.
    """

    dim: int
    n: tuple[int, ...]
    eps: Float[np.ndarray, " k"]
    bias2: Float[np.ndarray, "3 n k"]
    variance: Float[np.ndarray, "3 n k"]
    limit_eps: Float[np.ndarray, " l"]
    limit: Float[np.ndarray, "3 l"]
    first: Float[np.ndarray, "3"]
    converged: bool

    @property
    def total(self) -> Float[np.ndarray, "3 n k"]:
        """The mean squared error."""
        return np.maximum(self.bias2, 0) + self.variance

    @property
    def best(self) -> tuple[Float[np.ndarray, "3 n"], Float[np.ndarray, "3 n"]]:
        """The best eps and its error, by a parabola in logarithms through the best temperature and its neighbors."""
        found = np.array([[_lowest(np.log(self.eps), np.log(row)) for row in rows] for rows in self.total])
        return np.exp(found[..., 0]), np.exp(found[..., 1])

    def growth(self) -> Float[np.ndarray, "3"]:
        """The exponent of n in the variance: the mean over the temperatures at which even the smallest cloud is dense, variance < 1/4."""
        slopes = np.log(self.variance[:, -1] / self.variance[:, 0]) / np.log(self.n[-1] / self.n[0])
        dense = self.variance[:, 0] < 0.25
        return np.where(dense, slopes, 0).sum(axis=1) / np.maximum(dense.sum(axis=1), 1)


@dataclasses.dataclass(frozen=True)
class Result:
    spec: Spec
    errors: list[Errors]


FAST = Spec(dims=(1,), n=(64, 256), largest_eps=2.56, halvings=6, clouds=12, points=32)


def law(dim: int) -> af.GaussianMixture:
    """`0.4 N(-1.5 e_1, I) + 0.6 N(1.5 e_1, diag(1/2, 1, ..., 1))`."""
    center, narrow = np.zeros(dim), np.ones(dim)
    center[0], narrow[0] = 1.5, 0.5
    return af.GaussianMixture([0.4, 0.6], [-center, center], [np.eye(dim), np.diag(narrow)])


def run(spec: Spec | None = None, progress: bool = False) -> Result:
    """Every dimension, every number of tokens, every temperature."""
    spec = Spec() if spec is None else spec
    return Result(spec, [measure(dim, spec, progress) for dim in spec.dims])


def measure(dim: int, spec: Spec, progress: bool = False) -> Errors:
    """One dimension; a part is all temperatures of one number of tokens."""
    mixture = law(dim)
    key, *keys = jax.random.split(jax.random.fold_in(jax.random.key(spec.seed), dim), len(spec.n) + 1)
    x = _clouds(mixture, spec.points, key[None])[0]
    exact = np.asarray(mixture.score(x))

    def sampled(plan: tuple[int, Any]) -> tuple[np.ndarray, bool]:
        clouds = _clouds(mixture, plan[0], jax.random.split(plan[1], spec.clouds))
        found = [_estimates(clouds, x, jnp.asarray(eps)) for eps in (*spec.eps, spec.eps[-1] / 2)]
        kernel, bridge, converged = ([np.asarray(one) for one in each] for each in zip(*found))
        return _split(_methods(kernel, bridge), exact), bool(np.all(converged))

    splits, converged = zip(*parts(sampled, list(zip(spec.n, keys)), f"scores in R^{dim}", progress))
    bias2, variance = np.stack(splits, axis=2) / _size(exact)
    limit_eps = spec.largest_eps * 0.5 ** np.arange(spec.halvings + _COLDER)
    (limit,) = parts(lambda eps: _limit(mixture, x, exact, eps) / _size(exact), [limit_eps], f"limit in R^{dim}", progress)
    first = np.array([_size(np.asarray(slope)) for slope in _first_order(mixture, x)] + [0.0]) / _size(exact)
    return Errors(dim, spec.n, spec.eps, bias2, variance, limit_eps, limit, first, all(converged))


@eqx.filter_jit
def _clouds(mixture: af.GaussianMixture, n: int, keys: Key[Array, " r"]) -> Float[Array, "r n d"]:
    return jax.vmap(lambda key: mixture.sample(n, key=key).points)(keys)


@jax.jit
def _estimates(clouds: Float[Array, "r n d"], x: Float[Array, "m d"], eps: Array) -> tuple[Array, Array, Bool[Array, " r"]]:
    """Kernel density and bridge scores of every cloud at the points, and whether the bridges converged."""

    def one(points: Float[Array, "n d"]) -> tuple[Array, Array, Array]:
        mu = af.Particles(points)
        bridge = af.self_bridge(mu, eps, tolerance=_TOLERANCE)
        return af.kernel_score(mu, eps)(x), bridge.score(x), bridge.converged  # pyright: ignore[reportAttributeAccessIssue]

    return jax.lax.map(one, clouds)


def _methods(kernel: Sequence[np.ndarray], bridge: Sequence[np.ndarray]) -> Float[np.ndarray, "3 k ..."]:
    """The three estimates at each eps but the last, which is half of the one before."""
    kernels, bridges = np.stack(kernel), np.stack(bridge)
    return np.stack([kernels[:-1], bridges[:-1], 2 * bridges[1:] - bridges[:-1]])


def _split(found: Float[np.ndarray, "3 k r m d"], exact: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "2 3 k"]:
    """Squared bias and variance, means over the points; the mean over r clouds keeps 1/r of the variance, which is taken off."""
    variance = found.var(axis=2, ddof=1).sum(axis=-1).mean(axis=-1)
    return np.stack([_size(found.mean(axis=2) - exact) - variance / found.shape[2], variance])


def _limit(mixture: af.GaussianMixture, x: Array, exact: np.ndarray, eps: np.ndarray) -> Float[np.ndarray, "3 l"]:
    """The squared bias for n = infinity: exact for the kernel density, on quadrature tokens for the others, in the plane at most.

    Temperatures that the tokens do not resolve, with an aliasing `e^{-2 pi^2 eps / h^2}` above 1e-10, give NaN.
    """
    kernel = [np.asarray(af.kernel_score(mixture, e)(x)) for e in eps]
    missing = np.full_like(exact, np.nan)
    bridge = [missing] * (len(eps) + 1)
    if mixture.dim in _NODES:
        tokens = af.quadrature(mixture, _NODES[mixture.dim])
        spacing = max(np.diff(np.unique(axis)).max() for axis in np.asarray(tokens.points).T)
        resolved = [2 * np.pi**2 * e / spacing**2 > 23 for e in (*eps, eps[-1] / 2)]
        bridge = [
            np.asarray(af.bridge_score(tokens, e, tolerance=_FINE)(x)) if fine else missing
            for e, fine in zip((*eps, eps[-1] / 2), resolved)
        ]
    return _size(_methods([*kernel, missing], bridge) - exact)


@eqx.filter_jit
def _first_order(mixture: af.GaussianMixture, x: Float[Array, "m d"]) -> tuple[Array, Array]:
    """`grad (1/2 Laplace U + 1/2 |grad U|^2)` and `grad (1/4 Laplace U + 1/8 |grad U|^2)`."""

    def half(x: Float[Array, " d"]) -> Array:
        score = lambda x: mixture.score(x[None])[0]  # noqa: E731
        return jnp.trace(jax.jacfwd(score)(x)) / 2 + jnp.sum(score(x) ** 2) / 2

    quarter = lambda x: af.theory.langevin_potential(mixture, x[None])[0]  # noqa: E731
    return jax.vmap(jax.jacfwd(half))(x), jax.vmap(jax.jacfwd(quarter))(x)


def _size(vectors: np.ndarray) -> Any:
    """The mean over the points of |v|^2."""
    return (vectors**2).sum(axis=-1).mean(axis=-1)


def _lowest(u: np.ndarray, v: np.ndarray) -> tuple[float, float]:
    """Where v is least, and how small, by the parabola through the least value and its neighbors; an end is taken as it is."""
    i = int(v.argmin())
    if i in (0, len(v) - 1):
        return float(u[i]), float(v[i])
    a, b, c = np.polyfit(u[i - 1 : i + 2], v[i - 1 : i + 2], 2)
    return -b / (2 * a), c - b**2 / (4 * a)


def checks(result: Result) -> list[Check]:
    """Orders and constants of the biases, the variance against n, and which method is best where that was measured clearly."""
    found = []
    for e in result.errors:
        where = f"$R^{{{e.dim}}}$"
        found.append(Check(f"{where}: share of bridges that converged", float(e.converged), 1.0, 0.0))
        growth = e.growth()
        for i, name in enumerate(METHODS):
            found.append(Check(f"{where}: power of $n$ in the variance of {name}", float(growth[i]), -1.0, 0.25, "sampled"))
        found += _of_the_limit(where, e)
        kernel, bridge, richardson = e.best[1][:, -1]
        found.append(
            Check(f"{where}: best error of the bridge over that of the kernel density", float(bridge / kernel), 0.0, 1.0, "sampled")
        )
        if e.dim == 1:
            found.append(
                Check(f"{where}: best error of Richardson over that of the bridge", float(richardson / bridge), 0.0, 1.0, "sampled")
            )
    return found


def _of_the_limit(where: str, e: Errors) -> list[Check]:
    """The biases for n = infinity at the two smallest temperatures that are resolved; Richardson's order shows only on the line."""
    found = []
    for i, (name, order) in enumerate(zip(METHODS, (1.0, 1.0, 3.0))):
        known = np.flatnonzero(np.isfinite(e.limit[i]))
        if len(known) < 2 or (order == 3 and e.dim > 1):
            continue
        eps, bias = e.limit_eps[known[-2:]], np.sqrt(e.limit[i, known[-2:]])
        slope = np.log(bias[1] / bias[0]) / np.log(eps[1] / eps[0])
        claim = {"bridge": "bridge", "Richardson": "richardson"}.get(name, "bias")
        found.append(Check(f"{where}: order of the bias of {name}", float(slope), order, 0.1 * order, claim))
        if order == 1:
            ratio = float(bias[1] / eps[1] / np.sqrt(e.first[i]))
            found.append(Check(f"{where}: bias of {name} over the theory's", ratio, 1.0, 0.05, "bias"))
    return found


def measured(result: Result) -> dict[str, Any]:
    """All errors, the best temperatures, and what they reach."""
    numbers = {}
    for e in result.errors:
        eps, error = e.best
        rows = {m: {"best eps": eps[i], "best error": error[i], "exponent of n": e.growth()[i]} for i, m in enumerate(METHODS)}
        ratios = {"variance over that of the kernel density": e.variance / e.variance[:1], "on a flat density": flat_ratios(e.dim)}
        numbers[f"R^{e.dim}"] = dataclasses.asdict(e) | rows | ratios
    return numbers


def flat_ratios(dim: int) -> Float[np.ndarray, "3"]:
    """The variances over that of the kernel density for many tokens of flat density: what passes of white noise, with its gradient."""
    k = np.linspace(0, 12, 10_001)
    passing = np.stack([np.exp(-(k**2) / 2), 1 - np.tanh(k**2 / 4), 1 - 2 * np.tanh(k**2 / 8) + np.tanh(k**2 / 4)])
    power = (k ** (dim + 1) * passing**2).sum(axis=1)
    return power / power[0]


def figure(result: Result) -> "matplotlib.figure.Figure":
    """Bias and variance of the largest clouds against eps; the best error and the best eps against n."""
    from attnflow.studies.tools.score_drawing import drawing

    return drawing(result, METHODS)
