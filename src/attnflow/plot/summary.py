"""A whole path at a glance."""

from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow import _check as check
from attnflow.flow.path import Path
from attnflow.measures import Measure
from attnflow.plot.densities import draw
from attnflow.plot.look import COLORS, PAGE, look, new_figure

if TYPE_CHECKING:
    import matplotlib.figure


def summary(path: Path, observed: dict[str, Any] | None = None) -> "matplotlib.figure.Figure":
    """A figure of a path: its measures (tokens at four times with their trails, ellipses, or the density along time), and below, numbers
    along time.

    **Arguments:** `observed`, numbers at every frame by name, `[t]`; what has another shape is left out. Tokens in more than three
    coordinates show their first three.
    """
    check.path("path", path, Path, Measure, "a path of measures")
    if observed is not None:
        check.instance("observed", observed, dict, "a dict of numbers by name, such as path.observed has")
    numbers = {name: np.asarray(values) for name, values in (observed or {}).items()}
    numbers = {name: values for name, values in numbers.items() if values.shape == (len(path),)}
    rows = -(-len(numbers) // 3)
    with look():
        page = new_figure(PAGE, PAGE)
        parts = page.subfigures(1 + bool(rows), 1, height_ratios=[2.2, 1.6 * rows] if rows else None, squeeze=False)
        upper, lower = parts[0, 0], parts[-1, 0]
        page.set_figheight((draw(path.measure, path, upper) + 0.24 * rows) * PAGE)
        for k, (name, values) in enumerate(numbers.items()):
            ax = lower.add_subplot(rows, min(3, len(numbers)), k + 1)
            ax.plot(np.asarray(path.ts), values, color=COLORS[k % len(COLORS)])
            ax.set(xlabel="$t$", ylabel=name.replace("_", " "))
    return page
