"""A whole path at a glance."""

from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow import _check as check
from attnflow.flow.path import Path
from attnflow.measures import Gaussian, Grid, Measure, Particles
from attnflow.plot.densities import densities, ellipses
from attnflow.plot.look import COLOURS, PAGE, look, new_figure
from attnflow.plot.tokens import tokens
from attnflow.spaces import Sphere

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
        page = new_figure(PAGE, (0.27 if isinstance(path.measure, Particles) else 0.5) * PAGE + 0.24 * PAGE * rows)
        parts = page.subfigures(1 + bool(rows), 1, height_ratios=[2.2, 1.6 * rows] if rows else None, squeeze=False)
        upper, lower = parts[0, 0], parts[-1, 0]
        if isinstance(path.measure, Particles):
            _tokens(upper, path)
        elif isinstance(path.measure, Gaussian):
            ellipses(path, upper.add_subplot())
        elif isinstance(path.measure, Grid):
            densities(path, upper.add_subplot())
        for k, (name, values) in enumerate(numbers.items()):
            ax = lower.add_subplot(rows, min(3, len(numbers)), k + 1)
            ax.plot(np.asarray(path.ts), values, color=COLOURS[k % len(COLOURS)])
            ax.set(xlabel="$t$", ylabel=name.replace("_", " "))
    return page


def _tokens(part: Any, path: Path) -> None:
    states, mu = np.asarray(path.states), path.measure
    on_sphere = isinstance(mu.space, Sphere) and mu.dim <= 3
    flat = on_sphere or mu.dim < 3
    last = len(path) - 1
    for k, i in enumerate(dict.fromkeys((0, round(last / 3), round(2 * last / 3), last))):
        ax = part.add_subplot(1, 4, k + 1, projection=None if flat else "3d")
        shown = states[..., :3]
        cloud = path[i] if mu.dim <= 3 else Particles(shown[i])
        bounds = None if on_sphere else [shown.min(axis=(0, 1)), shown.max(axis=(0, 1))]
        tokens(cloud, ax, trail=shown[: i + 1], size=8.0, bounds=bounds)
        ax.set_title(f"$t = {float(path.ts[i]):.3g}$")
