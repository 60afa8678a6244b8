"""What the layers of a trained model do to the tokens of a prompt, with what chance would do beside it."""

import itertools
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow.attention.closure import closure_residual
from attnflow.attention.stacked import StackedHeads
from attnflow.flow.path import Path
from attnflow.measures import Particles
from attnflow.models.block import Block
from attnflow.models.embedding import PatchEmbedding
from attnflow.models.transformer import Transformer
from attnflow.numerics.arrays import one_program
from attnflow.observe.cloud import displacement, intrinsic_dimension, neighbor_overlap, pair_cosine, rank_one_residual, step_sizes
from attnflow.observe.lipschitz import local_lipschitz
from attnflow.observe.order import effective_rank
from attnflow.sums import visible_logits
from attnflow.transport.distances.wasserstein import wasserstein2

CASES = ("trained", "shuffled weights", "random start", "shuffled order")
_BINS = 40
_NEIGHBORS = 5
# Of the power iteration for the Lipschitz constants, and how well it must have settled.
_ITERATIONS, _SETTLED = 40, 0.05


def look(model: Transformer, x: Any, *, seed: int = 0, nulls: bool = True) -> Any:
    r"""Observables of a prompt through the layers, as an `xarray.Dataset`: along `frame` (half layers, in units of layers), `step` (between
    frames), `layer`, `head` and `token`, and for each `case`: the model as trained, and the nulls that say what chance would give.

    - by frame: `cosine` and `centered_cosine` (the mean over pairs of different tokens, raw, and about the mean), `cosines` (the
      histogram of raw ones), `effective_rank` (of the covariance), `rank_one_residual`, `intrinsic_dimension` (two nearest neighbors),
      `length` (the root of the mean square of tokens);
    - by step: `step_size` $\|x_{l+1} - x_l\| / \|x_l\|$, `neighbor_overlap` (of the five nearest), `displacement` and `w2`: the cost of
      moving every token to its own next place, and of the best coupling;
    - by layer and head, of the attention matrix $P$ on what the layer sees: `entropy` (the mean over rows, in nats), `sink` (the largest
      share of attention that one token gets), `column_error` (the largest $|\sum_i P_{ij} - 1|$: 0 if doubly stochastic), `energy` ($\log
      \iint e^{\ell(x, y)} \,d\mu\,d\mu$ over what is seen) and `energy_change` through the layer;
    - by layer: `closure_residual` (how far the velocity of the cloud is from that of the Gaussian with its moments; NaN under masks and
      rotary positions, which have no Gaussian picture) and `lipschitz` (the local Lipschitz constant of attention).

    **Nulls**, drawn from the `seed`: "shuffled weights" permutes the entries of every matrix of the blocks, "random start" has independent
    normal tokens of the same mean square, "shuffled order" the same tokens in another order. `nulls=False` leaves them out.
    """
    import xarray

    check.flag("nulls", nulls)
    rng = np.random.default_rng(check.count("seed", seed, least=0))
    mu = model.measure(x)
    if len(mu.points) < _NEIGHBORS + 2:
        raise ValueError(f"x must have at least {_NEIGHBORS + 2} tokens to be looked at, got {len(mu.points)}; give a longer text")
    runs: dict[str, tuple[Transformer, Particles]] = {"trained": (model, mu)}
    if nulls:
        runs["shuffled weights"] = (shuffled_weights(model, rng), mu)
        runs["random start"] = (model, random_start(mu, rng))
        runs["shuffled order"] = (model, model.measure(shuffled_order(model, x, rng)))
    found = [_curves(*run) for run in runs.values()]
    axes = {name: axes for name, (axes, _) in found[0].items()}
    variables = {name: (("case", *axes[name]), np.stack([curves[name][1] for curves in found])) for name in axes}
    ts = 0.5 * model.step * np.arange(2 * model.depth + 1)
    edges = np.linspace(-1, 1, _BINS + 1)
    coordinates = {
        "case": _words(runs),
        "frame": ts,
        "step": (ts[1:] + ts[:-1]) / 2,
        "layer": np.arange(model.depth),
        "token": _words(mu.names),
    }
    about = {"family": model.family, "tokens": len(mu.points), "seed": seed}
    return xarray.Dataset(variables, coordinates | {"bin": (edges[1:] + edges[:-1]) / 2}, about)


