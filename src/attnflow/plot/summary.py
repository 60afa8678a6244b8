"""A whole path at a glance."""

from typing import Any

import numpy as np

from attnflow import _check as check
from attnflow.flow.path import Path
from attnflow.measures import Measure
from attnflow.plot.frames import Frames, Shown, frames_of
from attnflow.plot.look import COLORS, PAGE, Figure, look, new_figure
from attnflow.plot.pictures import picture


def summary(path: Shown, observed: dict[str, Any] | None = None) -> Figure:
    """A figure of a path: its measures (tokens or a density at four times, ellipses, or a density along time), and below, the numbers that
    were observed, at their own times. Of a measure alone, its picture.

    **Arguments:** `observed`, more numbers by name, `[t]` at the frames or with times of their own like the entries of `path.observed`,
    in whose place they come if the name is the same. What is not one number per time is left out. Tokens in more than three coordinates
    show their first three.
    """
    frames = frames_of("path", path, Measure, "a path of measures or a measure")
    if observed is not None:
        check.instance("observed", observed, dict, "a dict of numbers by name, such as path.observed has")
    return page(frames, (path.observed if isinstance(path, Path) else {}) | (observed or {}))


def page(frames: Frames, observed: dict[str, Any]) -> Figure:
    """The figure of these frames, with series by name."""
    series = {}
    for name, found in observed.items():
        ts, values = (np.asarray(x) for x in ((found.ts, found.values) if hasattr(found, "ts") else (frames.ts, found)))
        if values.shape == ts.shape and values.dtype.kind in "biuf":
            series[name] = (ts, values)
    rows = -(-len(series) // 3)
    with look():
        drawn = picture(frames)
        heights = [drawn.height, *[0.24 * rows] * bool(rows)]
        figure = new_figure(PAGE, PAGE * sum(heights))
        parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        drawn.overview(parts[0])
        for k, (name, (ts, values)) in enumerate(series.items()):
            ax = parts[-1].add_subplot(rows, min(3, len(series)), k + 1)
            ax.plot(ts, values, color=COLORS[k % len(COLORS)], marker="o" if len(ts) < 3 else None, markersize=3)
            ax.set(xlabel="$t$", ylabel=name.replace("_", " "))
    return figure
