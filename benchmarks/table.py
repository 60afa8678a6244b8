"""A row of a benchmark, the table of all rows, and how things are timed."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class Row:
    """One question: our figure, the peer's, their ratio, and what it must reach."""

    question: str
    ours: str
    peer: str
    ratio: str
    target: str
    ok: bool


def compare(ours: Callable[[], Any], peer: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """The best time of each in seconds, after one call to warm up; the two take turns, so that a busy machine slows both."""
    ours(), peer()
    times: tuple[list[float], list[float]] = [], []
    for _ in range(repeats):
        for function, found in zip((ours, peer), times, strict=True):
            start = time.perf_counter()
            function()
            found.append(time.perf_counter() - start)
    return min(times[0]), min(times[1])


def best(function: Callable[[], Any], repeats: int) -> float:
    """The best time in seconds of a function that returns JAX arrays, after one call to warm up."""
    jax.block_until_ready(function())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - start)
    return min(times)


def show(rows: list[Row]) -> None:
    """Print the table, and which rows miss their target."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for name in ("question", "attnflow", "peer", "ratio", "target", ""):
        table.add_column(name)
    for row in rows:
        table.add_row(row.question, row.ours, row.peer, row.ratio, row.target, "[green]met[/]" if row.ok else "[red]missed[/]")
    Console(width=160).print(table)
