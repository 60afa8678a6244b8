"""Which engine, when the user does not say."""

import dataclasses

from attnflow.sums import native
from attnflow.sums.engine import Dense, Engine, Streamed

# Up to this many pairs (n = 1448, 16 MB in float64) one pass and tiles take the same time; at four times that, tiles take about half.
DENSE_PAIRS = 2**21


def choose(queries: int, keys: int, sums: Engine | None = None) -> Engine:
    """The engine for a sum over `queries x keys` pairs; `sums` if it is given. Whether it is native is settled here."""
    engine = sums or (Dense() if queries * keys <= DENSE_PAIRS else Streamed())
    if isinstance(engine, Streamed) and engine.native is None:
        return dataclasses.replace(engine, native=native.available())
    return engine
