"""What a study says about its numbers, and about input that makes no sense."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Check:
    """A measured number, what it should be, and how far it may be from that."""

    name: str
    measured: float
    expected: float
    tolerance: float

    @property
    def ok(self) -> bool:
        return bool(abs(self.measured - self.expected) <= self.tolerance)


class BadInput(ValueError):
    """What the user asked for does not make sense; the message is one line."""
