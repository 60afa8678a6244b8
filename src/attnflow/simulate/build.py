"""From a spec to the measure, the field and the observables."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attnflow as af
from attnflow.simulate import spec as say

_NORMALISATIONS = {
    "softmax": af.Softmax,
    "sinkhorn": af.Sinkhorn,
    "unnormalised": af.Unnormalized,
    "hardmax": af.Hardmax,
    "sigmoid": af.Sigmoid,
    "linear": af.Linear,
}


def measure(spec: say.Spec, folder: pathlib.Path) -> Any:
    """The measure at the start."""
    wanted = spec.measure
    if isinstance(wanted, say.Gaussian):
        return af.Gaussian(wanted.mean, wanted.cov)
    if isinstance(wanted, say.Grid):
        return _grid(wanted)
    tokens = _tokens(wanted, jax.random.key(spec.seed), folder)
    return tokens if wanted.order == "position" else af.Particles(tokens.points, order=wanted.order, space=tokens.space)


def _tokens(wanted: say.Particles, key: Any, folder: pathlib.Path) -> af.Particles:
    """Those of a file, or drawn at random."""
    if wanted.file is not None:
        points = np.load(folder / wanted.file, allow_pickle=False).astype(float)
        return af.Particles(points, space=af.Sphere() if wanted.space == "sphere" else af.Euclidean())
    n, dim = wanted.n, wanted.dim
    if wanted.space == "sphere":
        draw = {"uniform": af.samplers.sphere, "hemisphere": af.samplers.hemisphere, "orthonormal": af.samplers.orthonormal}
        return draw[wanted.start](n, dim, key=key)
    if wanted.start == "normal":
        return af.Particles(wanted.scale * af.samplers.normal(n, dim, key=key).points)
    if wanted.start == "ball":
        return af.samplers.ball(n, dim, key=key, radius=wanted.scale)
    return af.samplers.cube(n, dim, key=key, half_width=wanted.scale)


def field(spec: say.Spec, dim: int) -> Any:
    """The law, or the mean of several, each with its own random numbers."""
    keys = jax.random.split(jax.random.key(spec.seed + 1), len(spec.heads))
    heads = [_head(head, dim, key) for head, key in zip(spec.heads, keys)]
    return heads[0] if len(heads) == 1 else af.MultiHead(heads)


def observables(spec: say.Spec, law: Any) -> dict[str, Any]:
    """The compiled functions along the way, by name; clusters are counted afterwards. The energy is that of beta = 1 / temperature, scaled
    to lie in (0, 1] on the sphere."""
    beta = 1 / spec.heads[0].temperature
    known = {
        "energy": lambda mu: 2 * beta * af.energy(mu, beta, log_scale=-beta),
        "order": af.order_parameter,
        "effective_rank": af.effective_rank,
        "attention_entropy": lambda mu: jnp.mean(af.attention_entropy(law, mu)),
    }
    return {name: known[name] for name in spec.output.observe if name in known}


def until(name: str) -> Any:
    return {"never": None, "steady": af.Steady(), "consensus": af.Consensus()}[name]


def _grid(wanted: say.Grid) -> af.Grid:
    """The density at the middles of the cells, of mass one."""
    side = af.Interval(-wanted.half_width, wanted.half_width, wanted.cells)
    axes = {"circle": [af.Circle(wanted.cells)], "interval": [side], "square": [side, side]}[wanted.domain]
    mesh = af.Grid.uniform(axes).mesh
    if wanted.domain == "circle":
        values = 1 + wanted.amplitude * jnp.cos(wanted.mode * jnp.arctan2(mesh.points[:, 1], mesh.points[:, 0]))
    else:
        values = jnp.exp(-0.5 * jnp.sum(mesh.points**2, axis=1) / wanted.deviation**2)
    return af.Grid((values / jnp.sum(values * mesh.volumes)).reshape(mesh.shape), mesh)


def _head(head: say.Law, dim: int, key: Any) -> Any:
    keys = jax.random.split(key, 5)
    query, key_matrix, value = (_matrix(getattr(head, name), dim, k) for name, k in zip(("query", "key", "value"), keys[:3], strict=True))
    logit = af.dot_product if head.logit == "dot_product" else af.squared_distance
    masks = {"none": lambda: None, "causal": af.Causal, "window": lambda: af.Window(head.width), "alibi": lambda: af.ALiBi(head.slope)}
    law = af.Attention(
        logit(query, key_matrix, temperature=head.temperature), value, _NORMALISATIONS[head.normalisation](), mask=masks[head.mask]()
    )
    if not head.hidden:
        return law
    inner = jax.random.normal(keys[3], (head.hidden, dim)) / jnp.sqrt(dim)
    outer = jax.random.normal(keys[4], (dim, head.hidden)) / jnp.sqrt(head.hidden)
    return law.then(af.Perceptron(inner, outer))


def _matrix(wanted: Any, dim: int, key: Any) -> Any:
    if isinstance(wanted, float | int):
        return wanted * jnp.eye(dim)
    if isinstance(wanted, str):
        return af.matrices.gaussian(dim, key=key)[0] if wanted == "gaussian" else getattr(af.matrices, wanted)(dim, key=key)
    return jnp.asarray(wanted, dtype=float)
