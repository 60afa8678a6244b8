"""An attention matrix."""

from typing import TYPE_CHECKING, Any

from attnflow.plot.look import COLUMN, check_axes, look, new_figure, numbers

if TYPE_CHECKING:
    import matplotlib.axes


def attention(weights: Any, ax: "matplotlib.axes.Axes | None" = None) -> "matplotlib.axes.Axes":
    """Draw an attention matrix `[m, n]`, such as `law.weights(mu.points, mu)`: queries down, keys across, on one scale from 0. Returns the
    axes."""
    check_axes(ax)
    matrix = numbers("weights", weights)
    if matrix.ndim != 2 or not matrix.size:
        raise ValueError(f"weights: attention draws a matrix [m, n], got shape {list(matrix.shape)}")
    with look():
        ax = new_figure(COLUMN, 0.85 * COLUMN).add_subplot() if ax is None else ax
        drawn = ax.imshow(
            matrix, cmap="cividis", vmin=0, interpolation="nearest", aspect="equal" if matrix.shape[0] == matrix.shape[1] else "auto"
        )
        ax.set(xlabel="key", ylabel="query")
        ax.spines[["top", "right", "left", "bottom"]].set_visible(False)
        ax.figure.colorbar(drawn, ax=ax, label="weight", fraction=0.05)
    return ax