def _words(names: Iterable[str]) -> np.ndarray:
    """Names of any length, as files have them."""
    return np.array(list(names), dtype=object)


def shuffled_weights(model: Transformer, rng: np.random.Generator) -> Transformer:
    """The model with the entries of every matrix of its blocks permuted; norms, biases and the embedding stay."""

    def permuted(tree: Any, axes: int) -> Any:
        """Every array of so many axes, or more, with its entries permuted."""
        return jax.tree.map(lambda a: jnp.asarray(rng.permuted(np.ravel(a)).reshape(a.shape)) if np.ndim(a) >= axes else a, tree)

    def block(one: Block) -> Block:
        # The arrays of heads have an axis of heads first.
        parts = permuted(one.attention.laws, 3), permuted(one.perceptron, 2)
        return eqx.tree_at(lambda block: (block.attention.laws, block.perceptron), one, parts)

    return eqx.tree_at(lambda model: model.blocks, model, tuple(block(one) for one in model.blocks))


def random_start(mu: Particles, rng: np.random.Generator) -> Particles:
    """Independent normal tokens with the mean square of others."""
    size = float(jnp.sqrt(jnp.mean(mu.points**2)))
    return mu.with_state(jnp.asarray(size * rng.normal(size=mu.points.shape), mu.dtype))


