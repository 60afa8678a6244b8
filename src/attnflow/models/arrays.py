"""Arrays that another tool made of a model, as a path of measures and one law per layer."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from attnflow import _check as check
from attnflow._types import ArrayLike, Scalar
from attnflow.attention.multi_head import multi_head
from attnflow.attention.normalizations.base import Normalization
from attnflow.attention.stacked import StackedHeads
from attnflow.flow.path import Path, Status
from attnflow.measures import Particles
from attnflow.models.tokens import NamedTokens
from attnflow.numerics.arrays import floats
from attnflow.sums import Mask


def from_arrays(
    states: ArrayLike,
    *,
    ts: ArrayLike | None = None,
    names: Iterable[str] | None = None,
    query: ArrayLike | None = None,
    key: ArrayLike | None = None,
    value: ArrayLike | None = None,
    out: ArrayLike | None = None,
    query_bias: ArrayLike | None = None,
    key_bias: ArrayLike | None = None,
    value_bias: ArrayLike | None = None,
    out_bias: ArrayLike | None = None,
    temperature: Scalar | None = None,
    rotary: ArrayLike | None = None,
    interleaved: bool = False,
    normalize: Normalization | None = None,
    mask: Mask | None = None,
) -> tuple[Path, list[StackedHeads]]:
    r"""A path of measures and one law per layer, from arrays in the shapes of TransformerLens; the laws are those of `af.multi_head`.

    **Arguments:**

    - `states`: the residual stream `[t, n, d]`, such as `resid_pre` of all layers and `resid_post` of the last. `ts` are the times of its
      frames, by default 0, 1, 2, ...; `names` the strings of the tokens.
    - `query`, `key`, `value`: `W_Q`, `W_K`, `W_V`, `[layer, head, d, p]`, and `out`: `W_O`, `[layer, head, p, d]`; all or none. Keys and
      values may have fewer heads, each for some successive ones.
    - `query_bias`, `key_bias`, `value_bias`: `b_Q`, `b_K`, `b_V`, `[layer, head, p]`; `out_bias`: `b_O`, `[layer, d]`. Zero if not given.
    - `temperature`, `rotary`, `interleaved`, `normalize`, `mask`: as in `af.multi_head`, the same for all layers. A model of words that
      follow each other has `mask=af.Causal()`.

    The laws act on what the layer sees, the tokens after its first norm where that comes first.
    """
    points = floats("states", states, "t n d")
    times = np.arange(len(points), dtype=float) if ts is None else np.asarray(floats("ts", ts, "t"))
    if len(times) != len(points) or (np.diff(times) <= 0).any():
        raise ValueError(f"ts must be one increasing time per frame of states, {len(points)}, got {check.shown(ts)}")
    mu = Particles(points[0]) if names is None else NamedTokens(points[0], names)
    path = Path(times, points, Status("reached", times[-1]), {"solver": "given"}, mu)
    matrices = {"query": query, "key": key, "value": value, "out": out}
    given = [name for name, found in matrices.items() if found is not None]
    if not given:
        return path, []
    if len(given) < 4:
        raise ValueError(f"query, key, value and out must be given together, got {', '.join(given)} alone")
    shapes = {"query": "layer head d p", "key": "layer head d p", "value": "layer head d p", "out": "layer head p d"}
    shapes |= {"query_bias": "layer head p", "key_bias": "layer head p", "value_bias": "layer head p", "out_bias": "layer d"}
    found: dict[str, Any] = matrices | {"query_bias": query_bias, "key_bias": key_bias, "value_bias": value_bias, "out_bias": out_bias}
    parts = {name: np.asarray(floats(name, found[name], shape)) for name, shape in shapes.items() if found[name] is not None}
    count, d = len(parts["query"]), points.shape[2]
    for name, part in parts.items():
        sizes = dict(zip(shapes[name].split(), part.shape))
        if sizes["layer"] != count or sizes.get("d", d) != d:
            due = f"[{', '.join(sizes)}] with {count} layers and the d = {d} of states"
            raise ValueError(f"{name} must be {due}, got {list(part.shape)}")
    options = {"temperature": temperature, "rotary": rotary, "interleaved": interleaved, "normalize": normalize, "mask": mask}
    return path, [_law({name: part[layer] for name, part in parts.items()}, options) for layer in range(count)]


def _law(parts: dict[str, np.ndarray], options: dict[str, Any]) -> StackedHeads:
    """The law of a layer: rows of heads below each other, as linear layers have them."""
    heads, key_heads, d = len(parts["query"]), len(parts["key"]), parts["query"].shape[1]
    query, key, value = (parts[name].transpose(0, 2, 1).reshape(-1, d) for name in ("query", "key", "value"))
    biases = {name: part.reshape(-1) for name, part in parts.items() if name.endswith("bias")}
    return multi_head(query, key, value, parts["out"].reshape(-1, d).T, heads, key_heads=key_heads, **biases, **options)
