"""Densities, ellipses, attention matrices, rates and whole paths: what is drawn where, and what is refused."""

import dataclasses
import sys

import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
from drawn import bump, gaussians, path_of, wave

import attnflow as af


def mesh_of(ax):
    (drawn,) = [c for c in ax.collections if type(c).__name__ == "QuadMesh"]
    return drawn


def test_a_density_on_the_circle_is_drawn_along_time():
    path = path_of([wave(a) for a in (0.0, 0.4, 0.8)])
    ax = af.plot.densities(path)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("$t$", "angle")
    drawn = mesh_of(ax)
    values = np.asarray(drawn.get_array()).reshape(16, 3)
    np.testing.assert_allclose(values, np.stack([np.asarray(path[i].density) for i in range(3)], axis=1))
    places = np.asarray(drawn.get_coordinates())
    np.testing.assert_allclose(places[0, :, 0], [0, 1, 2])
    assert (np.diff(places[:, 0, 1]) > 0).all(), "angles grow all the way round"
    ax.figure.canvas.draw()


def test_a_density_on_the_line_is_drawn_at_its_cells():
    path = path_of([bump([af.Interval(-2, 2, 12)])] * 2)
    ax = af.plot.densities(path)
    assert ax.get_ylabel() == "$x$"
    np.testing.assert_allclose(np.asarray(mesh_of(ax).get_coordinates())[:, 0, 1], np.asarray(path.measure.mesh.points)[:, 0])


def test_a_density_in_the_plane_is_drawn_at_one_frame_with_its_axes_right():
    flat = af.Grid.uniform([af.Interval(-2, 2, 6), af.Interval(-1, 3, 8)])
    path = path_of([flat, bump([af.Interval(-2, 2, 6), af.Interval(-1, 3, 8)])])
    drawn = mesh_of(af.plot.densities(path))
    values, places = np.asarray(drawn.get_array()).reshape(8, 6), np.asarray(drawn.get_coordinates())
    highest = places.reshape(-1, 2)[values.argmax()]
    expected = np.asarray(path.measure.mesh.points)[np.asarray(path.final.density).ravel().argmax()]
    np.testing.assert_allclose(highest, expected)
    np.testing.assert_allclose(np.asarray(mesh_of(af.plot.densities(path, frame=0)).get_array()), 1 / 16)


def test_densities_elsewhere_are_refused():
    with pytest.raises(TypeError, match="path must be a path of Grids or a Grid, got a path of Gaussian"):
        af.plot.densities(path_of([af.Gaussian([0.0], [[1.0]])] * 2))
    with pytest.raises(TypeError, match="path must be a path of Grids or a Grid, got Gaussian"):
        af.plot.densities(af.Gaussian([0.0], [[1.0]]))


@pytest.mark.parametrize("axes", [[af.Interval(-1, 3, 12)], [af.Circle(16)], [af.Zonal(4, 12)]], ids=["line", "circle", "zonal"])
def test_a_density_alone_on_a_row_of_cells_is_a_curve(axes):
    """And so is a frame of a path that is asked for."""
    mu = bump(axes)
    for ax in (af.plot.densities(mu), af.plot.densities(path_of([af.Grid.uniform(axes), mu]), frame=1)):
        np.testing.assert_allclose(ax.lines[0].get_ydata(), mu.density)
        np.testing.assert_allclose(ax.lines[0].get_xdata(), axes[0].centers)
        assert ax.get_ylim()[0] == 0


def test_a_density_over_an_order_is_drawn_with_the_order_across():
    axes = [af.Order(4), af.Interval(-1, 1, 6)]
    mu = af.Grid.from_density(lambda x, order: 1 + x[:, 0] * order, axes, normalize=True)
    ax = af.plot.densities(mu)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("order", "$x$")
    np.testing.assert_allclose(np.asarray(mesh_of(ax).get_array()).reshape(6, 4), np.asarray(mu.density).T)


