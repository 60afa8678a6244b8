"""A progress bar in physical time."""

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def tracker(show: bool, t0: float, t1: float, label: str = "solve") -> Iterator[Callable[[float], None]]:
    """Gives a function to call with the time reached; draws a bar with the time left if `show`."""
    if not show:
        yield lambda t: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("t = {task.fields[t]:.4g} / {task.fields[end]:.4g}"),
    )
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(label, total=t1 - t0, t=t0, end=t1)
        yield lambda t: bar.update(task, completed=t - t0, t=t)
