"""The flagship study: its numbers, its figure, and that each check can fail."""

import dataclasses

import imageio_ffmpeg
import jax
import numpy as np

import attnflow as af
from attnflow.studies import demo

SPEC = demo.FAST


def verdicts(result: demo.Result) -> dict[str, bool]:
    return {check.name.split(":")[0]: check.ok for check in demo.checks(result)}


def changed(path: af.Path, states) -> af.Path:
    return dataclasses.replace(path, states=states)


def test_frames_are_even_in_log_time_and_end_at_t1(result):
    ts = np.asarray(result.path.ts)
    assert (len(ts), ts[0], ts[-1]) == (40, 0.0, 50.0)
    np.testing.assert_allclose(np.diff(np.log1p(ts)), np.log1p(50.0) / 39, rtol=1e-6)


def test_energy_is_the_double_sum_in_numpy(result):
    for i in (0, 17, 39):
        x = np.asarray(result.path.states[i])
        np.testing.assert_allclose(result.energy[i], np.exp(9.0 * (x @ x.T - 1)).mean(), rtol=1e-12)


def test_on_the_last_plateau_the_energy_is_the_sum_of_squared_masses(result):
    masses = np.bincount(demo._clusters(np.asarray(result.path.states[-1]))) / SPEC.n
    assert 1 < len(masses) < 8
    assert (np.diff(masses) <= 0).all()
    np.testing.assert_allclose(result.energy[-1], (masses**2).sum(), atol=0.01)


def test_the_same_seed_gives_the_same_numbers(result):
    start = af.samplers.sphere(SPEC.n, 3, key=jax.random.split(jax.random.key(SPEC.seed), 3)[0])
    np.testing.assert_array_equal(result.path.states[0], start.points)
    again, other = demo.run(SPEC), demo.run(dataclasses.replace(SPEC, seed=2))
    np.testing.assert_array_equal(again.path.states, result.path.states)
    assert not np.array_equal(other.path.states[0], result.path.states[0])


def test_each_check_can_fail(result):
    assert all(verdicts(result).values())
    wrong = {
        "final time": dataclasses.replace(result, path=dataclasses.replace(result.path, status=af.Status("budget", 49.0))),
        "energy": dataclasses.replace(result, energy=result.energy[::-1]),
        "tokens": dataclasses.replace(result, path=changed(result.path, result.path.states * (1 + 1e-12))),
        "32 orthonormal tokens": dataclasses.replace(result, equiangular=changed(result.equiangular, result.equiangular.states[::-1])),
        "Gaussian, softmax": dataclasses.replace(
            result,
            gaussian=dataclasses.replace(result.gaussian, status=af.Status("stalled", result.gaussian.status.time)),
        ),
        "Gaussian, Sinkhorn": dataclasses.replace(result, cloud=changed(result.cloud, 1.1 * result.cloud.states)),
    }
    assert wrong.keys() == verdicts(result).keys()
    for name, bad in wrong.items():
        assert [check for check, ok in verdicts(bad).items() if not ok] == [name]


def test_clusters_are_numbered_by_size():
    angles = np.array([0.0, 2.0, 2.05, 1.95, 4.0, 4.05])
    labels = demo._clusters(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    assert labels.tolist() == [2, 0, 0, 0, 1, 1]


def test_the_figure_has_four_spheres_and_the_energy(result):
    figure = demo.figure(result)
    spheres, (energy,) = figure.axes[:4], figure.axes[4:]
    assert [ax.get_title()[:3] for ax in spheres] == ["(a)", "(b)", "(c)", "(d)"]
    assert all(sum(len(c.get_offsets()) for c in ax.collections if type(c).__name__ == "PathCollection") == 24 for ax in spheres)
    np.testing.assert_array_equal(energy.lines[0].get_xydata(), np.stack([result.path.ts, result.energy], axis=1))
    assert "time" in energy.get_xlabel()
    assert "energy" in energy.get_ylabel()


def test_the_movie_has_every_frame(result, tmp_path):
    file = demo.movie(result, tmp_path / "tokens.mp4")
    assert imageio_ffmpeg.count_frames_and_secs(str(file))[0] == 40
