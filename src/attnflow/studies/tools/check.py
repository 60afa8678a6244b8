"""What a study says of its numbers: claims of the literature, the checks that each rests on, and input that makes no sense."""

import dataclasses
import math
from typing import Literal

Status = Literal["proved", "conjectured", "numerics", "sharper than stated", "misprint", "differs"]
# Those whose statement is not what the source prints, and those of them that are on the page of errata.
NOT_AS_PRINTED: tuple[Status, ...] = ("sharper than stated", "misprint", "differs")
ERRATA: tuple[Status, ...] = ("misprint", "differs")


@dataclasses.dataclass(frozen=True)
class Claim:
    """A result of the literature: one sentence, where it is from, and how it stands there.

    Formulas are LaTeX between dollars, with `\\lvert`, `\\rvert` and `\\mid` for bars, which would end a cell of the ledger. `source` names
    the paper by arXiv number, with the theorem where it has one. The statement is what is checked. Where the source prints something else,
    `printed` is that, and the status says how the two are related:

    - "sharper than stated": what is printed is true, and the statement is better: a smaller bound, a higher order;
    - "misprint": a sign, a factor, an exponent or an order of matrices; `derived` is the derivation;
    - "differs": what is measured is not what a caption or a claim says; `derived` is the exact setting.

    For the last two `sure` says how sure we are and what may be wrong with us; they make a paragraph on the page of errata.
    """

    statement: str
    source: str
    status: Status
    printed: str = ""
    derived: str = ""
    sure: str = ""

    def __post_init__(self) -> None:
        if (self.status in NOT_AS_PRINTED) != bool(self.printed):
            raise ValueError(f"only a claim that is not as printed says what is printed, got {self.status!r} and {self.printed!r}")
        if {bool(self.derived), bool(self.sure)} != {self.status in ERRATA}:
            raise ValueError(
                f"only a misprint or a difference has a derivation and how sure it is, got {self.status!r}, {self.derived!r}, {self.sure!r}"
            )


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

    @property
    def used(self) -> float:
        """How much of its tolerance it uses, `|measured - expected| / tolerance`: above one if it fails."""
        off = abs(self.measured - self.expected)
        if math.isnan(off):
            return math.inf
        return off / self.tolerance if self.tolerance > 0 else math.inf if off else 0.0


def used_in_words(used: float | None, tolerance: float | None) -> str:
    """The part of a tolerance that a check uses, in per cent; "exact" where nothing else would do."""
    if used is None or not math.isfinite(used):
        return "> 100 %"
    return "exact" if tolerance == 0 else "< 0.1 %" if used < 1e-3 else f"{100 * used:.2g} %"


class BadInput(ValueError):
    """What the user asked for does not make sense; the message is one line."""