def test_a_density_on_the_sphere_is_seen_from_the_front_and_from_behind():
    """A density that grows along the first axis is, from there, symmetric about the middle of the disc, and from behind it is low."""
    mu = af.Grid.from_density(lambda x: (1 + 0.9 * x[:, 0]) / (4 * jnp.pi), [af.Icosphere(16)], normalize=True)
    film = sys.modules["attnflow.plot.densities"].Globe(sys.modules["attnflow.plot.frames"].Frames(mu), view=(0.0, 0.0))
    ax = af.plot.new_figure().add_subplot()
    film.still(ax, 0)
    (image,) = ax.images
    front, behind = np.split(np.asarray(image.get_array().filled(np.nan)), 2, axis=1)
    height = np.sqrt(np.maximum(0, 1 - np.add.outer(*[np.linspace(-1, 1, len(front)) ** 2] * 2)))
    inside = np.isfinite(front)
    np.testing.assert_allclose(inside, height > 0)
    for seen, sign in ((front, 1), (behind, -1)):
        np.testing.assert_allclose(seen[inside], ((1 + sign * 0.9 * height) / (4 * np.pi))[inside], atol=0.01)


def test_ellipses_are_one_standard_deviation_around_the_mean():
    ax = af.plot.ellipses(gaussians(2), count=3)
    *outlines, way = ax.lines
    assert len(outlines) == 3
    for line, k in zip(outlines, (0, 2, 4)):
        away = np.linalg.norm(line.get_xydata() - k, axis=1)
        np.testing.assert_allclose(away, np.sqrt(1.0 + k))
    np.testing.assert_allclose(way.get_xydata(), np.arange(5.0)[:, None] * np.ones(2))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["$t = 0$", "$t = 2$"]
    skew = af.Gaussian([0.0, 0.0], [[2.0, 1.0], [1.0, 2.0]])
    line = af.plot.ellipses(path_of([skew, skew])).lines[0].get_xydata()
    np.testing.assert_allclose(np.einsum("ki,ij,kj->k", line, np.linalg.inv([[2.0, 1.0], [1.0, 2.0]]), line), 1.0)


def test_gaussians_in_other_dimensions_show_their_eigenvalues():
    ax = af.plot.ellipses(gaussians(3))
    assert ax.get_yscale() == "log"
    assert len(ax.lines) == 3
    np.testing.assert_allclose(ax.lines[0].get_ydata(), np.arange(1.0, 6.0))
    with pytest.raises(TypeError, match="path must be a path of Gaussians or mixtures, or one of them, got a path of Particles"):
        af.plot.ellipses(path_of([af.Particles(np.eye(2))] * 2))
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        af.plot.ellipses(gaussians(2), count=0)


def test_a_gaussian_alone_has_its_ellipses_or_its_density():
    """One and two standard deviations; in R^3, of the first two coordinates."""
    for dim in (2, 3):
        two, one = (line.get_xydata() for line in af.plot.ellipses(af.Gaussian(np.zeros(dim), 4 * np.eye(dim))).lines[:2])
        np.testing.assert_allclose([np.hypot(*one.T), np.hypot(*two.T)], np.outer([2, 4], np.ones(len(one))))
    mixture = af.GaussianMixture([0.25, 0.75], [[-1.0], [2.0]], [[[1.0]], [[0.25]]])
    x, y = af.plot.ellipses(mixture).lines[0].get_data()
    np.testing.assert_allclose(y, mixture.density(x[:, None]), rtol=1e-10)


def test_an_attention_matrix_is_drawn_as_it_is(rng):
    weights = rng.uniform(size=(4, 6))
    ax = af.plot.attention(weights)
    (image,) = ax.images
    np.testing.assert_array_equal(np.asarray(image.get_array()), weights)
    assert image.get_clim()[0] == 0
    assert image.origin == "upper", "the first query is on top"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")
    figure = af.plot.new_figure()
    own = figure.add_subplot()
    assert af.plot.attention(np.eye(3), ax=own) is own
    assert own.get_aspect() == 1
    for wrong in (np.zeros(3), np.zeros((2, 2, 2)), np.zeros((0, 3))):
        with pytest.raises(ValueError, match=r"attention draws a matrix \[m, n\], got shape"):
            af.plot.attention(wrong)


