"""What a file may say: every table and key, with its type and range. `attnflow spec` prints an example with all of them."""

from typing import Annotated, Literal

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Row = Annotated[list[float], msgspec.Meta(min_length=1)]
Matrix = Annotated[list[Row], msgspec.Meta(min_length=1)]
# A number stands for that multiple of the identity, a name for a random matrix.
Weights = float | Literal["gaussian", "goe", "wigner"] | Matrix


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the file: no keys but these."""


class Particles(Table, frozen=True, tag_field="picture", tag="particles"):
    """Tokens, drawn at random or read from a .npy file `[n, d]`."""

    n: Annotated[int, msgspec.Meta(ge=1)] = 256
    dim: Annotated[int, msgspec.Meta(ge=1)] = 3
    space: Literal["sphere", "euclidean"] = "sphere"
    start: Literal["uniform", "hemisphere", "orthonormal", "normal", "ball", "cube"] = "uniform"
    scale: Positive = 1.0
    order: Literal["position", "fraction"] = "position"
    file: str | None = None


class Gaussian(Table, frozen=True, tag_field="picture", tag="gaussian"):
    """A Gaussian."""

    mean: Row
    cov: Matrix


class Grid(Table, frozen=True, tag_field="picture", tag="grid"):
    """A density: a wave on the circle, or a normal law cut to an interval or a square."""

    domain: Literal["circle", "interval", "square"] = "circle"
    cells: Annotated[int, msgspec.Meta(ge=4)] = 512
    mode: Count = 1
    amplitude: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.01
    half_width: Positive = 5.0
    deviation: Positive = 1.0


class Law(Table, frozen=True):
    """One head of attention, and the perceptron after it if `hidden` is above zero."""

    logit: Literal["dot_product", "squared_distance"] = "dot_product"
    temperature: Positive = 1.0
    query: Weights = 1.0
    key: Weights = 1.0
    value: Weights = 1.0
    normalisation: Literal["softmax", "sinkhorn", "unnormalised", "hardmax", "sigmoid", "linear"] = "softmax"
    mask: Literal["none", "causal", "window", "alibi"] = "none"
    width: Positive | None = None
    slope: Positive | None = None
    hidden: Annotated[int, msgspec.Meta(ge=0)] = 0


class Time(Table, frozen=True):
    """From t0 to t1, in frames evenly spaced, or in log(1 + t)."""

    t1: Positive
    t0: float = 0.0
    frames: Annotated[int, msgspec.Meta(ge=2)] = 100
    spacing: Literal["even", "log"] = "even"
    rtol: Positive | None = None
    atol: Positive | None = None
    noise: Positive | None = None
    until: Literal["never", "steady", "consensus"] = "never"
    max_steps: Count = 100_000


class Output(Table, frozen=True):
    """What to watch along the way, and whether to make a movie."""

    observe: list[Literal["energy", "clusters", "order", "effective_rank", "attention_entropy"]] = []
    radius: Positive = 0.2
    movie: bool = True


class Spec(Table, frozen=True):
    """A whole file."""

    measure: Particles | Gaussian | Grid
    law: Law | list[Law]
    time: Time
    output: Output = Output()
    seed: Annotated[int, msgspec.Meta(ge=0, lt=2**32)] = 0

    @property
    def heads(self) -> list[Law]:
        return self.law if isinstance(self.law, list) else [self.law]
