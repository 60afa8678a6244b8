r"""Attention alone takes tokens to rank one doubly exponentially, under softmax and under Sinkhorn (arXiv:2103.03404, arXiv:2604.07925).

Layers $x \leftarrow \Gamma_\mu(x)$ without residual, perceptron and norm. Let $x_i = m + \delta_i$ with the mean $m$. What the weights of
a row have in common with all rows averages nothing apart, and of the logits $\langle Q x_i, K x_j\rangle$ only $\langle Q\delta_i,
K\delta_j \rangle$ is not common: rows of the attention matrix differ at second order, and since weights sum to one, outputs at third. So
the residual $\rho_l$ to the nearest matrix of equal rows, relative to the tokens, obeys $\rho_{l+1} \approx c\, \rho_l^3$ once it is
small (derived here; the bound of arXiv:2103.03404 is cubic as well, in another norm): $\log\rho$ triples per layer. The same holds for
Sinkhorn, whose potentials take up what depends on one token alone. With the residual stream, with norms or with perceptrons the residual
does not fall like that.
"""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

import attnflow as af
from attnflow.studies.tools.check import Check, Claim
from attnflow.studies.tools.constraints import Checked, Count, Meta, Positive, Seed
from attnflow.studies.tools.parts import parts
from attnflow.studies.tools.trained import normal_tokens

if TYPE_CHECKING:
    import matplotlib.figure

CLAIMS = {
    "cubic": Claim(
        r"Under softmax attention alone the relative residual to rank one falls doubly exponentially, $\rho_{l+1} \sim \rho_l^3$.",
        "arXiv:2103.03404 (bound); the exponent for small residuals derived here",
        "proved",
    ),
    "sinkhorn": Claim(
        r"Under Sinkhorn attention alone it falls doubly exponentially too, $\rho_{l+1} \sim \rho_l^3$.",
        "arXiv:2604.07925 (abstract); the exponent derived here",
        "proved",
    ),
    "slower": Claim(
        "One layer of Sinkhorn attention leaves tokens of larger effective rank than one of softmax with the same random weights.",
        "arXiv:2604.07925 (abstract): Sinkhorn preserves rank better, in experiments",
        "numerics",
    ),
    "residual": Claim(
        "With the residual stream, random attention leaves a residual to rank one of at least a tenth after all layers.",
        "arXiv:2103.03404: skip connections prevent the collapse",
        "numerics",
    ),
}
_LAWS: dict[str, af.Normalization] = {"softmax": af.Softmax(), "Sinkhorn": af.Sinkhorn(tolerance=1e-8)}


@dataclasses.dataclass(frozen=True)
class Spec(Checked):
    """How many tokens, in how many dimensions, how deep."""

    n: Annotated[int, Meta(ge=4)] = 64
    """how many tokens, standard normal"""
    dim: Annotated[int, Meta(ge=4)] = 32
    """their dimension"""
    layers: Annotated[int, Meta(ge=3)] = 12
    """how many layers with the residual stream"""
    sharpness: Positive = 2.0
    """the size of logits of standard normal tokens"""
    draws: Count = 64
    """how many draws of weights the comparison of one layer is over"""
    seed: Seed = 0
    """of tokens and weights"""


@dataclasses.dataclass(frozen=True)
class Result:
    """Residuals to rank one: layer by layer under attention alone, of clouds of some sizes after one layer, layer by layer with the
    residual
    stream; and the effective rank of normal tokens after one layer, for each draw of weights."""

    spec: Spec
    alone: dict[str, Float[np.ndarray, " l"]]
    sizes: Float[np.ndarray, " s"]
    small: dict[str, Float[np.ndarray, " s"]]
    once: dict[str, Float[np.ndarray, " draws"]]
    residual: dict[str, Float[np.ndarray, " l"]]


FAST = Spec(n=24, dim=16, layers=6, draws=16)


def law(spec: Spec, normalize: af.Normalization, seed: int) -> af.Attention:
    """Random attention: logits of size `sharpness` on standard normal tokens, a random value matrix that keeps lengths in the mean."""
    Q, K, V = jax.random.normal(jax.random.key(seed), (3, spec.dim, spec.dim)) / np.sqrt(spec.dim)
    return af.Attention(af.dot_product(Q, K, temperature=np.sqrt(spec.dim) / spec.sharpness), V, normalize=normalize)