def test_the_attention_of_a_law_is_that_of_a_measure_or_of_the_last_frame(key):
    law, mu = af.simple_attention(beta=2.0, dim=2), af.samplers.normal(5, 2, key=key)
    expected = np.asarray(law.weights(mu.points, mu))
    for shown in (mu, path_of([af.Particles(0 * mu.points), mu])):
        np.testing.assert_array_equal(np.asarray(af.plot.attention(law, shown).images[0].get_array()), expected)
    grid = wave(0.4)
    assert af.plot.attention(law, grid).images[0].get_array().shape == (16, 16)
    with pytest.raises(ValueError, match=r"got shape \[2, 5, 5\]; choose a head"):
        af.plot.attention(af.MultiHead([law, law]), mu)
    with pytest.raises(TypeError, match="law must be an attention law where mu is given, got an array"):
        af.plot.attention(expected, mu)
    with pytest.raises(TypeError, match="mu must be tokens or a Grid, or a path of them, got None"):
        af.plot.attention(law)


def test_rates_are_drawn_on_logarithmic_scales_with_their_slope():
    x = np.array([1.0, 10.0, 100.0])
    ax = af.plot.rates(x, {"a": x**-1.0, "b": 2 * x**-2.0}, slope=-2.0, xlabel="$n$", ylabel="error")
    assert (ax.get_xscale(), ax.get_yscale(), ax.get_xlabel(), ax.get_ylabel()) == ("log", "log", "$n$", "error")
    first, second, guide = ax.lines
    np.testing.assert_allclose(first.get_ydata(), 1 / x)
    np.testing.assert_allclose(np.diff(np.log(guide.get_ydata())) / np.diff(np.log(x)), -2.0)
    assert (guide.get_ydata() < second.get_ydata()).all(), "beside the measurements, not on them"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"]
    assert [text.get_text() for text in ax.texts] == ["slope -2"]


def test_many_series_are_all_drawn():
    ax = af.plot.rates([1.0, 2.0], {f"series {k}": [1.0, k + 1.0] for k in range(11)})
    assert len(ax.lines) == 11
    assert len({(line.get_color(), line.get_marker()) for line in ax.lines}) == 11


@pytest.mark.parametrize(
    ("x", "series", "name"),
    [
        ([1.0, 2.0], {"a": [1.0, 2.0], "b": [1.0, 0.0]}, "'b'"),
        ([1.0, 2.0], {"a": [1.0, np.nan]}, "'a'"),
        ([1.0, 2.0], {"a": [1.0]}, "'a'"),
        ([0.0, 2.0], {"a": [1.0, 2.0]}, "x"),
    ],
)
def test_rates_must_be_positive_and_of_one_length(x, series, name):
    with pytest.raises(ValueError, match=f"must be positive and of one length, got {name}|must be finite, got nan"):
        af.plot.rates(x, series)


@pytest.mark.parametrize(
    ("path", "panels"),
    [
        (lambda: path_of([af.Particles(np.eye(3), space=af.Sphere())] * 5), 4),
        (lambda: path_of([af.Particles(k + np.eye(2)) for k in range(5)]), 4),
        (lambda: path_of([af.Particles(k + np.eye(4)) for k in range(3)]), 3),
        (lambda: path_of([af.Particles(np.ones((2, 1)) * k) for k in range(2)]), 1),
        (lambda: gaussians(2), 1),
        (lambda: path_of([wave(a) for a in (0.0, 0.4, 0.8)]), 2),
        (lambda: path_of([bump([af.Interval(-2, 2, 6), af.Interval(-1, 3, 8)])] * 3), 4),
        (lambda: path_of([bump([af.Icosphere(2)])] * 5), 5),
    ],
    ids=["sphere", "plane", "R^4", "line", "Gaussian", "density", "density in the plane", "density on the sphere"],
)
@pytest.mark.cases
def test_a_summary_has_the_measures_and_below_the_numbers(path, panels):
    path = path()
    before = dict(matplotlib.rcParams)
    numbers = {f"number_{k}": np.arange(len(path)) * k for k in range(4)}
    figure = af.plot.summary(path, numbers | {"of another shape": np.zeros((len(path), 2))})
    labels = [ax.get_ylabel() for ax in figure.axes]
    assert [label for label in labels if label.startswith("number")] == [f"number {k}" for k in range(4)]
    assert len(figure.axes) == panels + 4
    (third,) = [ax for ax in figure.axes if ax.get_ylabel() == "number 3"]
    np.testing.assert_allclose(third.lines[0].get_xydata(), np.stack([np.asarray(path.ts), 3 * np.arange(len(path))], axis=1))
    figure.canvas.draw()
    assert len(af.plot.summary(path).axes) == panels
    assert dict(matplotlib.rcParams) == before


