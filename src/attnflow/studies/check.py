"""What a study says of its numbers: claims of the literature, the checks that each rests on, and input that makes no sense."""

import dataclasses
from typing import Literal

Status = Literal["proved", "conjectured", "numerics", "refuted as printed"]


@dataclasses.dataclass(frozen=True)
class Claim:
    """A result of the literature: one sentence, where it is from, and how it stands there.

    Formulas are LaTeX between dollars, with `\\lvert`, `\\rvert` and `\\mid` for bars, which would end a cell of the ledger. `source` names
    the paper by arXiv number, with the theorem where it has one. Where the source prints something wrong, the statement is
    the right one, the status is "refuted as printed", and `printed` is what the source says.
    """

    statement: str
    source: str
    status: Status
    printed: str = ""

    def __post_init__(self):
        if (self.status == "refuted as printed") != bool(self.printed):
            raise ValueError(f"just a claim that is refuted as printed says what is printed, got {self.status!r} and {self.printed!r}")


@dataclasses.dataclass(frozen=True)
class Check:
    """A measured number, what it should be, and how far it may be from that; `claim` is the key, in the study's `CLAIMS`, of the claim that
    it is evidence for, and empty for a check of the numerics alone."""

    name: str
    measured: float
    expected: float
    tolerance: float
    claim: str = ""

    @property
    def ok(self) -> bool:
        return bool(abs(self.measured - self.expected) <= self.tolerance)


class BadInput(ValueError):
    """What the user asked for does not make sense; the message is one line."""
