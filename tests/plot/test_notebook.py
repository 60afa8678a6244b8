"""What a notebook shows of a path and of a measure: a line and a picture, and never an error."""

import base64
import dataclasses
import io
import re

import jax
import numpy as np
import PIL.Image
import pytest
from drawn import bump, gaussians, path_of, wave

import attnflow as af
from attnflow.measures import Measure
from attnflow.plot.notebook import html


def image(fragment: str) -> PIL.Image.Image:
    (data,) = re.findall(r'src="data:image/png;base64,([^"]*)"', fragment)
    return PIL.Image.open(io.BytesIO(base64.b64decode(data)))


@pytest.mark.parametrize(
    "shown",
    [
        lambda: af.samplers.sphere(20, 3, key=jax.random.key(0)),
        lambda: af.Particles(np.eye(4)),
        lambda: wave(0.3),
        lambda: bump([af.Icosphere(8)]),
        lambda: af.Gaussian(np.zeros(2), np.eye(2)),
        lambda: gaussians(2),
        lambda: path_of([wave(a) for a in (0.0, 0.4, 0.8)]),
    ],
    ids=["sphere", "R^4", "density", "density on the sphere", "Gaussian", "path of Gaussians", "path of densities"],
)
@pytest.mark.cases
def test_a_line_and_a_picture(shown):
    shown = shown()
    fragment = html(shown)
    assert len(fragment) < 300_000
    assert image(fragment).size[0] == 1000
    assert type(shown).__name__ in re.findall(r"<code>([^<]*)</code>", fragment)[0]
    assert not re.search(r"https?:|<script", fragment), "nothing is fetched or run"
    if isinstance(shown, Measure):
        assert shown._repr_html_() == fragment


def test_the_line_is_one_escaped_line_of_bounded_length():
    (line,) = re.findall(r"<code>(.*?)</code>", html(af.Grid.uniform([af.Icosphere(2)])), flags=re.DOTALL)
    assert "\n" not in line
    assert len(line) <= 200

    class Own(af.Particles):
        def __repr__(self):
            return "<b>Own</b>"

    assert "&lt;b&gt;Own&lt;/b&gt;" in html(Own(np.eye(2)))


def test_many_tokens_and_frames_are_drawn_in_part():
    """As many lines as the picture has trails: a hundred thousand tokens would take minutes."""
    points = np.random.default_rng(0).normal(size=(100_000, 2))
    path = path_of([af.Particles(points * (1 - k / 200)) for k in range(100)])
    assert len(html(path)) < 300_000
    film = af.plot.summary(af.Particles(points[:10]))
    assert len(film.axes[0].collections[-1].get_offsets()) == 10, "figures of one's own show every token"


def test_what_cannot_be_drawn_is_a_line():
    """States that are not numbers, and values that are not known while a function is compiled."""
    path = path_of([af.Particles(np.eye(2))] * 2)
    lost = html(dataclasses.replace(path, states=path.states * np.nan))
    assert re.fullmatch(r"<div><code>Path\(2 frames of Particles.*</code></div>", lost)
    shown = []

    @jax.jit
    def compiled(x):
        mu = af.Particles(x)
        shown.extend([html(mu), html(af.Path(x[0, :1], x[None], af.Status("reached", 1.0), {}, mu))])
        return x

    compiled(np.eye(2))
    assert re.fullmatch(r"<div><code>Particles\(points=.*</code></div>", shown[0])
    assert re.fullmatch(r"<div><code>Path.*</code></div>", shown[1])
