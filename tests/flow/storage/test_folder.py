"""Runs on disk: cut off, killed, damaged, foreign; and bitwise the same when they go on."""

import json
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import attnflow as af
from attnflow.flow.storage import record
from attnflow.flow.storage.folder import Store

SCRIPT = """
import sys, time, jax, numpy as np
jax.config.update("jax_enable_x64", True)
import attnflow as af, diffrax
mu = af.samplers.sphere(300, 3, key=jax.random.key(3))
slow = af.OnHost(lambda mu: time.sleep(float(sys.argv[2])) or mu.mean)
path = af.solve(af.simple_attention(4.0, 3), mu, t1=4.0, save_at=37, solver=diffrax.Heun(), rtol=1e-5, atol=1e-6, out=sys.argv[1],
                observe={"energy": lambda mu: af.energy(mu, 4.0), "slow": slow})
np.savez(sys.argv[1] + ".npz", states=path.states, ts=path.ts, energy=path.observed["energy"].values,
         host=path.observed["slow"].values, ends=path.observed["slow"].ts)
"""


def run(folder, pause, kill_after=None):
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder), str(pause)], stderr=subprocess.PIPE, text=True)
    if kill_after is None:
        assert process.wait() == 0, process.stderr.read()
        return
    done = blocks(folder)
    while blocks(folder) == done and process.poll() is None:
        time.sleep(0.01)
    time.sleep(kill_after)
    process.send_signal(signal.SIGKILL)
    process.wait()


def blocks(folder):
    return len(list((Path(folder) / "blocks").glob("*.zarr")))


@pytest.mark.long
@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_at_random_moments_and_bitwise_the_same(tmp_path, kills):
    run(tmp_path / "whole", 0.0)
    moments = random.Random(5)
    seen = []
    for _ in range(kills):
        run(tmp_path / "cut", 0.15, moments.uniform(0.0, 0.4))
        if not list((tmp_path / "cut").glob("carry-*.npz")):  # killed between the first block and what follows it
            continue
        part = af.load_path(tmp_path / "cut")
        assert part.status.kind in ("interrupted", "reached")
        seen.append(len(part))
    run(tmp_path / "cut", 0.0)
    assert seen == sorted(seen)
    assert any(0 < length < 37 for length in seen)
    whole, cut = np.load(tmp_path / "whole.npz"), np.load(tmp_path / "cut.npz")
    for name in ("ts", "states", "energy", "host", "ends"):
        np.testing.assert_array_equal(whole[name], cut[name])


def small(out=None, beta=2.0, **more):
    mu = af.Particles(af.samplers.sphere(8, 3, key=jax.random.key(0)).points, weights=np.arange(1.0, 9.0), space=af.Sphere())
    return af.solve(af.simple_attention(beta, 3), mu, t1=1.0, save_at=9, out=out, **more)


@pytest.mark.long
def test_a_path_on_disk_is_the_path(tmp_path):
    path = small(tmp_path / "run", observe={"energy": lambda mu: af.energy(mu, 2.0)})
    loaded = af.load_path(tmp_path / "run")
    np.testing.assert_array_equal(loaded.states, path.states)
    np.testing.assert_array_equal(loaded.ts, path.ts)
    np.testing.assert_array_equal(loaded.final.weights, path.final.weights)
    np.testing.assert_array_equal(loaded.observed["energy"].values, path.observed["energy"].values)
    assert isinstance(loaded.final.space, af.Sphere)
    assert loaded.status == path.status
    assert loaded.stats["accepted_steps"] == path.stats["accepted_steps"]
    about = loaded.stats["provenance"]
    assert about["versions"]["attnflow"] == af.__version__
    assert "Softmax" in about["field"]
    # The same call again reads it; nothing is computed twice, nothing changes.
    np.testing.assert_array_equal(small(tmp_path / "run", observe={"energy": lambda mu: af.energy(mu, 2.0)}).states, path.states)


