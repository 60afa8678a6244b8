"""One look for every figure: type, colors, sizes and resolution fit for a paper."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow._check import refusal
from attnflow._types import ArrayLike, Scalar
from attnflow.numerics.arrays import positive

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any

# Okabe and Ito (2008): told apart under every common color blindness. Yellow, the faintest on white, comes last.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#333333", "#56B4E9", "#F0E442")

# Widths of a column and of a page of text in inches, and dots per inch.
COLUMN, PAGE, DPI = 3.4, 7.0, 300
# Elevation and azimuth of the eye in degrees.
VIEW = (20.0, 30.0)

# The STIX fonts come with matplotlib, so a figure is the same on every machine.
RC: dict[Any, Any] = {
    "font.family": "STIXGeneral",
    "mathtext.fontset": "stix",
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "0.25",
    "axes.labelcolor": "0.1",
    "xtick.color": "0.25",
    "ytick.color": "0.25",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.3,
    "grid.color": "0.88",
    "grid.linewidth": 0.5,
    "axes3d.xaxis.panecolor": "none",
    "axes3d.yaxis.panecolor": "none",
    "axes3d.zaxis.panecolor": "none",
    "pdf.fonttype": 42,
}


@contextlib.contextmanager
def look() -> Iterator[None]:
    """The look, for the figures made inside: `with af.plot.look(): ...`. Outside, the user's settings stay."""
    import matplotlib
    from cycler import cycler

    with matplotlib.rc_context({**RC, "axes.prop_cycle": cycler(color=COLORS)}):
        yield


def numbers(name: str, value: ArrayLike) -> np.ndarray:
    """Finite numbers to draw, of any shape."""
    try:
        found = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(refusal(name, "an array of numbers", value)) from None
    if not np.isfinite(found).all():
        raise ValueError(f"{name} must be finite, got {found[~np.isfinite(found)][0]}")
    return found


def check_axes(ax: Axes | None) -> None:
    """Raise if this is given and not the axes of a figure."""
    if ax is not None and not hasattr(ax, "get_figure"):
        raise TypeError(refusal("ax", "axes of matplotlib", ax, "leave it out, or make them with figure.add_subplot()"))


def new_figure(width: Scalar = COLUMN, height: Scalar = COLUMN) -> Figure:
    """An empty figure, its size in inches, drawn off screen and unknown to pyplot; `figure.savefig(file)` writes it."""
    from matplotlib import figure
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    width, height = float(positive("width", width)), float(positive("height", height))

    # The resolution belongs to the figure, so that it is also right when saved outside `look`.
    page = figure.Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(page)
    return page


def eye(view: ArrayLike) -> np.ndarray:
    """The orthonormal columns right, up and towards the eye; the angles are those of matplotlib's 3d axes."""
    e, a = np.deg2rad(np.asarray(view, dtype=float))
    right = [-np.sin(a), np.cos(a), 0]
    up = [-np.sin(e) * np.cos(a), -np.sin(e) * np.sin(a), np.cos(e)]
    return np.array([right, up, np.cross(right, up)]).T


def limits(ax: Axes, points: ArrayLike) -> None:
    """Show the box of the points with a margin of 5 %; a side of no length gets a unit one."""
    points = np.asarray(points, dtype=float)
    low, high = points.min(axis=0), points.max(axis=0)
    margin = np.where(high > low, 0.05 * (high - low), 0.5)
    for name, a, b in zip("xyz", low - margin, high + margin):
        ax.set(**{f"{name}lim": (a, b)})