def shuffled_order(model: Transformer, x: Any, rng: np.random.Generator) -> Any:
    """A prompt with its tokens in another order; those that begin and end a text stay, as do special ones of images."""
    if isinstance(model.embedding, PatchEmbedding):
        pixels = np.array(model.embedding.pixels(x, model.dtype))
        side = model.embedding.kernel.shape[-1]
        rows, columns = (length // side for length in model.embedding.size)
        patches = pixels.reshape(rows, side, columns, side, -1).transpose(0, 2, 1, 3, 4).reshape(rows * columns, side, side, -1)
        patches = rng.permutation(patches).reshape(rows, columns, side, side, -1)
        return np.clip(patches.transpose(0, 2, 1, 3, 4).reshape(pixels.shape), 0, 1)
    ids, _ = model.tokens(x)
    inner = slice(None) if model.shape.causal else slice(1, -1)
    ids = ids.copy()
    ids[inner] = rng.permutation(ids[inner])
    return ids


def _curves(model: Transformer, mu: Particles) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """Every observable of one run, with its axes."""
    plain = Particles(mu.points, mu.weights, order=mu.order)
    path = model.path(plain)
    frames = list(path)
    curves: dict[str, tuple[tuple[str, ...], Any]] = {
        "cosine": (("frame",), [pair_cosine(nu) for nu in frames]),
        "centered_cosine": (("frame",), [pair_cosine(nu, centered=True) for nu in frames]),
        "cosines": (("frame", "bin"), [_cosines(nu.points) for nu in frames]),
        "effective_rank": (("frame",), [_effective_rank(nu) for nu in frames]),
        "rank_one_residual": (("frame",), [rank_one_residual(nu) for nu in frames]),
        "intrinsic_dimension": (("frame",), [intrinsic_dimension(nu) for nu in frames]),
        "length": (("frame",), jnp.sqrt(jnp.mean(jnp.sum(path.states**2, axis=2), axis=1))),
        "step_size": (("step",), step_sizes(path)),
    }
    pairs = list(itertools.pairwise(frames))
    curves["neighbor_overlap"] = (("step",), [neighbor_overlap(a, b, _NEIGHBORS) for a, b in pairs])
    curves["displacement"] = (("step",), [displacement(a, b) for a, b in pairs])
    curves["w2"] = (("step",), [wasserstein2(a, b) for a, b in pairs])
    return {name: (axes, np.asarray(values)) for name, (axes, values) in (curves | _attention_curves(model, path)).items()}


def _attention_curves(model: Transformer, path: Path) -> dict[str, tuple[tuple[str, ...], Any]]:
    by_head: dict[str, list[Any]] = {"entropy": [], "sink": [], "column_error": [], "energy": [], "energy_change": []}
    closure, lipschitz = [], []
    for layer in range(model.depth):
        block, before, after = model.block(layer), path[2 * layer], path[2 * layer + 2]
        seen, later = block.seen(0, before), block.seen(0, after)
        figures = _of_matrix(block.attention, seen)
        energies = [_log_energy(block.attention, nu) for nu in (seen, later)]
        for name, values in (*figures.items(), ("energy", energies[0]), ("energy_change", energies[1] - energies[0])):
            by_head[name].append(values)
        gaussian = block.attention.laws.mask is None and not block.attention.laws.logit.positional
        closure.append(float(_closure_residual(block.attention, seen)) if gaussian else np.nan)
        lipschitz.append(local_lipschitz(block.attention, seen, iterations=_ITERATIONS, tolerance=_SETTLED))
    curves: dict[str, tuple[tuple[str, ...], Any]] = {name: (("layer", "head"), values) for name, values in by_head.items()}
    return curves | {"closure_residual": (("layer",), closure), "lipschitz": (("layer",), lipschitz)}


# As one program: what is checked of a Gaussian on the host takes longer than all else here.
_closure_residual = one_program(closure_residual)


@one_program
def _of_matrix(attention: StackedHeads, mu: Particles) -> dict[str, Float[Array, " h"]]:
    matrix = attention.weights(mu.points, mu, mu.sequence)
    entropy = jnp.mean(jnp.sum(jax.scipy.special.entr(matrix), axis=2), axis=1)
    columns = jnp.sum(matrix, axis=1)
    return {"entropy": entropy, "sink": jnp.max(columns, axis=1) / matrix.shape[1], "column_error": jnp.max(jnp.abs(columns - 1), axis=1)}


@one_program
def _log_energy(attention: StackedHeads, mu: Particles) -> Float[Array, " h"]:
    """The logarithm of the mean over pairs that are seen of e^logit, for each head."""

    def one(law: Any) -> Array:
        logits = visible_logits(law.logit, mu.points, mu.atoms(law.mask, law.logit.positional), mu.sequence)
        return jax.nn.logsumexp(logits) - jnp.log(jnp.sum(jnp.isfinite(logits)))

    return attention.batch().each(one, False)


@one_program
def _cosines(points: Float[Array, "n d"]) -> Float[Array, " b"]:
    """The shares of the cosines of different tokens in equal parts of [-1, 1]."""
    unit = points / jnp.maximum(jnp.linalg.norm(points, axis=1, keepdims=True), jnp.finfo(points.dtype).tiny)
    n = len(points)
    place = jnp.clip(jnp.floor((unit @ unit.T + 1) * (_BINS / 2)), 0, _BINS - 1).astype(int)
    counts = jnp.zeros(_BINS, points.dtype).at[place.reshape(-1)].add((1 - jnp.eye(n, dtype=points.dtype)).reshape(-1))
    return counts / (n * (n - 1))


@one_program
def _effective_rank(mu: Particles) -> Float[Array, ""]:
    """That of the covariance, from the smaller of it and the matrix of scalar products, which have the same spectrum."""
    n, d = mu.points.shape
    if n >= d or mu.weights is not None:
        return effective_rank(mu)
    centered = mu.points - mu.mean[None]
    values = jnp.maximum(jnp.linalg.eigvalsh(centered @ centered.T / n), 0)
    share = values / jnp.maximum(jnp.sum(values), jnp.finfo(values.dtype).tiny)
    return jnp.exp(jnp.sum(jax.scipy.special.entr(share)))
