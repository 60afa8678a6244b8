"""Gaussians and mixtures as ellipses; and every other measure that has no drawing of its own, by its mean and covariance."""

import functools

import numpy as np

from attnflow import _check as check
from attnflow._types import ArrayLike
from attnflow.measures import Gaussian, GaussianMixture, Measure
from attnflow.plot.frames import Frames, Picture, Shown, frames_of
from attnflow.plot.look import COLORS, COLUMN, Axes, check_axes, limits, look, new_figure

_ANGLES = np.linspace(0, 2 * np.pi, 200)
_CIRCLE = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)])
# How many standard deviations a frame shows.
_REACH = 2.5


def ellipses(path: Shown, ax: Axes | None = None, *, count: int = 8) -> Axes:
    """Draw Gaussians or mixtures.

    **Arguments:**

    - `path`: in the plane, the ellipses of one standard deviation at `count` frames, dark at the start, and the paths of the means. On the
      line, bands of one standard deviation along time. In other dimensions, the eigenvalues of the covariance along time; of a mixture,
      the ellipses in the plane of the first two coordinates. Of a measure alone, the ellipses of one and of two standard deviations in
      that plane, or the density on the line.
    - `ax`: where to draw; a new figure if not given.

    Returns the axes.
    """
    frames = frames_of("path", path, (Gaussian, GaussianMixture), "a path of Gaussians or mixtures, or one of them")
    check_axes(ax)
    check.count("count", count)
    with look():
        ax = new_figure(COLUMN, COLUMN).add_subplot() if ax is None else ax
        drawn = Ellipses(frames)
        if len(frames) > 1:
            drawn.along(ax, count)
        else:
            drawn.still(ax, 0)
    return ax


@functools.singledispatch
def components(mu: Measure) -> tuple[ArrayLike, ArrayLike, ArrayLike]:
    """The masses `[k]`, means `[k, d]` and covariances `[k, d, d]` that are drawn: those of the measure, unless it is a mixture."""
    return np.ones(1), np.asarray(mu.mean)[None], np.asarray(mu.cov)[None]


@components.register
def _(mu: GaussianMixture) -> tuple[ArrayLike, ArrayLike, ArrayLike]:
    return mu.weights, mu.means, mu.covs


class Ellipses(Picture):
    """Of the components of a mixture, or of the mean and the covariance that every measure has."""

    in_one: bool = True

    def __init__(self, frames: Frames):
        super().__init__(frames)
        self._weights, self._means, self._covs = (frames.stack(lambda mu, k=k: components(mu)[k]) for k in range(3))
        self._spreads = np.sqrt(np.maximum(np.diagonal(self._covs, axis1=2, axis2=3), 0))
        shown = self._means[..., :2], _REACH * self._spreads[..., :2]
        corners = np.stack([shown[0] - shown[1], shown[0] + shown[1]]).reshape(-1, shown[0].shape[-1])
        self._low, self._high = corners.min(axis=0), corners.max(axis=0)
        self.size: tuple[float, float] = (4.0, 4.0) if self._means.shape[2] > 1 else (4.0, 2.6)

    def still(self, ax: Axes, i: int) -> None:
        if self._means.shape[2] == 1:
            self._curve(ax, i)
            return
        for k, (mean, outline) in enumerate(zip(self._means[i], self._outlines(i))):
            color = COLORS[k % len(COLORS)]
            for deviations, opacity in ((2, 0.15), (1, 0.3)):
                ax.fill(*(mean[:2, None] + deviations * outline), facecolor=color, alpha=opacity, edgecolor="none")
                ax.plot(*(mean[:2, None] + deviations * outline), color=color, linewidth=0.8)
            ax.plot(*self._means[max(0, i - self.frames.tail) : i + 1, k, :2].T, color="0.3", linewidth=0.8, linestyle=":")
            ax.plot(*mean[:2], "o", color=color, markersize=3)
        ax.set(xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
        limits(ax, np.stack([self._low, self._high]))

    def _curve(self, ax: Axes, i: int) -> None:
        """The density on the line; a component narrower than can be drawn is drawn wider."""
        margin = 0.5 if self._high[0] == self._low[0] else 0
        x = np.linspace(self._low[0] - margin, self._high[0] + margin, 400)
        width = np.maximum(self._spreads, (x[-1] - x[0]) / 200)
        heights = self._weights / (np.sqrt(2 * np.pi) * width[..., 0])
        bells = heights[i] * np.exp(-0.5 * ((x[:, None] - self._means[i, :, 0]) / width[i, :, 0]) ** 2)
        ax.fill_between(x, bells.sum(axis=1), color=COLORS[0], alpha=0.25, linewidth=0)
        ax.plot(x, bells.sum(axis=1), color=COLORS[0])
        ax.set(xlabel="$x$", ylabel="density", xlim=(x[0], x[-1]), ylim=(0, 1.05 * heights.sum(axis=1).max()))

    def along(self, ax: Axes, count: int | None = None) -> None:
        if self._means.shape[2] == 1:
            self._bands(ax)
        elif self._means.shape[1:] == (1, 2) or self._means.shape[1] > 1:
            self._shaded(ax, count or (8 if self._means.shape[1] == 1 else 5))
        else:
            values = np.linalg.eigvalsh(self._covs[:, 0])
            ax.semilogy(self.frames.ts, np.maximum(values, 1e-300), color=COLORS[0])
            ax.set(xlabel="$t$", ylabel="eigenvalues of the covariance")

    def _bands(self, ax: Axes) -> None:
        """One standard deviation around each mean, along time."""
        for k, (mean, spread) in enumerate(zip(self._means[..., 0].T, self._spreads[..., 0].T)):
            color = COLORS[k % len(COLORS)]
            ax.plot(self.frames.ts, mean, color=color)
            ax.fill_between(self.frames.ts, mean - spread, mean + spread, color=color, alpha=0.25, linewidth=0)
        ax.set(xlabel="$t$", ylabel="$x$")

    def _shaded(self, ax: Axes, count: int) -> None:
        """The ellipses at `count` frames, dark at the start, and the paths of the means."""
        import matplotlib

        ts = self.frames.ts
        chosen = np.unique(np.linspace(0, len(ts) - 1, count).round().astype(int)).tolist()
        for shade, i in zip(matplotlib.colormaps["cividis"](np.linspace(0, 0.9, len(chosen))), chosen):
            label = f"$t = {ts[i]:.3g}$" if i in (chosen[0], chosen[-1]) else None
            outlines = self._means[i][:, :2, None] + self._outlines(i)
            ax.plot(*np.moveaxis(outlines, 0, -1), color=shade, label=[label] + [None] * (len(outlines) - 1))
        for way in np.moveaxis(self._means[..., :2], 1, 0):
            ax.plot(*way.T, color="0.3", linewidth=0.8, linestyle=":")
        ax.set(xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
        ax.legend(loc="best")

    def _outlines(self, i: int) -> np.ndarray:
        """The ellipses of one standard deviation about 0 in the first two coordinates, `[k, 2, m]`."""
        spread, turn = np.linalg.eigh(self._covs[i][:, :2, :2])
        return turn @ (np.sqrt(np.maximum(spread, 0))[..., None] * _CIRCLE)
