"""What a file may say: every table and key, with its type and range. `attnflow spec` prints an example with all of them."""

import dataclasses
import os
import pathlib
from typing import Annotated, Literal

import numpy as np

from attnflow.simulate.law import Law
from attnflow.simulate.pictures import Measure
from attnflow.studies.tools.constraints import Count, Meta, Positive, Seed, listed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Time:
    """From t0 to t1, in frames evenly spaced, or in log(1 + t)."""

    t1: Positive
    t0: float = 0.0
    frames: Annotated[int, Meta(ge=2)] = 100
    spacing: Literal["even", "log"] = "even"
    rtol: Positive | None = None
    atol: Positive | None = None
    noise: Positive | None = None
    until: Literal["never", "steady", "consensus"] = "never"
    max_steps: Count = 100_000

    def check(self, measure: Measure) -> None:
        """Raise if the times are none, or not for this measure."""
        if self.t1 <= self.t0:
            raise ValueError(f"time.t1 must be after time.t0, got {self.t1} and {self.t0}")
        if (self.t1 - self.t0) / self.frames <= 4 * np.spacing(max(abs(self.t0), abs(self.t1))):
            raise ValueError(f"time.frames must be so few that their times differ, got {self.frames} from {self.t0} to {self.t1}")
        if self.until == "consensus" and not measure.tokens:
            raise ValueError(f"time.until: consensus is of particles, got the picture {measure.picture!r}; use steady or never")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output:
    """What to watch along the way, and whether to make a movie."""

    observe: list[Literal["energy", "clusters", "order", "effective_rank", "attention_entropy"]] = dataclasses.field(default_factory=list)
    radius: Positive = 0.2
    movie: bool = True

    def check(self, measure: Measure, heads: tuple[Law, ...]) -> None:
        """Raise if something to watch is not of this measure and law."""
        if "clusters" in self.observe and not measure.tokens:
            raise ValueError(f"output.observe: clusters are of particles, got the picture {measure.picture!r}; leave it out")
        if "energy" in self.observe and not measure.has_energy:
            raise ValueError(f"output.observe: the energy is of particles and grids, got a {type(measure).__name__}; leave it out")
        if "order" in self.observe and not measure.on_sphere:
            raise ValueError("output.observe: order is on the sphere or the circle; leave it out, or set measure.space = 'sphere'")
        if "attention_entropy" in self.observe and not (measure.tokens and len(heads) == 1 and not heads[0].hidden):
            raise ValueError("output.observe: attention_entropy is of particles under one head with law.hidden = 0; leave it out")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """A whole file."""

    measure: Measure
    law: tuple[Law, ...]
    time: Time
    output: Output = Output()
    seed: Seed = 0

    @property
    def moves(self) -> bool:
        """Whether a movie is wanted, and there is something for it to show."""
        return self.output.movie and self.measure.tokens and self.measure.dim <= 3

    def resolved(self, folder: pathlib.Path) -> "Spec":
        """This spec with what the files of the measure say; `ValueError` for what single keys cannot show."""
        self.time.check(self.measure)
        self = dataclasses.replace(self, measure=self.measure.resolved(folder))
        self._check_room()
        for i, head in enumerate(self.law):
            head.check(self.measure, "law" if len(self.law) == 1 else f"law[{i}]")
        self.output.check(self.measure, self.law)
        return self

    def unused(self) -> dict[str, str]:
        """The keys that are not read, and why."""
        idle = self.measure.unused(self)
        if "clusters" not in self.output.observe:
            idle["output.radius"] = "of clusters, which output.observe does not have"
        if self.output.movie and not self.moves:
            idle["output.movie"] = "of tokens in up to three dimensions"
        return idle

    def _check_room(self) -> None:
        """Raise unless the states and the matrices of the law are within half of the memory."""
        (numbers, keys), dim = self.measure.size, self.measure.dim
        keys = [*keys, "time.frames"] + ["law.hidden"] * any(head.hidden for head in self.law)
        weights = sum(4 * dim * dim + 2 * head.hidden * dim for head in self.law)
        # A step works on some ten states at a time.
        need, room = 8 * ((self.time.frames + 10) * numbers + weights), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2
        if need > room:
            raise ValueError(
                f"the states and the law need {_gigabytes(need)} GB, half of the memory is {_gigabytes(room)} GB; lower {listed(keys)}"
            )


def _gigabytes(size: int | float) -> str:
    # Whole numbers of a file may be larger than any float.
    return f"{size / 1e9:.3g}" if size < 1e300 else "more than 1e291"