def run(spec: Spec, progress: bool = False) -> Result:
    """Each normalization on the same tokens and weights."""
    mu, sizes = normal_tokens(spec.n, spec.dim, spec.seed), np.geomspace(0.01, 0.1, 5)

    def follow(name: str) -> tuple[Any, ...]:
        normalize = _LAWS[name]
        fields = [law(spec, normalize, spec.seed + 1 + k) for k in range(spec.layers)]
        alone = [float(af.rank_one_residual(nu)) for nu in af.layers(fields, mu, residual=False)]
        small = [float(af.rank_one_residual(_moved(fields[0], _shrunk(mu, size)))) for size in sizes]
        once = [float(af.effective_rank(_moved(law(spec, normalize, spec.seed + 1000 + k), mu))) for k in range(spec.draws)]
        kept = [float(af.rank_one_residual(nu)) for nu in af.layers(fields, mu)]
        return tuple(np.array(values) for values in (alone, small, once, kept))

    found = dict(zip(_LAWS, parts(follow, _LAWS, "laws", progress)))
    columns = ({name: values[k] for name, values in found.items()} for k in range(4))
    alone, small, once, kept = columns
    return Result(spec, alone, sizes, small, once, kept)


@eqx.filter_jit
def _moved(field: af.Attention, mu: af.Particles) -> af.Particles:
    """The tokens after one layer of attention alone."""
    return mu.push(field.at(mu))


def _shrunk(mu: af.Particles, size: float) -> af.Particles:
    """Tokens about a mean of length sqrt(d), their distances from it scaled."""
    center = jnp.ones(mu.dim)
    return mu.with_state(center[None] + size * (mu.points - mu.mean[None]))


def _slope(x: Float[np.ndarray, " s"], y: Float[np.ndarray, " s"]) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def checks(result: Result) -> list[Check]:
    """The exponents, and the comparison of the two laws."""
    found = []
    for name, claim in (("softmax", "cubic"), ("Sinkhorn", "sinkhorn")):
        # The relative residual of the small clouds is their size up to its square.
        found.append(Check(f"{name}: exponent of the residual after one layer", _slope(result.sizes, result.small[name]), 3.0, 0.1, claim))
    share = float((result.once["Sinkhorn"] > result.once["softmax"]).mean())
    found.append(Check("share of draws in which Sinkhorn leaves the larger effective rank", share, 1.0, 0.1, "slower"))
    least = min(float(values[-1]) for values in result.residual.values())
    found.append(Check("residual stream: the smallest residual after all layers", least, 1.0, 0.9, "residual"))
    return found


def measured(result: Result) -> dict[str, Any]:
    """The residuals layer by layer, and the mean after one layer."""
    return {
        "attention alone": result.alone,
        "effective rank after one layer, mean over draws": {name: float(values.mean()) for name, values in result.once.items()},
        "residual stream, at the end": {name: float(values[-1]) for name, values in result.residual.items()},
    }


def figure(result: Result) -> "matplotlib.figure.Figure":
    """The collapse layer by layer, the exponent of one layer, and the draws."""
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.36 * af.plot.PAGE)
        left, middle, right = page.subplots(1, 3)
        for color, name in zip(af.plot.COLORS, _LAWS):
            alone = np.maximum(result.alone[name], 1e-17)
            left.semilogy(alone, "o-", color=color, markersize=3, label=f"{name}, alone")
            left.semilogy(result.residual[name], "--", color=color, label=f"{name}, residual stream")
            middle.loglog(result.sizes, result.small[name], "o-", color=color, markersize=3, label=name)
        middle.loglog(result.sizes, result.small["softmax"][-1] * 0.4 * (result.sizes / result.sizes[-1]) ** 3, ":", color="0.5")
        right.plot(result.once["softmax"], result.once["Sinkhorn"], "o", markersize=3, color=af.plot.COLORS[2])
        ends = [min(v.min() for v in result.once.values()), max(v.max() for v in result.once.values())]
        right.plot(ends, ends, ":", color="0.5")
        left.set(xlabel="layer", ylabel="residual to rank one", ylim=(1e-17, 3))
        middle.set(xlabel="size of the cloud", ylabel="residual after a layer", title="slope 3")
        right.set(xlabel="softmax", ylabel="Sinkhorn", title="effective rank after a layer")
        left.legend(loc="lower left", fontsize=6)
    return page
