"""The figures of the pages, docs/images/PAGE.png and docs/images/tutorial/NAME.png, small enough for a page.

python docs/figures.py                    every page
python docs/figures.py sums tutorial      some

The blocks of a page are run as the tests run them. The figures of the tutorial are the files that its blocks write; those of other pages
are drawn from what their blocks have left, so that no picture can differ from its page.
"""

import argparse
import contextlib
import io
import os
import pathlib
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gallery import WIDTH, small
from matplotlib.figure import Figure
from PIL import Image

import attnflow as af
from attnflow.cli.options import configure
from attnflow.plot import COLORS, PAGE, look, new_figure
from attnflow.plot.look import DPI

HERE = pathlib.Path(__file__).parent
BLOCK = re.compile(r"```python\n(.*?)```", flags=re.DOTALL)
# What the blocks of a page write: the figure, and the file.
WRITTEN = {
    "tutorial": {
        "tokens": "tokens.png",
        "gaussian": "gaussian.png",
        "density": "density.png",
        "clusters": "results/clusters/figure.png",
    },
}
Names = dict[str, Any]
DRAWN: dict[str, Callable[[Names], Figure]] = {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", help="which ones; all if none is named")
    asked = parser.parse_args().pages
    if unknown := set(asked) - {*WRITTEN, *DRAWN}:
        sys.exit(f"the pages with figures are {', '.join([*WRITTEN, *DRAWN])}, got {', '.join(sorted(unknown))}")
    configure()
    for page in [page for page in (*WRITTEN, *DRAWN) if page in asked or not asked]:
        begun = time.perf_counter()
        for file, image in pictures(page):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(small(scaled(image)))
            print(f"{file.relative_to(HERE)}: {file.stat().st_size / 1000:.0f} kB, {time.perf_counter() - begun:.0f} s", flush=True)
    return 0


def pictures(page: str) -> Iterator[tuple[pathlib.Path, Image.Image]]:
    """The figures of a page: where they belong, and what they show."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        names = run(page)
        for name, file in WRITTEN.get(page, {}).items():
            yield HERE / "images" / page / f"{name}.png", Image.open(file)
        if page in DRAWN:
            buffer = io.BytesIO()
            with look():
                DRAWN[page](names).savefig(buffer, format="png")
            yield HERE / "images" / f"{page}.png", Image.open(buffer)


def scaled(image: Image.Image) -> Image.Image:
    """The picture in pixels of the page: a figure of half its width has half of them, so that all have letters of one size."""
    part = WIDTH / (PAGE * DPI)
    return image.convert("RGB").resize((round(part * image.width), round(part * image.height)), Image.Resampling.LANCZOS)


def run(page: str) -> Names:
    """The names that the blocks of a page leave, run in order; what they print is not shown."""
    names: Names = {}
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        for block in BLOCK.findall((HERE / f"{page}.md").read_text(encoding="utf-8")):
            exec(compile(block, f"{page}.md", "exec"), names)
    return names


def draws(page: str) -> Callable:
    """Marks the function that draws the figure of a page."""

    def mark(function: Callable[[Names], Figure]) -> Callable[[Names], Figure]:
        DRAWN[page] = function
        return function

    return mark


def panels(count: int, height: float, **options: Any) -> tuple[Figure, list]:
    """A figure as wide as a page, and its axes side by side."""
    figure = new_figure(PAGE, height)
    return figure, list(figure.subplots(1, count, squeeze=False, **options)[0])


def on_circle(angles: np.ndarray) -> af.Particles:
    return af.Particles(np.stack([np.cos(angles), np.sin(angles)], axis=-1), space=af.Sphere())


def unwrapped(states: np.ndarray) -> np.ndarray:
    """The angles `[t, n]` of tokens on the circle `[t, n, 2]` along a path, without jumps, so that tokens that have met have one angle."""
    angles = np.unwrap(np.arctan2(states[..., 1], states[..., 0]), axis=0)
    return angles - 2 * np.pi * np.round((angles[-1] - angles[-1, 0]) / (2 * np.pi))


@draws("mathematics")
def limit_geometry(names: Names) -> Figure:
    """Tokens in the frame e^{-tV} x with V = I tend to the corners of a polytope; with a simple eigenvalue, to hyperplanes."""
    start = af.samplers.cube(40, 2, key=jax.random.key(3))
    figure, axes = panels(2, 2.9)
    values = {r"$V = I$: a polytope": np.eye(2), r"$V = \mathrm{diag}(1, -1/2)$: lines": np.diag([1.0, -0.5])}
    for ax, (title, value) in zip(axes, values.items()):
        path = af.solve(af.rescaled(af.Attention(af.dot_product(np.eye(2), np.eye(2)), value)), start, t1=12.0)
        tail = np.asarray(path.states)
        if value[1, 1] < 0:
            # Along the shrinking direction the frame stretches without end: there the tokens themselves are shown.
            tail = tail * np.stack([np.ones_like(path.ts), np.exp(-0.5 * np.asarray(path.ts))], axis=1)[:, None]
        af.plot.tokens(af.Particles(tail[-1]), ax, trail=tail)
        ax.scatter(*tail[0].T, s=6, facecolors="none", edgecolors="0.6", linewidths=0.6)
        ax.set_title(title)
    return figure


@draws("conventions")
def masks(names: Names) -> Figure:
    """Who sees whom: the weights of equal logits."""
    tokens, eye = af.Particles(np.zeros((24, 1))), np.eye(1)
    blocks = np.kron(np.eye(4), np.ones((6, 6)))
    shown = {"Causal()": af.Causal(), "Window(6)": af.Window(6), "ALiBi(0.35)": af.ALiBi(0.35), "Explicit(blocks)": af.Explicit(blocks)}
    figure, axes = panels(4, 2.3, sharey=True)
    for ax, (title, mask) in zip(axes, shown.items()):
        weights = np.asarray(af.Attention(af.dot_product(eye, eye), eye, mask=mask).weights(tokens.points, tokens))
        ax.imshow(np.where(weights > 0, weights, np.nan), cmap="cividis", vmin=0, vmax=0.35, interpolation="nearest")
        ax.set(title=title, xlabel="key", xticks=[0, 23], yticks=[0, 23])
    axes[0].set_ylabel("query, by position")
    return figure


@draws("measures")
def three_pictures(names: Names) -> Figure:
    """One law, three pictures of the same measure, after the same time."""
    law = af.Attention(af.squared_distance(0.5 * np.eye(2), 0.5 * np.eye(2)), np.array([[1.0, -0.6], [0.6, 1.0]]))
    start = af.Gaussian([1.0, 0.0], [[0.5, 0.2], [0.2, 0.3]])
    box = [af.Interval(-2.5, 4.5, cells=140), af.Interval(-2.5, 4.5, cells=140)]
    density = af.GaussianMixture([1.0], start.mean[None], start.cov[None]).density
    pictures = (start.sample(600, key=jax.random.key(0)), start, af.Grid.from_density(density, box))
    figure, axes = panels(3, 2.4, sharex=True, sharey=True)
    for ax, mu in zip(axes, pictures):
        path = af.solve(law, mu, t1=0.8, save_at=9)
        if isinstance(mu, af.Particles):
            af.plot.tokens(path.final, ax, size=5)
            ax.scatter(*np.asarray(mu.points).T, s=3, color="0.8", linewidths=0, zorder=0)
        elif isinstance(mu, af.Gaussian):
            af.plot.ellipses(path, ax, count=5)
        else:
            x = np.asarray(path.final.mesh.points).reshape(140, 140, 2)
            ax.contourf(x[:, 0, 0], x[0, :, 1], np.asarray(path.final.density).T, 12, cmap="cividis")
            ax.set(xlabel="$x_1$", aspect="equal")
        ax.set(title=type(mu).__name__, xlim=(-2.5, 4.5), ylim=(-2.5, 4.5))
    return figure


@draws("laws")
def normalizations(names: Names) -> Figure:
    """One logit, four normalizations: 40 tokens of the circle in the order of their angles."""
    tokens = on_circle(np.sort(np.random.default_rng(1).uniform(0, 2 * np.pi, 40)))
    kinds = (af.Softmax(), af.Sinkhorn(), af.Hardmax(), af.Sigmoid())
    figure, axes = panels(4, 2.0, sharey=True)
    for ax, kind in zip(axes, kinds):
        weights = np.asarray(af.simple_attention(6.0, 2, kind).weights(tokens.points, tokens))
        ax.imshow(weights / weights.max(), cmap="cividis", vmin=0, interpolation="nearest")
        ax.set(title=f"{type(kind).__name__}()", xlabel="key", xticks=[], yticks=[])
    axes[0].set_ylabel("query")
    return figure


@draws("solving")
def consensus(names: Names) -> Figure:
    """The run of the page: angles of the tokens, and the order parameter, until they agree."""
    path = names["path"]
    figure, axes = panels(2, 2.2)
    axes[0].plot(np.asarray(path.ts), unwrapped(np.asarray(path.states)), color=COLORS[0], linewidth=0.8)
    axes[0].set(xlabel="$t$", ylabel="angle")
    order = path.observed["order"]
    axes[1].plot(np.asarray(order.ts), np.asarray(order.values), "o-", markersize=2.5)
    axes[1].axvline(float(path.status.time), color=COLORS[4], linestyle="--", linewidth=0.8)
    axes[1].annotate(
        f"{path.status.kind} at $t = {path.status.time:.1f}$",
        (float(path.status.time), 0.3),
        (-4, 0),
        textcoords="offset points",
        ha="right",
        color=COLORS[4],
    )
    axes[1].set(xlabel="$t$", ylabel="order parameter")
    return figure


@draws("sums")
def tolerances(names: Names) -> Figure:
    """What a spectral sum is asked for, and how far it is from the dense one."""
    asked, key = [10.0**-k for k in range(3, 12, 2)], jax.random.key(0)
    eye = np.eye(2)
    cases = {
        r"circle, $\beta = 9$": (names["law"], names["tokens"]),
        r"$S^2$, $\beta = 9$": (af.simple_attention(9.0, 3), af.samplers.sphere(3000, 3, key=key)),
        r"$\mathbb{R}^2$, width $0.1$": (
            af.Attention(af.squared_distance(eye, eye, temperature=0.02), eye),
            af.samplers.normal(3000, 2, key=key),
        ),
    }
    figure, (ax,) = panels(1, 2.7)
    for (name, (law, mu)), mark in zip(cases.items(), "osD"):
        exact = np.asarray(law.at(mu, sums=af.Dense())(mu.points))
        fast = [np.asarray(law.at(mu, sums=af.plan(law, mu, af.Spectral(t)))(mu.points)) for t in asked]
        ax.loglog(asked, [np.abs(found - exact).max() for found in fast], marker=mark, markersize=3.5, label=name)
    ax.loglog(asked, asked, "--", color="0.5", linewidth=0.8)
    ax.annotate("what is asked for", (1e-6, 1e-6), (6, -10), textcoords="offset points", color="0.4")
    ax.set(xlabel="tolerance of Spectral", ylabel="largest error")
    ax.legend()
    return figure


@draws("transport")
def plan_and_scores(names: Names) -> Figure:
    """The plan of the bridge of the page, and the score that it estimates."""
    mixture, tokens = names["mixture"], names["tokens"]
    x = np.linspace(-5, 5, 200)[:, None]
    figure, axes = panels(2, 2.7)
    bridge = af.self_bridge(tokens, eps=0.5)
    place = np.asarray(tokens.points)[:, 0]
    weights = np.exp(np.asarray(tokens.log_weights))
    density = np.asarray(bridge.plan()) / np.outer(weights, weights) * np.outer(*[np.asarray(mixture.density(tokens.points))] * 2)
    axes[0].pcolormesh(place, place, density, cmap="cividis", shading="gouraud", rasterized=True)
    axes[0].plot(place, np.asarray(bridge.barycentric(tokens.points))[:, 0], color=COLORS[1], label="$B(x)$")
    axes[0].set(title=r"the bridge to itself, $\epsilon = 0.5$", xlabel="$x$", ylabel="$y$", xlim=(-5, 5), ylim=(-5, 5), aspect="equal")
    axes[0].legend(labelcolor="w", loc="upper left")
    axes[1].plot(x[:, 0], np.asarray(mixture.score(x))[:, 0], color="0.2", linewidth=2.2, label="exact")
    for estimate, color in zip((af.kernel_score, af.bridge_score, af.richardson_score), (COLORS[1], COLORS[0], COLORS[2])):
        axes[1].plot(x[:, 0], np.asarray(estimate(tokens, 0.5)(x))[:, 0], color=color, label=estimate.__name__.replace("_score", ""))
    axes[1].set(title=r"scores at $\epsilon = 0.5$, without sampling noise", xlabel="$x$", ylabel=r"$(\log \rho)'$")
    axes[1].legend()
    return figure


@draws("densities")
def mixture_densities(names: Names) -> Figure:
    """The density of the page: at the start, after t = 1/2 on a grid and on tokens, and with noise."""
    place = np.asarray(names["grid"].mesh.points)[:, 0]
    wide = [af.Interval(-12, 12, cells=120)]
    figure, (ax,) = panels(1, 2.5)
    ax.plot(place, np.asarray(names["grid"].density), color="0.6", label="$t = 0$")
    ax.plot(place, np.asarray(names["density"].density), label="$t = 1/2$, grid")
    tokens = af.Grid.deposit(names["cloud"], wide)
    ax.plot(np.asarray(tokens.mesh.points)[:, 0], np.asarray(tokens.density), "o", markersize=2.5, label="$t = 1/2$, 1000 tokens")
    ax.plot(place, np.asarray(names["noisy"].density), "--", label=r"$t = 1/2$, grid with noise $\sigma = 0.3$")
    ax.set(xlabel="$x$", ylabel="density", xlim=(-6, 6), ylim=(0, 0.5))
    ax.legend(ncols=4, loc="upper center")
    return figure


@draws("long-time")
def stairs(names: Names) -> Figure:
    """The mergers of the page, in the logarithm of time."""
    found = names["stairs"]
    figure, axes = panels(2, 2.3)
    count = np.arange(5, 0, -1)
    axes[0].step(np.append(0, found.log_times), count, where="post")
    axes[0].plot(found.log_times, count[1:], "o", markersize=4, color=COLORS[4])
    axes[0].set(xlabel=r"$\log t$", ylabel="clusters", yticks=range(1, 6))
    predicted = [float(af.theory.merger_log_time(cosine, 4000.0)) for cosine in found.cosines]
    axes[1].plot(predicted, found.log_times, "o", markersize=5)
    axes[1].axline((0, 0), slope=1, color="0.5", linestyle="--", linewidth=0.8)
    axes[1].set(xlabel=r"$\log t$ of two clusters alone, by theory", ylabel=r"$\log t$ of the merger")
    return figure


@draws("observables")
def along_a_path(names: Names) -> Figure:
    """Four observables along one path."""
    beta = 9.0
    law, mu = af.simple_attention(beta, 3), af.samplers.sphere(64, 3, key=jax.random.key(2))
    shown = {
        "energy": lambda mu: af.energy(mu, beta, log_scale=-beta),
        "mean cosine": af.mean_cosine,
        "effective rank": af.effective_rank,
        "entropy of attention": lambda mu: jnp.mean(af.attention_entropy(law, mu)),
    }
    path = af.solve(law, mu, t1=60.0, save_at=np.append(0, np.logspace(-1, np.log10(60), 120)), observe=shown)
    figure, axes = panels(4, 1.9)
    for ax, name, color in zip(axes, shown, COLORS):
        seen = path.observed[name]
        ax.semilogx(np.asarray(seen.ts)[1:], np.asarray(seen.values)[1:], color=color)
        ax.set(xlabel="$t$", title=name)
    return figure


@draws("sweeps")
def phases(names: Names) -> Figure:
    """The page's sweep over more temperatures: how far tokens have come together."""
    betas, times = np.linspace(0.5, 12.0, 24), np.linspace(0.0, 15.0, 46)
    data = af.sweep(names["make"], {"beta": betas}, seeds=64, t1=15.0, save_at=times, observe={"cosine": af.mean_cosine})
    mean, error = af.over_seeds(data)
    figure, axes = panels(2, 2.4)
    drawn = axes[0].pcolormesh(times, betas, mean["cosine"].values, cmap="cividis", shading="gouraud", rasterized=True)
    axes[0].set(xlabel="$t$", ylabel=r"$\beta$")
    figure.colorbar(drawn, ax=axes[0], label="mean cosine", fraction=0.05)
    for k in (1, 7, 23):
        value, width = mean["cosine"].values[k], 2 * error["cosine"].values[k]
        axes[1].plot(times, value, label=rf"$\beta = {betas[k]:g}$")
        axes[1].fill_between(times, value - width, value + width, alpha=0.25, linewidth=0)
    axes[1].set(xlabel="$t$", ylabel="mean cosine, 64 seeds")
    axes[1].legend()
    return figure


@draws("studies")
def chances(names: Names) -> Figure:
    """The study of the page, with more tokens and draws."""
    spec = names["Spec"](counts=tuple(range(3, 13)), draws=200)
    return names["figure"](names["run"](spec))


@draws("how-to-choose")
def cost_model(names: Names) -> Figure:
    """The cost model of the page: seconds of one sum, all pairs and spectral."""
    from attnflow.sums.engines.choose import PAIR_SECONDS, SPECTRAL_PAIRS, spectral_seconds

    sizes = np.logspace(3, 6.5, 60)
    figure, (ax,) = panels(1, 2.6)
    for dtype, line in (("float64", "-"), ("float32", "--")):
        ax.loglog(sizes, PAIR_SECONDS[dtype] * sizes**2, line, color=COLORS[0], label=f"all pairs, {dtype}")
    plan = names["plan"]
    ax.loglog(sizes, [spectral_seconds(plan, n, n) for n in sizes], color=COLORS[1], label=r"spectral, circle, $\beta = 9$, to $10^{-9}$")
    ax.axvline(SPECTRAL_PAIRS**0.5, color="0.5", linestyle=":", linewidth=0.9)
    ax.annotate("spectral from here on", (SPECTRAL_PAIRS**0.5, 1e3), (4, 0), textcoords="offset points", color="0.4")
    ax.set(xlabel="tokens", ylabel="seconds of a sum, as modeled")
    ax.legend()
    return figure


@draws("extending")
def torus(names: Names) -> Figure:
    """The own mask of the page, and its own space: tokens on the torus come together."""
    figure, axes = panels(2, 2.6)
    tokens = names["tokens"]
    weights = np.asarray(names["sinks"].weights(tokens.points, tokens))
    axes[0].imshow(np.where(weights > 0, weights, np.nan), cmap="cividis", interpolation="nearest")
    axes[0].set(title="Sinks(width=8, sink=4)", xlabel="key", ylabel="query")
    states = np.asarray(names["turned"].states).reshape(-1, 30, 2, 2)
    angles = np.stack([unwrapped(states[:, :, k]) for k in range(2)], axis=-1)
    axes[1].plot(angles[:, :, 0], angles[:, :, 1], color=COLORS[0], linewidth=0.6, alpha=0.6)
    axes[1].plot(angles[0, :, 0], angles[0, :, 1], "o", markersize=3, markerfacecolor="none", color="0.6")
    axes[1].plot(angles[-1, :, 0], angles[-1, :, 1], "o", markersize=4, color=COLORS[4])
    axes[1].set(title="tokens on the torus, by their two angles", xlabel=r"$\theta_1$", ylabel=r"$\theta_2$")
    return figure


@draws("multi-head")
def heads(names: Names) -> Figure:
    """The attention matrices of the two heads of the page."""
    figure, axes = panels(2, 2.6)
    for h, ax in enumerate(axes):
        af.plot.attention(names["matrices"][h], ax=ax)
        ax.set(title=f"head {h + 1}", xticks=range(0, 12, 2), yticks=range(0, 12, 2))
    return figure


@draws("notebooks")
def in_a_notebook(names: Names) -> Figure:
    """What the cell of the page shows."""
    return af.plot.summary(names["path"])


if __name__ == "__main__":
    sys.exit(main())
