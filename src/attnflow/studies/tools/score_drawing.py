"""The figure of the study of scores."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

import attnflow as af

if TYPE_CHECKING:
    import matplotlib.figure


def drawing(result: Any, methods: Sequence[str]) -> "matplotlib.figure.Figure":
    """Bias and variance of the largest clouds against eps; the best error and the best eps against n."""
    with af.plot.look():
        page = af.plot.new_figure(af.plot.PAGE, 0.9 * af.plot.PAGE)
        axes = page.subplots(3, len(result.errors), squeeze=False, sharey="row", height_ratios=[1.4, 1, 1])
        for column, e in zip(axes.T, result.errors):
            _against_eps(column[0], e)
            for ax, values in zip(column[1:], reversed(e.best)):
                _against_n(ax, e, values, methods)
        for ax, label in zip(axes[:, 0], ("relative squared error", "least error", "best $\\varepsilon$")):
            ax.set_ylabel(label)
        for style, text in {"-": "total", "--": "bias$^2$", ":": "variance"}.items():
            axes[0, 0].plot([], [], style, color="0.2", label=text)
        axes[0, 0].legend(loc="upper right", fontsize=7)
        axes[1, -1].legend(loc="lower left", fontsize=7)
    return page


def _against_eps(ax: Any, e: Any) -> None:
    for i, color in enumerate(af.plot.COLORS[: len(e.total)]):
        ax.loglog(e.eps, e.total[i, -1], color=color)
        ax.loglog(e.eps, e.variance[i, -1], ":", color=color, linewidth=1)
        if np.isfinite(e.limit[i]).any():
            ax.loglog(e.limit_eps, e.limit[i], "--", color=color, linewidth=1)
        else:
            # A sampled bias, where it stands out of its own noise and is not that of a kernel without tokens.
            clear = (e.bias2[i, -1] > 0.1 * e.variance[i, -1]) & (e.variance[i, -1] < 0.25)
            ax.loglog(e.eps, np.where(clear, e.bias2[i, -1], np.nan), "--", color=color, linewidth=1)
    ax.set(xlabel=r"$\varepsilon$", xlim=(e.eps[-1], e.eps[0]), ylim=(1e-4, 50), title=f"$R^{e.dim}$, $n = {e.n[-1]}$")


def _against_n(ax: Any, e: Any, values: Float[np.ndarray, "m n"], methods: Sequence[str]) -> None:
    for i, (name, color) in enumerate(zip(methods, af.plot.COLORS)):
        ax.loglog(e.n, values[i], "o-", color=color, markersize=4, label=name)
    ax.set_xticks(e.n, [str(n) for n in e.n])
    ax.set_xticks([], minor=True)
    ax.set(xlabel="$n$")
