"""Movies of every picture, as mp4 and gif: as many frames as there are, a camera that stands still, and whole files or none."""

import sys

import equinox as eqx
import imageio_ffmpeg
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest
from drawn import bump, gaussians, path_of, turning, wave
from jaxtyping import Array, Float

import attnflow as af
from attnflow.measures import FlowingMeasure
from attnflow.spaces import Euclidean, Space


class Disc(FlowingMeasure):
    """The uniform measure on a disc about 0, a picture that nothing in the library knows how to draw."""

    radius: Float[Array, ""]
    space: Space = eqx.field(default_factory=Euclidean)
    dim = 2

    @property
    def mean(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return jnp.zeros(2)

    @property
    def cov(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.radius**2 / 4 * jnp.eye(2)

    @property
    def state(self):
        return self.radius

    def with_state(self, state):
        return Disc(state)

    def _not_here(self, *arguments):
        raise NotImplementedError

    integrate = rate = push = retract = error_norm = frame = _not_here


def mixtures(dim: int) -> af.Path:
    start = af.GaussianMixture([0.5, 0.5], np.stack([-np.ones(dim), np.ones(dim)]), [np.eye(dim), 4 * np.eye(dim)])
    return path_of([start.push(lambda x, k=k: (1 + k) * x) for k in range(3)])


PATHS = {
    "tokens on the line": lambda: path_of([af.Particles(np.ones((2, 1)) * k) for k in range(3)]),
    "tokens on the circle": lambda: turning(af.Particles(np.eye(2), space=af.Sphere()), 3),
    "tokens on an ellipsoid": lambda: path_of([af.Particles(np.diag([1.0, 2.0, 3.0]), space=af.Ellipsoid([1.0, 2.0, 3.0]))] * 3),
    "tokens in R^5": lambda: turning(af.Particles(np.eye(5)), 3),
    "density on the line": lambda: path_of([bump([af.Interval(-2, 2, 12)])] * 3),
    "density on the circle": lambda: path_of([wave(a) for a in (0.0, 0.4, 0.8)]),
    "density in a box": lambda: path_of([bump([af.Interval(-2, 2, 6), af.Interval(-1, 3, 8)])] * 3),
    "density over an order": lambda: path_of([af.Grid.uniform([af.Order(4), af.Interval(-1, 1, 4)])] * 3),
    "zonal density": lambda: path_of([bump([af.Zonal(4, 12)])] * 3),
    "density on the sphere": lambda: path_of([bump([af.Icosphere(2)])] * 3),
    "Gaussians on the line": lambda: gaussians(1, 3),
    "Gaussians in the plane": lambda: gaussians(2, 3),
    "Gaussians in R^3": lambda: gaussians(3, 3),
    "mixtures on the line": lambda: mixtures(1),
    "mixtures in the plane": lambda: mixtures(2),
    "discs": lambda: path_of([Disc(jnp.asarray(1.0 + k)) for k in range(3)]),
}


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.cases
def test_every_picture_moves(name, tmp_path):
    file = af.plot.movie(PATHS[name](), tmp_path / "movie.gif")
    with PIL.Image.open(file) as film:
        assert film.n_frames == 3
        assert film.info["duration"] == 40, "hundredths of a second"
    assert [p.name for p in tmp_path.iterdir()] == ["movie.gif"]


def test_a_picture_without_a_drawing_is_the_ellipse_of_its_covariance():
    """For a disc: a circle of half its radius, in a movie and in a summary."""
    path = PATHS["discs"]()
    film = sys.modules["attnflow.plot.pictures"].picture(sys.modules["attnflow.plot.frames"].Frames(path))
    ax = af.plot.new_figure().add_subplot()
    film.still(ax, 2)
    np.testing.assert_allclose(np.hypot(*ax.lines[1].get_data()), 1.5, rtol=1e-6)
    *outlines, _ = af.plot.summary(path).axes[0].lines
    np.testing.assert_allclose([np.hypot(*line.get_data())[0] for line in outlines], [0.5, 1.0, 1.5], rtol=1e-6)


def test_options_are_those_of_the_drawing(tmp_path):
    af.plot.movie(path_of([bump([af.Icosphere(2)])] * 2), tmp_path / "movie.gif", view=(90.0, 0.0))
    with pytest.raises(TypeError, match="of Particles has the options color, size, view, bounds, got 'colour'; did you mean 'color'"):
        af.plot.movie(turning(af.Particles(np.eye(2)), 2), tmp_path / "movie.gif", colour="red")
    with pytest.raises(TypeError, match="of Gaussian has no options, got 'size'"):
        af.plot.movie(gaussians(2), tmp_path / "movie.gif", size=3.0)


@pytest.mark.parametrize(("dim", "space"), [(3, af.Sphere()), (2, af.Euclidean()), (3, af.Euclidean())])
@pytest.mark.cases
def test_a_movie_has_one_picture_per_frame(dim, space, key, tmp_path):
    path = turning(af.Particles(af.samplers.sphere(6, dim, key=key).points, space=space), 6)
    file = af.plot.movie(path, tmp_path / "tokens.mp4", fps=12.0)
    count, seconds = imageio_ffmpeg.count_frames_and_secs(str(file))
    assert count == 6
    assert seconds == pytest.approx(0.5, abs=0.01)
    assert [p.name for p in tmp_path.iterdir()] == ["tokens.mp4"]
    # Every second frame, and the last: 0, 2, 4, 5.
    af.plot.movie(path, file, every=2)
    assert imageio_ffmpeg.count_frames_and_secs(str(file))[0] == 4


def test_the_camera_of_a_movie_stands_still(key, tmp_path, monkeypatch):
    path = turning(af.samplers.normal(5, 2, key=key), 4)
    seen = []
    draw = af.plot.tokens

    def spy(mu, ax, **drawn):
        draw(mu, ax, **drawn)
        seen.append((ax.get_xlim(), ax.get_ylim(), len(drawn["trail"])))
        return ax

    monkeypatch.setattr(sys.modules["attnflow.plot.tokens"], "tokens", spy)
    af.plot.movie(path, tmp_path / "tokens.mp4", tail=2)
    states = np.asarray(path.states).reshape(-1, 2)
    (box,) = {(x, y) for x, y, _ in seen}
    for axis in range(2):
        assert box[axis][0] < states[:, axis].min()
        assert box[axis][1] > states[:, axis].max()
    assert [trail for _, _, trail in seen[-4:]] == [1, 2, 3, 3]


def test_a_movie_that_fails_leaves_nothing(key, tmp_path):
    path = turning(af.samplers.normal(4, 2, key=key), 3)
    with pytest.raises(ValueError, match="one per token"):
        af.plot.movie(path, tmp_path / "tokens.mp4", color=["red", "blue"])
    with pytest.raises(ValueError, match=r"must end in \.mp4 or \.gif, got 'tokens.avi'"):
        af.plot.movie(path, tmp_path / "tokens.avi")
    with pytest.raises(ValueError, match="folder of the movie must exist"):
        af.plot.movie(path, tmp_path / "none" / "tokens.mp4")
    with pytest.raises(ValueError, match="fps must be positive"):
        af.plot.movie(path, tmp_path / "tokens.mp4", fps=0.0)
    assert list(tmp_path.iterdir()) == []


def test_a_movie_cut_short_leaves_nothing(key, tmp_path, monkeypatch):
    taken = []

    def stop(self):
        taken.append(self)
        raise KeyboardInterrupt

    monkeypatch.setattr("matplotlib.animation.FFMpegWriter.grab_frame", stop)
    with pytest.raises(KeyboardInterrupt):
        af.plot.movie(turning(af.samplers.normal(4, 2, key=key), 3), tmp_path / "tokens.mp4")
    assert len(taken) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_gif_cut_short_leaves_nothing(key, tmp_path, monkeypatch):
    def stop(self):
        raise KeyboardInterrupt

    monkeypatch.setattr("matplotlib.animation.PillowWriter.finish", stop)
    with pytest.raises(KeyboardInterrupt):
        af.plot.movie(turning(af.samplers.normal(4, 2, key=key), 3), tmp_path / "tokens.gif")
    assert list(tmp_path.iterdir()) == []