@pytest.mark.long
def test_host_observables_are_on_disk_too(tmp_path):
    observe = {"spread": af.OnHost(lambda mu: np.asarray(mu.cov)), "energy": lambda mu: af.energy(mu, 2.0)}
    path = small(tmp_path / "run", observe=observe)
    path.save(tmp_path / "copy")
    assert path.observed["spread"].values.shape[1:] == (3, 3)
    np.testing.assert_allclose(path.observed["spread"].values[-1], path.final.cov, atol=1e-15)
    for folder in ("run", "copy"):
        loaded = af.load_path(tmp_path / folder)
        assert set(loaded.observed) == {"spread", "energy"}
        for name in observe:
            np.testing.assert_array_equal(loaded.observed[name].values, path.observed[name].values)
            np.testing.assert_array_equal(loaded.observed[name].ts, path.observed[name].ts)


def test_order_comes_back():
    """Any numbers, none, and the length of an axis; files without a length are of the order [0, 1]."""
    tokens = af.Particles(np.eye(3), order=[-2, 0.5, 2**40])
    grid = af.Grid.uniform([af.Order(3, length=9), af.Interval(0.0, 1.0, 2)])
    back, plain, cells = (stored(mu) for mu in (tokens, af.Particles(np.eye(3)), grid))
    np.testing.assert_array_equal(back.order, [-2, 0.5, 2**40])
    assert plain.order is None
    assert cells.axes == grid.axes
    assert cells.axes[0].length == 9
    assert af.Order(**json.loads('{"cells": 4}')) == af.Order(4, length=1)


def stored(mu):
    """A measure as its file has it."""
    return record._measure(record.dataset(mu, record.Frames(np.zeros(1), mu.state[None], {}), {}))


@pytest.mark.long
def test_saved_paths_come_back(tmp_path):
    gaussian = af.solve(af.simple_attention(-1.0, 2), af.Gaussian([1.0, 0.0], np.eye(2)), t1=1.0, save_at=5)
    for name, path in (("tokens", small()), ("gaussian", gaussian)):
        path.save(tmp_path / name)
        loaded = af.load_path(tmp_path / name)
        for got, expected in zip(jax.tree.leaves(loaded.states), jax.tree.leaves(path.states), strict=True):
            np.testing.assert_array_equal(got, expected)
        assert loaded.status == path.status
        np.testing.assert_array_equal(loaded.final.mean, path.final.mean)


@pytest.mark.long
def test_an_early_end_is_on_disk_too(tmp_path):
    law, g = af.simple_attention(1.0, 2), af.Gaussian([1.0, 0.0], np.eye(2))
    path = af.solve(law, g, t1=2.0, out=tmp_path / "run")
    loaded = af.load_path(tmp_path / "run")
    assert loaded.status == path.status
    assert loaded.status.kind == "blow-up"
    np.testing.assert_array_equal(loaded.ts, path.ts)
    np.testing.assert_array_equal(loaded.final.cov, path.final.cov)


@pytest.mark.long
def test_without_positions_the_observables_and_the_end_remain(tmp_path):
    kept = small(observe={"energy": lambda mu: af.energy(mu, 2.0)})
    path = small(
        tmp_path / "run", observe={"energy": lambda mu: af.energy(mu, 2.0), "mean": af.OnHost(lambda mu: mu.mean)}, keep_states=False
    )
    assert len(path) == 1
    path.save(tmp_path / "copy")
    for one in (path, af.load_path(tmp_path / "run"), af.load_path(tmp_path / "copy")):
        np.testing.assert_allclose(one.final.points, kept.final.points, atol=1e-15)
        np.testing.assert_array_equal(one.observed["energy"].values, kept.observed["energy"].values)
        np.testing.assert_array_equal(one.observed["energy"].ts, kept.ts)
        np.testing.assert_allclose(one.observed["mean"].values[-1], path.final.mean, atol=1e-15)


