"""Measurements on logarithmic scales, with the slope that is expected of them."""

import itertools

from attnflow._check import instance
from attnflow._types import ArrayLike, Scalar
from attnflow.numerics.arrays import floats
from attnflow.plot.look import COLORS, COLUMN, Axes, check_axes, look, new_figure, numbers


def rates(
    x: ArrayLike,
    series: dict[str, ArrayLike],
    ax: Axes | None = None,
    *,
    slope: Scalar | None = None,
    xlabel: str = "",
    ylabel: str = "",
) -> Axes:
    """Draw positive measurements against `x`, both on logarithmic scales, and beside the last of them a line of the given slope.

    **Arguments:** `x [k]`, positive; `series`, the measurements `[k]` by name. Returns the axes.
    """
    check_axes(ax)
    x = numbers("x", x)
    instance("series", series, dict, "a dict of measurements by name")
    values = {name: numbers(f"series[{name!r}]", y) for name, y in series.items()}
    for label, text in (("xlabel", xlabel), ("ylabel", ylabel)):
        instance(label, text, str, "a text")
    if slope is not None:
        floats("slope", slope, "")
    bad = [name for name, y in values.items() if y.shape != x.shape or not (y > 0).all()]
    if bad or not (x > 0).all():
        raise ValueError(f"x and every series must be positive and of one length, got {', '.join(map(repr, bad)) or 'x'}")
    with look():
        ax = new_figure(COLUMN, 0.75 * COLUMN).add_subplot() if ax is None else ax
        for (name, y), color, mark in zip(values.items(), itertools.cycle(COLORS), itertools.cycle("osD^vP*"), strict=False):
            ax.loglog(x, y, marker=mark, markersize=3.5, color=color, label=name)
        if slope is not None and values:
            y = list(values.values())[-1]
            guide = 0.5 * y[-1] * (x / x[-1]) ** slope
            ax.loglog(x, guide, "--", color="0.5", linewidth=0.8)
            # Below the line: to the left where it falls, to the right where it rises.
            side = {"ha": "right", "xytext": (-3, -3)} if slope < 0 else {"ha": "left", "xytext": (3, -3)}
            middle = len(x) // 2
            ax.annotate(f"slope {slope:g}", (x[middle], guide[middle]), textcoords="offset points", va="top", color="0.4", **side)
        ax.set(xlabel=xlabel, ylabel=ylabel)
        if any(values):
            ax.legend()
    return ax