def test_the_panels_of_a_summary_are_at_the_times_they_say():
    path = path_of([af.Particles(k + np.eye(2)) for k in range(7)])
    figure = af.plot.summary(path)
    assert [ax.get_title() for ax in figure.axes] == ["$t = 0$", "$t = 0.667$", "$t = 1.33$", "$t = 2$"]
    for ax, k in zip(figure.axes, (0, 2, 4, 6)):
        (dots,) = [c for c in ax.collections if type(c).__name__ == "PathCollection"]
        np.testing.assert_allclose(np.sort(np.asarray(dots.get_offsets()), axis=0), np.sort(k + np.eye(2), axis=0))
        assert ax.get_xlim() == figure.axes[0].get_xlim(), "one box for all"


def test_a_summary_draws_what_was_observed_at_its_own_times():
    """And what is given in its place, or besides; what is not a number per time is left out."""
    path = path_of([af.Particles(k + np.eye(2)) for k in range(3)])
    early = np.array([0.0, 0.5])
    observed = {"kept": af.Observed(path.ts, np.arange(3)), "own": af.Observed(early, early**2), "matrix": af.Observed(early, np.eye(2))}
    path = dataclasses.replace(path, observed=observed)
    drawn = {ax.get_ylabel(): ax.lines[0].get_xydata() for ax in af.plot.summary(path, {"kept": np.ones(3), "more": np.zeros(3)}).axes[3:]}
    assert drawn.keys() == {"kept", "own", "more"}
    np.testing.assert_allclose(drawn["kept"], np.stack([[0, 1, 2], np.ones(3)], axis=1))
    np.testing.assert_allclose(drawn["own"], np.stack([early, early**2], axis=1))


@pytest.mark.parametrize("mu", [af.Particles(np.eye(2)), af.Gaussian([0.0], [[1.0]]), wave(0.3)], ids=["tokens", "Gaussian", "density"])
def test_a_measure_alone_has_a_summary(mu):
    figure = af.plot.summary(mu)
    assert len(figure.axes) == 1
    assert figure.axes[0].get_title() == ""


@pytest.mark.parametrize("dim", [1, 2, 4])
def test_a_summary_of_a_mixture_shows_its_components(dim):
    """In the plane an ellipse per component at five frames, and the path of each mean; on the line a band for each."""
    start = af.GaussianMixture([0.5, 0.5], np.stack([-np.ones(dim), np.ones(dim)]), [np.eye(dim), 4 * np.eye(dim)])
    path = path_of([start.push(lambda x, k=k: (1 + k) * x) for k in range(6)])
    (ax,) = af.plot.summary(path).axes
    if dim == 1:
        assert (len(ax.lines), len(ax.collections)) == (2, 2)
        np.testing.assert_allclose(ax.lines[1].get_ydata(), 1.0 + np.arange(6), atol=1e-12)
        return
    assert len(ax.lines) == 2 * 5 + 2
    last = np.stack(ax.lines[9].get_data())
    np.testing.assert_allclose(np.hypot(*(last - 6)), 12, rtol=1e-12)
    np.testing.assert_allclose(ax.lines[-1].get_xdata(), 1.0 + np.arange(6), atol=1e-12)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["$t = 0$", "$t = 2$"]
