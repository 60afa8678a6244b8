"""The law of a file: one head of attention, what it needs and how it is built."""

import dataclasses
from typing import Annotated, Literal

import attnflow as af
from attnflow._types import ArrayLike, Key
from attnflow.simulate.pictures import Matrix, Measure
from attnflow.studies.tools.constraints import Meta, Positive

# A number stands for that multiple of the identity, a name for a random matrix.
Weights = float | Literal["gaussian", "goe", "wigner"] | Matrix


@dataclasses.dataclass(frozen=True, kw_only=True)
class Law:
    """One head of attention, and the perceptron after it if `hidden` is above zero."""

    logit: Literal["dot_product", "squared_distance"] = "dot_product"
    temperature: Positive = 1.0
    query: Weights = 1.0
    key: Weights = 1.0
    value: Weights = 1.0
    normalization: Literal["softmax", "sinkhorn", "unnormalized", "hardmax", "sigmoid", "linear", "sparsemax"] = "softmax"
    mask: Literal["none", "causal", "window", "alibi"] = "none"
    width: Positive | None = None
    slope: Positive | None = None
    hidden: Annotated[int, Meta(ge=0)] = 0

    def check(self, measure: Measure, at: str) -> None:
        """Raise if the law, the table `at`, cannot move a measure."""
        dim = measure.dim
        shapes = {name: _rows(getattr(self, name), dim) for name in ("query", "key", "value")}
        for name, rows in shapes.items():
            if set(rows) != {dim} or (name == "value" and len(rows) != dim):
                size = f"{dim} x {dim}" if name == "value" else f"of {dim} columns"
                raise ValueError(f"{at}.{name} must be {size}, as the measure is on R^{dim}, got rows of {rows} numbers")
        query, key = len(shapes["query"]), len(shapes["key"])
        if query != key:
            raise ValueError(f"{at}.query and {at}.key must have as many rows as each other, got {query} and {key}")
        if self.mask != "none" and not measure.tokens:
            raise ValueError(f"{at}.mask must be none where tokens have no order, got {self.mask!r} with the picture {measure.picture!r}")
        if self.mask != "none" and self.normalization == "sinkhorn":
            raise ValueError(f"{at}.mask must be none under sinkhorn, whose causal matrix can only be the identity, got {self.mask!r}")
        if self.mask == "window" and self.width is None:
            raise ValueError(f"{at}.width is missing, it must be how many tokens a token sees, itself and those before it")
        if self.mask == "alibi" and self.slope is None:
            raise ValueError(f"{at}.slope is missing, it must be how much a logit falls per token")
        measure.check_head(self, at)

    def unused(self, has_energy: bool) -> dict[str, str]:
        """The keys that are not read, and why; the temperature of a head may also be that of the energy."""
        of = {"width": "window", "slope": "alibi"}
        idle = {key: f"of {mask}, got the mask {self.mask!r}" for key, mask in of.items() if self.mask != mask}
        if self.normalization == "hardmax" and not has_energy:
            idle["temperature"] = "not seen by hardmax, which takes the largest logit"
        return idle

    def build(self, dim: int, key: Key) -> "af.Field":
        """The field, its random numbers from the key."""
        import jax
        import jax.numpy as jnp

        keys = jax.random.split(key, 5)
        query, key_matrix, value = (_matrix(wanted, dim, k) for wanted, k in zip((self.query, self.key, self.value), keys[:3], strict=True))
        masks = {"none": lambda: None, "causal": af.Causal, "window": lambda: af.Window(self.width), "alibi": lambda: af.ALiBi(self.slope)}
        logit = getattr(af, self.logit)(query, key_matrix, temperature=self.temperature)
        law = af.Attention(logit, value, getattr(af, self.normalization.capitalize())(), mask=masks[self.mask]())
        if not self.hidden:
            return law
        inner = jax.random.normal(keys[3], (self.hidden, dim)) / jnp.sqrt(dim)
        outer = jax.random.normal(keys[4], (dim, self.hidden)) / jnp.sqrt(self.hidden)
        return law.then(af.Perceptron(inner, outer))


def _rows(matrix: Weights, dim: int) -> list[int]:
    """How long the rows are."""
    return [*map(len, matrix)] if isinstance(matrix, list) else [dim] * dim


def _matrix(wanted: Weights, dim: int, key: Key) -> ArrayLike:
    import jax.numpy as jnp

    if isinstance(wanted, str):
        drawn = getattr(af.matrices, wanted)(dim, key=key)
        return drawn[0] if wanted == "gaussian" else drawn
    found = jnp.asarray(wanted, dtype=float)
    return found if found.ndim else found * jnp.eye(dim)
