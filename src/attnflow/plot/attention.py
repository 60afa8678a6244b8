"""An attention matrix."""

import numpy as np

from attnflow import _check as check
from attnflow._types import ArrayLike
from attnflow.attention.law import Law
from attnflow.measures import FlowingMeasure
from attnflow.plot.frames import Shown, frames_of
from attnflow.plot.look import COLUMN, Axes, check_axes, look, new_figure, numbers


def attention(law: Law | ArrayLike, mu: Shown | None = None, ax: Axes | None = None) -> Axes:
    """Draw an attention matrix: queries down, keys across, on one scale from 0.

    **Arguments:**

    - `law`: an attention law, or a matrix `[m, n]` itself, such as `law.weights(x, mu)` or one of those of several heads.
    - `mu`: the tokens or cells that attend to each other; of a path, those of the last frame. Not with a matrix.
    - `ax`: where to draw; a new figure if not given.

    Returns the axes.
    """
    check_axes(ax)
    if isinstance(law, Law):
        last = frames_of("mu", mu, FlowingMeasure, "tokens or a Grid, or a path of them")[-1]
        matrix = np.asarray(law.weights(last.atoms().points, last))
    elif mu is not None:
        raise TypeError(check.refusal("law", "an attention law where mu is given", law, "or give a matrix alone"))
    else:
        matrix = numbers("law", law)
    if matrix.ndim != 2 or not matrix.size:
        cure = "; choose a head, such as law.weights(mu.points, mu)[0]" if matrix.ndim == 3 and mu is not None else ""
        raise ValueError(f"law: attention draws a matrix [m, n], got shape {list(matrix.shape)}{cure}")
    with look():
        if ax is None:
            figure = new_figure(COLUMN, 0.85 * COLUMN)
            # Axes of a fixed shape would push their labels off the page.
            figure.set_layout_engine("compressed")
            ax = figure.add_subplot()
        square = matrix.shape[0] == matrix.shape[1]
        drawn = ax.imshow(matrix, cmap="cividis", vmin=0, interpolation="nearest", aspect="equal" if square else "auto")
        ax.set(xlabel="key", ylabel="query")
        ax.spines[["top", "right", "left", "bottom"]].set_visible(False)
        ax.figure.colorbar(drawn, ax=ax, label="weight", fraction=0.05)
    return ax
