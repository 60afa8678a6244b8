"""Tokens: what is drawn where, and what is refused."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
from drawn import turning

import attnflow as af


def dots(ax) -> np.ndarray:
    """The places of all dots, `[m, 2]`."""
    return np.concatenate([np.asarray(collection.get_offsets()) for collection in ax.collections if len(collection.get_offsets())])


def scatters(ax) -> list:
    return [c for c in ax.collections if type(c).__name__ == "PathCollection"]


def same_set(a: np.ndarray, b: np.ndarray) -> bool:
    return np.allclose(a[np.lexsort(a.T)], b[np.lexsort(b.T)], atol=1e-12)


@pytest.mark.parametrize(
    ("mu", "page"),
    [
        (lambda key: af.samplers.normal(7, 1, key=key), lambda x: np.concatenate([x, 0 * x], axis=1)),
        (lambda key: af.samplers.normal(7, 2, key=key), lambda x: x),
        (lambda key: af.samplers.sphere(7, 2, key=key), lambda x: x),
    ],
    ids=["line", "plane", "circle"],
)
def test_tokens_are_drawn_where_they_are(mu, page, key):
    mu = mu(key)
    ax = af.plot.tokens(mu)
    (scatter,) = [s for s in scatters(ax) if len(s.get_offsets())]
    assert same_set(np.asarray(scatter.get_offsets()), page(np.asarray(mu.points)))
    ax.figure.canvas.draw()
    (x0, x1), places = ax.get_xlim(), dots(ax)
    assert (places[:, 0] > x0).all()
    assert (places[:, 0] < x1).all()


def test_r3_needs_and_gets_three_dimensional_axes(key):
    mu = af.samplers.normal(9, 3, key=key)
    ax = af.plot.tokens(mu, trail=jnp.stack([0 * mu.points, mu.points]), view=(10.0, 70.0))
    assert (ax.name, ax.elev, ax.azim) == ("3d", 10.0, 70.0)
    assert len(ax.lines) == 9
    ax.figure.canvas.draw()
    with pytest.raises(ValueError, match='projection="3d"'):
        af.plot.tokens(mu, af.plot.new_figure().add_subplot())


def test_the_eye_sees_the_near_half_of_the_sphere_and_the_far_half_dimmed():
    # From the north pole, in the convention of matplotlib, the page shows (y, -x) at azimuth 0.
    points = np.array([[0.6, 0.0, 0.8], [0.0, 0.6, 0.8], [0.6, 0.0, -0.8]])
    ax = af.plot.tokens(af.Particles(points, space=af.Sphere()), view=(90.0, 0.0), color="black")
    far, near = scatters(ax)
    assert same_set(np.asarray(near.get_offsets()), np.array([[0.0, -0.6], [0.6, 0.0]]))
    assert same_set(np.asarray(far.get_offsets()), np.array([[0.0, -0.6]]))
    np.testing.assert_array_equal(near.get_facecolors(), np.array([[0, 0, 0, 1]] * 2))
    assert far.get_facecolors()[0, :3].min() > 0.5
    assert far.get_facecolors()[0, 3] == 1, "piled up tokens must not add up to a full color"
    assert far.get_zorder() < near.get_zorder()


def test_area_is_mass_and_colors_are_one_per_token(key):
    points = jax.random.normal(key, (3, 2))
    colors = ["#ff0000", "#00ff00", "#0000ff"]
    ax = af.plot.tokens(af.Particles(points, weights=[1.0, 2.0, 3.0]), color=colors, size=10.0)
    (scatter,) = scatters(ax)
    np.testing.assert_allclose(scatter.get_sizes(), [5, 10, 15])
    np.testing.assert_array_equal(scatter.get_facecolors()[:, :3], np.eye(3))


def test_trails_pass_through_the_earlier_states(key):
    states = np.asarray(jax.random.normal(key, (4, 5, 2)))
    ax = af.plot.tokens(af.Particles(states[-1]), trail=states)
    (lines,) = [c for c in ax.collections if type(c).__name__ == "LineCollection"]
    np.testing.assert_allclose(np.stack(lines.get_segments()), states.swapaxes(0, 1))


def test_the_users_axes_and_settings_are_kept(key):
    before = dict(matplotlib.rcParams)
    figure = af.plot.new_figure(5.0, 4.0)
    ax = figure.add_subplot()
    assert af.plot.tokens(af.samplers.sphere(5, 3, key=key), ax) is ax
    assert figure.axes == [ax]
    assert tuple(figure.get_size_inches()) == (5.0, 4.0)
    assert dict(matplotlib.rcParams) == before
    with af.plot.look():
        assert matplotlib.rcParams["font.family"] == ["STIXGeneral"]
        assert matplotlib.rcParams["axes.prop_cycle"].by_key()["color"] == list(af.plot.COLORS)


@pytest.mark.parametrize("space", [af.Euclidean(), af.Sphere()])
def test_more_than_three_dimensions_are_refused_with_the_cure(space, key):
    mu = af.Particles(af.samplers.sphere(5, 4, key=key).points, space=space)
    with pytest.raises(ValueError, match=r"R\^4; choose coordinates first, such as af\.Particles\(mu\.points\[:, :2\]\)"):
        af.plot.tokens(mu)


def test_bad_input_is_named(key):
    mu = af.samplers.normal(5, 2, key=key)
    with pytest.raises(ValueError, match=r"trail must have shape \[t, 5, 2\], got \[3, 4, 2\]"):
        af.plot.tokens(mu, trail=np.zeros((3, 4, 2)))
    with pytest.raises(ValueError, match="one per token, 5, got 2"):
        af.plot.tokens(mu, color=["red", "blue"])
    with pytest.raises(TypeError, match="got Gaussian; draw tokens with"):
        af.plot.tokens(af.Gaussian.matching(mu))


def test_of_a_path_the_last_frame_is_drawn_with_the_others_as_its_trail(key):
    path = turning(af.samplers.normal(4, 2, key=key), 3)
    ax = af.plot.tokens(path)
    (scatter,) = scatters(ax)
    np.testing.assert_allclose(scatter.get_offsets(), path.states[-1])
    (lines,) = [c for c in ax.collections if type(c).__name__ == "LineCollection"]
    np.testing.assert_allclose(np.stack(lines.get_segments()), np.asarray(path.states).swapaxes(0, 1))


def test_import_attnflow_is_light():
    heavy = ["matplotlib", "imageio_ffmpeg", "rich", "tyro", "xarray"]
    code = f"import attnflow, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
