"""Which engine, when the user does not say."""

from attnflow.sums.engine import Dense, Engine, Streamed

# Up to this many pairs the m x n array stays cheap (32 MB in float64) and one pass beats tiles.
DENSE_PAIRS = 2**22


def choose(queries: int, keys: int, sums: Engine | None = None) -> Engine:
    """The engine for a sum over `queries x keys` pairs; `sums` if it is given."""
    if sums is not None:
        return sums
    return Dense() if queries * keys <= DENSE_PAIRS else Streamed()
