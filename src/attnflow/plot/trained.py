"""Attention matrices, and figures of trained models: a prompt cut into its tokens, and what the layers do to them."""

from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow import _check as check
from attnflow._types import ArrayLike
from attnflow.attention.law import Law
from attnflow.measures import FlowingMeasure
from attnflow.models.embedding import PatchEmbedding
from attnflow.models.transformer import Transformer
from attnflow.plot.frames import Shown, frames_of
from attnflow.plot.look import COLORS, COLUMN, PAGE, Axes, check_axes, look, new_figure, numbers

if TYPE_CHECKING:
    import matplotlib.figure

# What `model.look` calls them, and how figures do.
_CURVES = {
    "cosine": "mean cosine",
    "centered_cosine": "mean cosine, centered",
    "effective_rank": "effective rank",
    "rank_one_residual": "residual to rank one",
    "intrinsic_dimension": "intrinsic dimension",
    "step_size": "size of a step",
    "neighbor_overlap": "neighbors kept",
    "closure_residual": "distance from Gaussian",
    "lipschitz": "local Lipschitz constant",
}
_HEADS = {"entropy": "entropy (nats)", "sink": "largest share of one token", "column_error": "largest column error"}
_LINE = 78  # characters


def tokenization(model: Transformer, x: Any) -> "matplotlib.figure.Figure":
    """A text cut into the tokens that the model sees, or an image into its patches, apart from each other."""
    check.instance("model", model, Transformer, "a model that af.models.load made")
    with look():
        return _patches(model.embedding, x) if isinstance(model.embedding, PatchEmbedding) else _words(model.tokens(x)[1])


def _words(names: list[str]) -> "matplotlib.figure.Figure":
    """Every token in a box, line by line."""
    shown = [name.replace("Ġ", "␣").replace("▁", "␣").replace("Ċ", "⏎").replace("##", "·") for name in names]
    places, line, column = [], 0, 0
    for name in shown:
        if column and column + len(name) + 2 > _LINE:
            line, column = line + 1, 0
        places.append((column, line))
        column += len(name) + 2
    figure = new_figure(PAGE, 0.32 * (line + 1) + 0.1)
    figure.set_layout_engine("none")
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(-0.5, _LINE + 0.5), ylim=(line + 1, 0))
    ax.axis("off")
    for i, (name, (x, y)) in enumerate(zip(shown, places)):
        color = COLORS[i % len(COLORS)]
        # In a font of one width a character is one unit wide.
        ax.text(x + 0.3, y + 0.5, name.replace("$", r"\$"), family="DejaVu Sans Mono", fontsize=8.4, va="center",
                bbox={"boxstyle": "round,pad=0.18", "facecolor": color, "alpha": 0.22, "linewidth": 0})  # fmt: skip
    return figure


def _patches(embedding: PatchEmbedding, image: Any) -> "matplotlib.figure.Figure":
    """The image, and beside it its patches with gaps between them."""
    pixels, side = np.asarray(embedding.pixels(image, np.float32)), embedding.kernel.shape[-1]
    rows, columns = (length // side for length in embedding.size)
    gap = max(1, side // 5)
    spread = np.ones((rows * (side + gap) - gap, columns * (side + gap) - gap, pixels.shape[2]), np.float32)
    for i in range(rows):
        for j in range(columns):
            top, left = i * (side + gap), j * (side + gap)
            spread[top : top + side, left : left + side] = pixels[i * side : (i + 1) * side, j * side : (j + 1) * side]
    figure = new_figure(PAGE, PAGE / 2)
    for k, (picture, title) in enumerate(((pixels, "image"), (spread, f"{rows} × {columns} patches of {side} × {side}"))):
        ax = figure.add_subplot(1, 2, k + 1)
        ax.imshow(picture.squeeze(), cmap="gray" if pixels.shape[2] == 1 else None, interpolation="nearest")
        ax.set_title(title)
        ax.axis("off")
    return figure


def layers(data: Any) -> "matplotlib.figure.Figure":
    """What `model.look(x)` found: its curves along the layers, each with its nulls, and its figures of every head."""
    import xarray

    check.instance("data", data, xarray.Dataset, "a dataset that model.look(x) made")
    if missing := {"case", *_HEADS} - {str(name) for name in (*data.coords, *data.data_vars)}:
        raise ValueError(f"data must be a dataset that model.look(x) made, got one without {', '.join(sorted(missing))}")
    with look():
        shown = [name for name in _CURVES if name in data and np.isfinite(data[name].sel(case="trained")).all()]
        rows = -(-len(shown) // 3)
        figure = new_figure(PAGE, 1.75 * rows + 2.3)
        upper, lower = figure.subfigures(2, 1, height_ratios=[1.75 * rows, 2.3], squeeze=False)[:, 0]
        for k, name in enumerate(shown):
            ax = upper.add_subplot(rows, 3, k + 1)
            axis = data[name].dims[-1]
            for j, case in enumerate(data["case"].values):
                style = {"color": COLORS[j], "marker": "o", "markersize": 3} if j == 0 else {"color": COLORS[j], "linestyle": "--"}
                ax.plot(data[axis], data[name].sel(case=case), label=str(case), linewidth=1.6 if j == 0 else 0.9, **style)
            ax.set(xlabel="layer", title=_CURVES[name])
        handles, labels = upper.axes[0].get_legend_handles_labels()
        upper.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        for k, (name, title) in enumerate(_HEADS.items()):
            ax = lower.add_subplot(1, 3, k + 1)
            drawn = ax.imshow(data[name].sel(case="trained").T, origin="lower", aspect="auto", interpolation="nearest")
            ax.set(xlabel="layer", ylabel="head" if k == 0 else "", title=title)
            ax.locator_params(integer=True)
            lower.colorbar(drawn, ax=ax)
    return figure


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
