"""Densities, ellipses, attention matrices, rates and whole paths: what is drawn where, and what is refused."""

import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest

import attnflow as af


def path_of(measures: list) -> af.Path:
    """A path made by hand."""
    states = [mu.state for mu in measures]
    stacked = jnp.stack(states) if hasattr(states[0], "shape") else tuple(jnp.stack(parts) for parts in zip(*states, strict=True))
    if not hasattr(states[0], "shape") and hasattr(states[0], "_fields"):
        stacked = type(states[0])(*stacked)
    ts = jnp.linspace(0.0, 2.0, len(measures))
    return af.Path(ts, stacked, af.Status("reached", 2.0), {}, measures[0])


def wave(amplitude: float, cells: int = 16) -> af.Grid:
    return af.Grid.from_density(lambda x: (1 + amplitude * x[:, 0]) / (2 * jnp.pi), [af.Circle(cells)])


def bump(axes) -> af.Grid:
    blank = af.Grid.uniform(axes)
    values = jnp.exp(-jnp.sum((blank.mesh.points - 0.5) ** 2, axis=1))
    return af.Grid((values / jnp.sum(values * blank.mesh.volumes)).reshape(blank.mesh.shape), blank.mesh)


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
    with pytest.raises(TypeError, match="path must be a path of Grids, got a path of Gaussian"):
        af.plot.densities(path_of([af.Gaussian([0.0], [[1.0]])] * 2))
    with pytest.raises(ValueError, match="drawn over the line, the circle and the plane"):
        af.plot.densities(path_of([af.Grid.uniform([af.Icosphere(2)])] * 2))
    with pytest.raises(ValueError, match="drawn over the line, the circle and the plane"):
        af.plot.densities(path_of([af.Grid.uniform([af.Order(4), af.Interval(-1, 1, 4)])] * 2))


def gaussians(dim: int, count: int = 5) -> af.Path:
    turn = np.eye(dim)
    return path_of([af.Gaussian(np.full(dim, float(k)), (1.0 + k) * turn) for k in range(count)])


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
    with pytest.raises(TypeError, match="path must be a path of Gaussians, got a path of Particles"):
        af.plot.ellipses(path_of([af.Particles(np.eye(2))] * 2))
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        af.plot.ellipses(gaussians(2), count=0)


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
    assert af.plot.attention(np.eye(3), own) is own
    assert own.get_aspect() == 1
    for wrong in (np.zeros(3), np.zeros((2, 2, 2)), np.zeros((0, 3))):
        with pytest.raises(ValueError, match=r"attention draws a matrix \[m, n\], got shape"):
            af.plot.attention(wrong)


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
        (lambda: path_of([af.Particles(np.ones((2, 1)) * k) for k in range(2)]), 2),
        (lambda: gaussians(2), 1),
        (lambda: path_of([wave(a) for a in (0.0, 0.4, 0.8)]), 2),
    ],
    ids=["sphere", "plane", "R^4", "line", "Gaussian", "density"],
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


@pytest.mark.parametrize("dim", [1, 2, 4])
def test_a_summary_of_a_mixture_shows_its_components(dim):
    """In the plane an ellipse a component at five frames, and the way of each mean; on the line a band for each."""
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
