"""One look for every figure: type, colours, sizes and resolution fit for a paper. matplotlib is imported when a figure is made."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import matplotlib.figure

# Okabe and Ito (2008): told apart under every common colour blindness. Yellow, the faintest on white, comes last.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#4D4D4D", "#F0E442")

# Widths in inches of a column and of a page of text.
COLUMN, PAGE = 3.4, 7.0

# The STIX fonts come with matplotlib, so a figure is the same on every machine.
RC = {
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
    "figure.dpi": 150,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,
}


@contextlib.contextmanager
def look() -> Iterator[None]:
    """The look, for the figures made inside: `with af.plot.look(): ...`. Outside, the user's own settings are untouched."""
    import matplotlib
    from cycler import cycler

    with matplotlib.rc_context({**RC, "axes.prop_cycle": cycler(color=COLOURS)}):
        yield


def new_figure(width: float = COLUMN, height: float = COLUMN) -> "matplotlib.figure.Figure":
    """An empty figure of the given size in inches, drawn off screen and unknown to pyplot; save it with `figure.savefig(file)`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
