"""The command line: exit codes, what is written, and that bad input writes nothing."""

import json
import pathlib

import imageio_ffmpeg
import jax
import numpy as np
import pytest

import attnflow as af
from attnflow import cli, studies
from attnflow.studies import Check, demo, fashion, idx

SMALL = ["--n", "6", "--beta", "4", "--t1", "2", "--seed", "3", "--frames", "8"]


@pytest.fixture(autouse=True)
def settings(tmp_path_factory, monkeypatch):
    """A cache folder of the test, and the settings of JAX as they were."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs", "jax_enable_x64")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    yield cache
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="module")
def result() -> demo.Result:
    return demo.run(demo.Spec(n=6, beta=4.0, t1=2.0, seed=3, frames=8))


def files(folder: pathlib.Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_demo_writes_figure_movie_and_record(tmp_path, capsys, settings):
    out = tmp_path / "new" / "folder"
    assert cli.main(["demo", "--out", str(out), *SMALL]) == 0
    assert files(out) == ["demo.json", "tokens.mp4", "tokens.png"]
    said = capsys.readouterr().out
    assert "all 6 checks hold" in said
    assert str(out / "tokens.mp4") in said.replace("\n", "")

    assert imageio_ffmpeg.count_frames_and_secs(str(out / "tokens.mp4"))[0] == 8

    record = json.loads((out / "demo.json").read_text())
    assert record["parameters"] == {"n": 6, "beta": 4.0, "t1": 2.0, "seed": 3, "frames": 8}
    assert record["seed"] == 3
    assert record["measured"]["status"] == "reached at t = 2"
    assert record["versions"]["attnflow"] == af.__version__
    assert record["versions"]["jax"] == jax.__version__
    assert [check["ok"] for check in record["checks"]] == [True] * 6
    assert record["checks"][4]["measured"] == pytest.approx(record["checks"][4]["expected"], rel=1e-6)

    assert jax.config.jax_enable_x64
    assert jax.config.jax_compilation_cache_dir == str(settings / "attnflow")


def test_no_movie(tmp_path, result, monkeypatch):
    monkeypatch.setattr(demo, "run", lambda spec, progress: result)
    assert cli.main(["demo", "--out", str(tmp_path), "--no-movie", *SMALL]) == 0
    assert files(tmp_path) == ["demo.json", "tokens.png"]


def test_a_failed_check_is_exit_1_and_recorded(tmp_path, result, monkeypatch, capsys):
    monkeypatch.setattr(demo, "run", lambda spec, progress: result)
    monkeypatch.setattr(demo, "checks", lambda result: [Check("a", 1.0, 1.0, 0.0), Check("b", float("nan"), 1.0, 1.0)])
    assert cli.main(["demo", "--out", str(tmp_path), "--no-movie"]) == 1
    assert "1 of 2 checks fail" in capsys.readouterr().out
    checks = json.loads((tmp_path / "demo.json").read_text())["checks"]
    assert [check["ok"] for check in checks] == [True, False]
    assert checks[1]["measured"] is None


def test_ctrl_c_is_one_line_and_130(tmp_path, monkeypatch, capsys):
    def interrupted(spec, progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", interrupted)
    assert cli.main(["demo", "--out", str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err == "attnflow: interrupted\n"
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "the commands are list, run, demo and version, got none"),
        (["dmeo"], "the commands are list, run, demo and version, got 'dmeo'"),
        (["run"], "demo, fashion"),
        (["run", "warm"], "got 'warm'; attnflow list says more"),
        (["run", "heat", "--steps", "4", "many"], "--steps"),
        (["run", "heat", "--steps", "4", "8"], "steps must be at least three different numbers of at least 1, got [4, 8]"),
        (["run", "mixture", "--eps", "0"], "eps must be positive and finite, got 0.0"),
        (["run", "mixture", "--out", "file"], "out must be a folder, got 'file': 'file' is a file"),
        (["list", "all"], "list takes no options, got 'all'"),
        (["demo", "--n", "0"], "n must be at least 1, got 0"),
        (["demo", "--n", "many"], "--n: invalid literal"),
        (["demo", "--n"], "--n"),
        (["demo", "--beta", "-1"], "beta must be positive and finite, got -1.0"),
        (["demo", "--beta", "nan"], "beta must be positive and finite, got nan"),
        (["demo", "--t1", "0"], "t1 must be positive and finite, got 0.0"),
        (["demo", "--frames", "1"], "frames must be at least 6, got 1"),
        (["demo", "--width", "3"], "--width"),
        (["version", "now"], "now"),
        (["demo", "--out", "file"], "out must be a folder, got 'file': 'file' is a file"),
        (["demo", "--out", "file/folder"], "out must be a folder, got 'file/folder'"),
    ],
)
@pytest.mark.parametrize("terminal", [False, True])
def test_bad_input_is_one_line_exit_2_and_writes_nothing(argv, message, terminal, tmp_path, monkeypatch, capsys, settings):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("file").write_text("kept")
    if terminal:
        # On a terminal the parser writes in colour.
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("attnflow: ")
    assert err.count("\n") == 1
    assert err[:-1].isprintable(), "no codes of colours"
    assert message in err
    assert files(tmp_path) == ["file"]
    assert pathlib.Path("file").read_text() == "kept"
    assert files(settings) == []


def test_a_spec_found_wrong_by_the_run_is_one_line_and_exit_2(tmp_path, capsys):
    out = tmp_path / "out"
    assert cli.main(["run", "langevin", "--nodes", "200", "--out", str(out)]) == 2
    assert "nodes must be at least" in capsys.readouterr().err
    assert files(tmp_path) == []


@pytest.mark.parametrize(("content", "message"), [(None, "install Debian's package"), ("text", "is no IDX file of bytes with 3 axes")])
def test_bad_data_are_one_line_exit_2_and_write_nothing(content, message, tmp_path, capsys):
    if content:
        (tmp_path / idx.IMAGES).write_text(content)
    before = files(tmp_path)
    assert cli.main(["run", "fashion", "--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert files(tmp_path) == before


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    cli._configure()
    assert jax.config.jax_compilation_cache_dir is None


def test_the_users_own_cache_is_kept(tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    cli._configure()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "own")


@pytest.mark.parametrize("argv", [["version"], ["--version"]])
def test_version(argv, capsys):
    assert cli.main(argv) == 0
    assert capsys.readouterr().out == f"{af.__version__}\n"


def test_run_writes_figures_and_record(tmp_path, capsys):
    """A study of its own name: a png and a pdf of each figure, and all its numbers."""
    rng, data, out = np.random.default_rng(2), tmp_path / "data", tmp_path / "out"
    data.mkdir()
    for name, shape in ((idx.IMAGES, (12, 3, 4)), (idx.LABELS, (12,))):
        sizes = b"".join(size.to_bytes(4, "big") for size in shape)
        (data / name).write_bytes(
            bytes([0, 0, 8, len(shape)]) + sizes + rng.integers(255 if len(shape) > 1 else 2, size=shape, dtype=np.uint8).tobytes()
        )
    assert cli.main(["run", "fashion", "--n", "10", "--eps", "1", "--pixels", "1", "--data", str(data), "--out", str(out)]) == 0
    assert files(out) == ["fashion.json", "fashion.pdf", "fashion.png"]
    assert "all 6 checks hold" in capsys.readouterr().out
    record = json.loads((out / "fashion.json").read_text())
    assert record["parameters"] == {"n": 10, "eps": 1.0, "pixels": 1.0, "steps": 5, "seed": 0, "data": str(data)}
    assert (record["study"], record["seed"], record["claim"][:9]) == ("fashion", 0, "Heat flow")
    assert len(record["measured"]["forward"]["variance"]) == 6
    assert [check["ok"] for check in record["checks"]] == [True] * 6


def test_run_of_a_failing_study_is_exit_1(tmp_path, monkeypatch):
    """A study is found by its name, and has one figure or several."""
    figure = af.plot.new_figure()
    monkeypatch.setattr(fashion, "run", lambda spec, progress: None)
    monkeypatch.setattr(fashion, "checks", lambda result: [Check("a", 1.0, 2.0, 0.5)])
    monkeypatch.setattr(fashion, "measured", lambda result: {"a": np.arange(2), "b": float("inf")})
    monkeypatch.setattr(fashion, "figure", lambda result: figure)
    assert cli.main(["run", "fashion", "--out", str(tmp_path)]) == 1
    record = json.loads((tmp_path / "fashion.json").read_text())
    assert record["measured"] == {"a": [0, 1], "b": None}
    assert record["checks"] == [{"name": "a", "measured": 1.0, "expected": 2.0, "tolerance": 0.5, "ok": False}]
    monkeypatch.setattr(fashion, "figures", lambda result: {"one": figure, "two": figure}, raising=False)
    assert cli.main(["run", "fashion", "--out", str(tmp_path / "more")]) == 1
    assert files(tmp_path / "more") == ["fashion.json", "one.pdf", "one.png", "two.pdf", "two.png"]


def test_list_has_a_line_a_study(capsys):
    assert cli.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(studies.studies())
    assert "second-order scheme for the heat flow" in next(line for line in lines if line.startswith("heat"))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--help"], ["demo", "version", "run", "list"]),
        (["demo", "--help"], ["--beta", "--no-movie", "sphere"]),
        (["run", "--help"], ["heat", "fashion"]),
        (["run", "heat", "--help"], ["--plane-steps", "--out", "heat flow"]),
    ],
)
def test_help(argv, words, capsys):
    assert cli.main(argv) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in words)


def test_arguments_come_from_the_shell_by_default(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["attnflow", "version"])
    assert cli.main() == 0
    assert capsys.readouterr().out == f"{af.__version__}\n"
