"""The command line: exit codes, what is written, and that bad input writes nothing."""

import json
import pathlib

import imageio_ffmpeg
import jax
import pytest

import attnflow as af
from attnflow import cli
from attnflow.studies import demo

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
    monkeypatch.setattr(demo, "checks", lambda result: [demo.Check("a", 1.0, 1.0, 0.0), demo.Check("b", float("nan"), 1.0, 1.0)])
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
        ([], "the commands are demo and version, got none"),
        (["dmeo"], "the commands are demo and version, got 'dmeo'"),
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


@pytest.mark.parametrize(("argv", "words"), [(["--help"], ["demo", "version"]), (["demo", "--help"], ["--beta", "--no-movie", "sphere"])])
def test_help(argv, words, capsys):
    assert cli.main(argv) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in words)


def test_arguments_come_from_the_shell_by_default(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["attnflow", "version"])
    assert cli.main() == 0
    assert capsys.readouterr().out == f"{af.__version__}\n"