@pytest.mark.long
def test_another_run_is_refused_and_left_alone(tmp_path):
    small(tmp_path / "run")
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    with pytest.raises(ValueError, match="holds another run"):
        small(tmp_path / "run", beta=3.0)
    with pytest.raises(ValueError, match=r"holds another run \(begun with controller"):
        small(tmp_path / "run", step=0.1)
    with pytest.raises(ValueError, match="holds another run"):
        small().save(tmp_path / "run")
    assert before == {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}


def test_foreign_and_damaged_folders_are_named(tmp_path):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").write_text("...")
    with pytest.raises(ValueError, match=r"is not a run of attnflow: it has no attnflow.json"):
        small(tmp_path / "foreign")
    with pytest.raises(ValueError, match="is not a run of attnflow"):
        af.load_path(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="out must be a folder, got the file"):
        small(tmp_path / "file")
    small(tmp_path / "run")
    block = next((tmp_path / "run" / "blocks").glob("*.zarr"))
    (block / "zarr.json").write_text("{ torn")
    with pytest.raises(ValueError, match="is damaged"):
        af.load_path(tmp_path / "run")
    (tmp_path / "run" / "attnflow.json").write_text("{ torn")
    with pytest.raises(ValueError, match=r"attnflow.json' is damaged"):
        af.load_path(tmp_path / "run")
    (tmp_path / "run" / "attnflow.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(ValueError, match="has format 99, this attnflow reads format 4"):
        af.load_path(tmp_path / "run")


class Hostile:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def test_a_strangers_block_or_carry_runs_nothing(tmp_path, monkeypatch):
    """A block in the old format of zarr, which can say that it is to be unpickled, and a carry of objects."""
    import xarray

    monkeypatch.setattr("numcodecs.pickles.ALLOW_UNSAFE_PICKLE_DECODE", True, raising=False)
    mark, block = tmp_path / "ran", tmp_path / "run" / "blocks" / "000000.zarr"
    store = Store.open(tmp_path / "run", "a", {})
    store.append(0, xarray.Dataset({"points": ("n", np.zeros(2))}), (np.zeros(1),))
    assert list(store.blocks()[0]) == ["points"]
    shutil.rmtree(block)
    (block / "points").mkdir(parents=True)
    array = {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|O", "fill_value": None, "order": "C", "compressor": None}
    (block / ".zgroup").write_text(json.dumps({"zarr_format": 2}))
    (block / "points" / ".zarray").write_text(json.dumps(array | {"filters": [{"id": "pickle", "protocol": 5}]}))
    (block / "points" / ".zattrs").write_text(json.dumps({"_ARRAY_DIMENSIONS": ["n"]}))
    (block / "points" / "0").write_bytes(pickle.dumps(np.array([Hostile(mark)], object)))
    with pytest.raises(ValueError, match=r"000000.zarr' is damaged"):
        store.blocks()
    np.savez(tmp_path / "run" / "carry-000000.npz", leaf0=np.array([Hostile(mark)], object))
    with pytest.raises(ValueError, match=r"carry-000000.npz' is damaged"):
        store.carry((np.zeros(1),))
    assert not mark.exists()
    # The old format is not opened at all, also where it is harmless.
    shutil.rmtree(block)
    xarray.Dataset({"points": ("n", np.zeros(2))}).to_zarr(block, zarr_format=2, consolidated=False)
    with pytest.raises(ValueError, match=r"000000.zarr' is damaged"):
        store.blocks()


def extended(out, t1, frames, points=200, **more):
    mu = af.samplers.sphere(points, 3, key=jax.random.key(3))
    observe = {"energy": lambda mu: af.energy(mu, 4.0), "mean": af.OnHost(lambda mu: np.asarray(mu.mean))}
    return af.solve(af.simple_attention(4.0, 3), mu, t1, save_at=np.linspace(0, t1, frames), out=out, observe=observe, **more)


@pytest.mark.parametrize("options", [{}, {"step": 0.125}, {"noise": 0.1, "key": jax.random.key(5)}], ids=["adaptive", "fixed", "noise"])
@pytest.mark.cases
def test_a_later_t1_goes_on(tmp_path, options):
    """A segment per frame: bitwise as one long run. The default step of a noisy run is that of the run as it was begun."""
    short = extended(tmp_path / "run", 0.5, 3, **options)
    longer = extended(tmp_path / "run", 1.0, 5, **options)
    options = options if "noise" not in options else options | {"step": 0.5 / 1000}
    whole = extended(None, 1.0, 5, **options)
    assert str(longer.status) == "reached at t = 1"
    assert longer.stats["accepted_steps"] == whole.stats["accepted_steps"]
    np.testing.assert_array_equal(longer.ts, whole.ts)
    np.testing.assert_array_equal(longer.states[:3], short.states)
    np.testing.assert_array_equal(longer.states, whole.states)
    for name in ("energy", "mean"):
        np.testing.assert_array_equal(longer.observed[name].values, whole.observed[name].values)
    loaded = af.load_path(tmp_path / "run")
    assert loaded.status == longer.status
    np.testing.assert_array_equal(loaded.states, longer.states)


@pytest.mark.long
def test_where_segments_differ_a_later_t1_goes_on_to_the_tolerance(tmp_path):
    """Few tokens: a long run of 41 frames has two segments, that which goes on has others. Other frames are kept as they are too."""
    extended(tmp_path / "run", 1.0, 21, 5)
    longer, whole = extended(tmp_path / "run", 2.0, 41, 5), extended(None, 2.0, 41, 5)
    np.testing.assert_allclose(longer.ts, whole.ts)
    np.testing.assert_allclose(longer.states, whole.states, atol=1e-6)
    other = extended(tmp_path / "run", 3.0, 7, 5)
    np.testing.assert_allclose(other.ts, [*np.linspace(0, 2, 41), 2.5, 3.0])
    # The same call reads it, a run that ended before is refused.
    np.testing.assert_array_equal(extended(tmp_path / "run", 3.0, 7, 5).states, other.states)
    for t1, frames in ((3.0, 8), (2.0, 41)):
        with pytest.raises(ValueError, match="holds this run to t1 = 3 with other frames; give a later t1"):
            extended(tmp_path / "run", t1, frames, 5)


@pytest.mark.long
def test_a_run_that_goes_on_may_be_interrupted_too(tmp_path, monkeypatch):
    """Stopped after some segments by an error, and called again: bitwise what was never interrupted."""
    whole = extended(tmp_path / "whole", 1.0, 5)
    whole = extended(tmp_path / "whole", 2.0, 13)
    append, left = Store.append, [4]

    def failing(self, *given):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        append(self, *given)

    extended(tmp_path / "run", 1.0, 5)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "append", failing)
        with pytest.raises(KeyboardInterrupt):
            extended(tmp_path / "run", 2.0, 13)
    part = af.load_path(tmp_path / "run")
    assert part.status.kind == "interrupted"
    assert 1 < float(part.ts[-1]) < 2
    again = extended(tmp_path / "run", 2.0, 13)
    np.testing.assert_array_equal(again.ts, whole.ts)
    np.testing.assert_array_equal(again.states, whole.states)


@pytest.mark.long
def test_a_run_that_stopped_stays_stopped(tmp_path):
    law, g = af.simple_attention(1.0, 2), af.Gaussian([1.0, 0.0], np.eye(2))
    first = af.solve(law, g, t1=2.0, out=tmp_path / "run")
    later = af.solve(law, g, t1=3.0, out=tmp_path / "run")
    assert later.status == first.status
    np.testing.assert_array_equal(later.ts, first.ts)


@pytest.mark.long
def test_a_density_is_read_by_a_process_that_has_made_none(tmp_path):
    """Grids are loaded when they are first used, and a file may be the first."""
    af.solve(af.simple_attention(1.0, 2), af.Grid.uniform([af.Circle(cells=16)]), 0.1, save_at=1, out=tmp_path / "run")
    script = f"import attnflow as af; print(type(af.load_path({str(tmp_path / 'run')!r}).final).__name__)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip() == "Grid"
