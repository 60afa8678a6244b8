"""Paths between their frames: interpolation and its order, slices, and the ways to figures."""

import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af


def errors(law, mu, counts, measured):
    """The largest error of `path(t)` halfway between frames, for several numbers of frames."""
    found = []
    for count in counts:
        path = af.solve(law, mu, t1=1.0, save_at=count, rtol=1e-11, atol=1e-12)
        middle = (np.asarray(path.ts)[1:] + np.asarray(path.ts)[:-1]) / 2
        exact = af.solve(law, mu, t1=1.0, save_at=middle, rtol=1e-11, atol=1e-12)
        found.append(max(float(np.abs(measured(path(t)) - measured(m)).max()) for t, m in zip(middle, exact)))
    return found


@pytest.mark.parametrize("picture", ["sphere", "gaussian", "grid"])
@pytest.mark.cases
def test_between_frames_the_error_is_of_second_order(picture, key):
    law = af.simple_attention(2.0, 2)
    if picture == "grid":
        # By the chord itself: the scheme of a grid has errors of its own, which depend on its steps.
        path = af.solve(law, af.Grid.from_density(lambda x: 1 + 0.3 * jnp.cos(x[:, 0]), [af.Circle(32)], normalize=True), t1=0.5, save_at=5)
        np.testing.assert_allclose(path(0.3).mass, 0.6 * path[2].mass + 0.4 * path[3].mass, atol=1e-15)
        assert float(path(0.3).mass.sum()) == pytest.approx(1, abs=1e-14)
        return
    mu = af.samplers.sphere(6, 2, key=key) if picture == "sphere" else af.Gaussian([1.0, 0.0], [[0.2, 0.1], [0.1, 0.2]])
    measured = (lambda m: np.asarray(m.points)) if picture == "sphere" else (lambda m: np.asarray(m.cov))
    coarse, fine = errors(law if picture == "sphere" else af.simple_attention(-1.0, 2), mu, (9, 17), measured)
    assert 3.3 < coarse / fine < 4.7
    assert fine > 1e-8


def test_what_is_between_lies_on_the_space_and_at_a_frame_it_is_the_frame(key):
    mu = af.samplers.sphere(6, 3, key=key)
    path = af.solve(af.simple_attention(2.0, 3), mu, t1=1.0, save_at=5)
    np.testing.assert_allclose(np.linalg.norm(path(0.33).points, axis=1), 1, atol=1e-15)
    assert isinstance(path(0.33).space, af.Sphere)
    for t, frame in zip(path.ts, path):
        np.testing.assert_allclose(path(t).points, frame.points, atol=1e-15)
    np.testing.assert_allclose(jax.jit(lambda p, t: p(t).points)(path, 0.33), path(0.33).points, atol=1e-15)
    slope = jax.grad(lambda t: path(t).points[0, 0])(0.33)
    np.testing.assert_allclose(slope, (path(0.33 + 1e-6).points - path(0.33 - 1e-6).points)[0, 0] / 2e-6, rtol=1e-6)
    one = af.solve(af.simple_attention(2.0, 3), mu, t1=1.0, save_at=1)
    np.testing.assert_array_equal(one(1.0).points, one.final.points)
    for t in (-0.1, 1.5, np.nan):
        with pytest.raises(ValueError, match=r"t must lie within the frames, from 0 to 1, got"):
            path(t)
    for t in ("now", [0.1, 0.2], None):
        with pytest.raises(TypeError, match="t must be a time, one number, got"):
            path(t)


def made(count=7):
    """A path made by hand, with an observable."""
    ts, mu = jnp.arange(float(count)), af.Particles(np.eye(2))
    states = ts[:, None, None] * jnp.ones((count, 2, 2))
    return af.Path(ts, states, af.Status("reached", count - 1.0), {}, mu, {"square": af.Observed(ts, ts**2)})


def test_slices_are_paths():
    path = made()
    for part in (slice(2, 5), slice(None, None, 3), slice(-2, None)):
        some = path[part]
        assert isinstance(some, af.Path)
        np.testing.assert_array_equal(some.ts, path.ts[part])
        np.testing.assert_array_equal(some.states, path.states[part])
        np.testing.assert_array_equal(some.observed["square"].values, path.ts[part] ** 2)
        np.testing.assert_array_equal(some.observed["square"].ts, some.ts)
        assert len(list(some)) == len(some)
    np.testing.assert_allclose(path[::3](4.0).points, 4.0)
    for part in (slice(3, 3), slice(None, None, -1)):
        with pytest.raises(IndexError, match="a slice must hold frames in the order of time"):
            path[part]


def test_figures_of_a_path_are_those_of_the_plots(monkeypatch, tmp_path):
    path, calls = made(), []
    monkeypatch.setattr(af.plot, "summary", lambda *given, **options: calls.append(("summary", given, options)) or "figure")
    monkeypatch.setattr(af.plot, "movie", lambda *given, **options: calls.append(("movie", given, options)) or "file")
    page = types.ModuleType("attnflow.plot.notebook")
    page.html = lambda shown: f"<p>{shown!r}</p>"
    monkeypatch.setitem(sys.modules, "attnflow.plot.notebook", page)
    assert path.plot(observed=None) == "figure"
    assert path.movie(tmp_path / "a.mp4", fps=3) == "file"
    assert calls == [("summary", (path,), {"observed": None}), ("movie", (path, tmp_path / "a.mp4"), {"fps": 3})]
    assert path._repr_html_() == f"<p>{path!r}</p>"
