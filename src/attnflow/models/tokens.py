"""A prompt as a measure: tokens with names, from a text, from numbers of the vocabulary, or from an image cut into patches."""

import functools
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import numpy as np

from attnflow import _check as check
from attnflow._types import ArrayLike, PathLike
from attnflow.measures import Particles
from attnflow.spaces import Space


class NamedTokens(Particles):
    r"""Tokens that have names: a prompt, $\frac1n \sum_i \delta_{x_i}$, or the next token as a measure on the vocabulary, with the
    probabilities as `weights`.

    **Arguments:** those of `Particles`, and `names`, one string per token. Names are fixed in a compiled program: give
    `Particles(mu.points, mu.weights, mu.order)` to what is to be compiled once for many texts.
    """

    names: tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self, points: ArrayLike, names: Any, weights: ArrayLike | None = None, *, order: ArrayLike | None = None, space: Space | None = None
    ):
        super().__init__(points, weights, order=order, space=space)
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise TypeError(check.refusal("names", "strings, one per token", names))
        self.names = tuple(str(name) for name in names)
        if len(self.names) != len(self.points):
            raise ValueError(f"names must be one per token, {len(self.points)}, got {len(self.names)}")

    def top(self, k: int = 10) -> list[tuple[str, float]]:
        """The `k` names of largest weight, with their weights."""
        weights = np.exp(np.asarray(self.log_weights))
        best = np.argsort(-weights, kind="stable")[: check.count("k", k)]
        return [(self.names[i], float(weights[i])) for i in best]

    @classmethod
    def from_frame(cls, about: dict[str, Any], variables: dict[str, Any]) -> "NamedTokens":
        plain = Particles.from_frame(about, variables)
        return cls(plain.points, variables["names"], plain.weights, order=plain.order, space=plain.space)

    def frame(self, states: Any) -> dict[str, tuple[tuple[str, ...], Any]]:
        return super().frame(states) | {"names": (("token",), np.asarray(self.names, dtype=object))}


class Tokenizer:
    """The tokenizer of a model, from its `tokenizer.json`: a text is cut as the model was trained, whole and without padding."""

    inner: Any

    def __init__(self, file: PathLike):
        try:
            import tokenizers
        except ImportError:
            raise ImportError("cutting a text into tokens needs tokenizers; pip install 'attnflow[models]'") from None
        try:
            self.inner = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:
            raise ValueError(f"{str(file)!r} is not a tokenizer ({error}); download it again") from None
        # Files carry how their authors batched texts: MiniLM's pads every text to 128 tokens.
        self.inner.no_truncation()
        self.inner.no_padding()

    def encode(self, text: str) -> tuple[list[int], list[str], list[tuple[int, int]]]:
        """The numbers of the tokens of a text, their names, and which characters of the text each is."""
        found = self.inner.encode(text)
        # Those that every text has, such as [CLS], are no text.
        if all(found.special_tokens_mask):
            raise ValueError(f"x must be a text with at least one token, got {check.shown(text)}")
        return found.ids, found.tokens, found.offsets

    @functools.cache  # noqa: B019 (a tokenizer lives as long as its model)
    def names(self, count: int) -> tuple[str, ...]:
        """The names of the first `count` tokens of the vocabulary; some models have more rows than their tokenizer has words."""
        return tuple(self.inner.id_to_token(number) or f"[{number}]" for number in range(count))

    def number(self, name: str) -> int | None:
        """The number of a name; `None` outside the vocabulary."""
        return self.inner.token_to_id(name)
