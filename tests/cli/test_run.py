"""The command line with a study: exit codes, what is written and what is refused, and runs that are cut off."""

import json
import pathlib
import random
import shutil
import signal
import subprocess
import time

import jax
import numpy as np
import pytest
import xarray

import attnflow as af
from attnflow.cli import main
from attnflow.cli.options import configure
from attnflow.report.carry_out import versions
from attnflow.studies import BadInput, Check, demo, studies
from attnflow.studies.tools import idx

FILES = ["claims.json", "data.zarr", "figure.pdf", "figure.png", "movie.mp4", "report.html", "run.json"]


def files(folder: pathlib.Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def names(folder: pathlib.Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def arrays(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Every array of data.zarr."""
    with xarray.open_datatree(folder / "data.zarr", engine="zarr", consolidated=False) as tree:
        return {f"{node.path}/{name}": array.values for node in tree.subtree for name, array in node.data_vars.items()}


def same(a: pathlib.Path, b: pathlib.Path) -> bool:
    """Whether the arrays of two runs are the same, bit by bit."""
    first, second = arrays(a), arrays(b)
    assert first.keys() == second.keys()
    assert len(first) > 5
    return all(first[key].dtype == second[key].dtype and first[key].tobytes() == second[key].tobytes() for key in first)


def refused(capsys) -> str:
    """The one line on stderr."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("attnflow: ")
    assert err.count("\n") == 1
    assert err[:-1].isprintable(), "no codes of colors"
    return err


def test_a_run_writes_data_figures_claims_and_a_page(fake, tmp_path, capsys, settings):
    out = tmp_path / "new" / "folder"
    assert main(["run", "fake", "--n", "30", "--out", str(out)]) == 0
    assert names(out) == FILES
    said = capsys.readouterr().out
    assert "all 8 checks hold" in said
    assert "n = 30, eps = 0.2, seed = 0" in said
    assert str(out / "report.html") in said
    assert "Uniform numbers have mean 1/2 (arXiv:0000.00001)" in said
    assert "holds  The mean of n uniform numbers is near 1/2. (arXiv:0000.00001, Theorem 1)" in said
    assert "variance, σ²" in said
    assert not set(said) & set("$\\"), "formulas are letters in a terminal"
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<h1>Uniform numbers have mean <math>" in page
    assert "$" not in page

    record = json.loads((out / "claims.json").read_text())
    assert record["study"] == "fake"
    assert record["title"] == fake.__doc__.splitlines()[0]
    assert record["parameters"] == {"n": 30, "eps": 0.2, "seed": 0}
    assert record["seed"] == 0
    assert record["versions"] == versions()
    assert record["versions"]["attnflow"] == af.__version__
    assert record["command"] == f"attnflow run fake --n 30 --out {out}"
    assert [(claim["id"], claim["verdict"], claim["checks"]) for claim in record["claims"]] == [
        ("fake/mean", "holds", 6),
        ("fake/variance", "holds", 1),
    ]
    assert [check["ok"] for check in record["checks"]] == [True] * 8
    assert record["measured"]["lost"] is None, "a number that is not finite is null"
    assert len(record["measured"]["means"]) == 6
    mark = json.loads((out / "run.json").read_text())
    assert sorted(mark.pop("files")) == [name for name in FILES if name not in ("data.zarr", "run.json")]
    assert mark == {key: record[key] for key in ("study", "parameters", "versions")}

    result = fake.run(fake.Spec(n=30))
    found = arrays(out)
    np.testing.assert_array_equal(found["//values"], result.values)
    np.testing.assert_array_equal(found["/moments/means"], result.moments.means)
    assert found["/first/part-3"] == result.first["part 3"]
    with xarray.open_datatree(out / "data.zarr", engine="zarr", consolidated=False) as tree:
        assert json.loads(tree.attrs["parameters"])["n"] == 30
        assert tree["values"].dims == ("parts", "n")

    assert jax.config.jax_enable_x64
    assert jax.config.jax_compilation_cache_dir == str(settings / "attnflow")


def test_the_same_seed_gives_the_same_numbers_and_another_spec_others(fake, tmp_path):
    for name, extra in {"a": [], "b": [], "seed": ["--seed", "1"], "n": ["--n", "41"]}.items():
        assert main(["run", "fake", "--no-movie", *extra, "--out", str(tmp_path / name)]) == 0
    assert same(tmp_path / "a", tmp_path / "b")
    assert not same(tmp_path / "a", tmp_path / "seed")
    assert arrays(tmp_path / "n")["//values"].shape == (6, 41)
    assert "movie.mp4" not in names(tmp_path / "a")
    assert 'src="data:video' not in (tmp_path / "a" / "report.html").read_text()


def test_json_is_all_that_is_printed(fake, tmp_path, capsys):
    assert main(["run", "fake", "--json", "--out", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == json.loads((tmp_path / "out" / "claims.json").read_text())
    assert "--json" not in json.loads(out)["command"]


def test_fast_is_the_small_spec_and_what_is_given_goes_before_it(fake, tmp_path):
    assert main(["run", "fake", "--fast", "--out", str(tmp_path / "fast")]) == 0
    # Also where the given value is the default of the large spec.
    assert main(["run", "fake", "--fast", "--n", "40", "--out", str(tmp_path / "given")]) == 0
    parameters = [json.loads((tmp_path / name / "claims.json").read_text())["parameters"] for name in ("fast", "given")]
    assert parameters == [{"n": 20, "eps": 0.2, "seed": 3}, {"n": 40, "eps": 0.2, "seed": 3}]


def test_a_failed_check_is_exit_1_and_recorded(fake, tmp_path, monkeypatch, capsys):
    assert main(["run", "fake", "--eps", "0.05", "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().out
    record = json.loads((tmp_path / "out" / "claims.json").read_text())
    failed = sum(not check["ok"] for check in record["checks"])
    assert 0 < failed < 8
    assert f"{failed} of 8 checks fail" in said
    assert record["claims"][0]["verdict"] == "fails"
    assert main(["run", "fake", "--eps", "0.05", "--json", "--overwrite", "--out", str(tmp_path / "out")]) == 1
    capsys.readouterr()

    monkeypatch.setattr(fake, "checks", lambda result: [Check("a", 1.0, 1.0, 0.0), Check("b", float("nan"), 1.0, 1.0)])
    assert main(["run", "fake", "--out", str(tmp_path / "nan")]) == 1
    checks = json.loads((tmp_path / "nan" / "claims.json").read_text())["checks"]
    assert [check["ok"] for check in checks] == [True, False]
    assert checks[1]["measured"] is None
    # What was finished before is said again, with the same verdict.
    assert main(["run", "fake", "--out", str(tmp_path / "nan"), "--resume"]) == 1
    assert "1 of 2 checks fail" in capsys.readouterr().out


def test_several_figures_have_names_of_their_own(fake, tmp_path, monkeypatch):
    figure = af.plot.new_figure(1.0, 1.0)
    monkeypatch.setattr(fake, "figure", lambda result: {"one": figure, "two": figure})
    assert main(["run", "fake", "--no-movie", "--out", str(tmp_path)]) == 0
    assert {"one.pdf", "one.png", "two.pdf", "two.png"} < set(names(tmp_path))


def test_a_folder_is_taken_up_again_replaced_or_refused(fake, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("other").mkdir()
    pathlib.Path("other", "thesis.tex").write_text("kept")
    assert main(["run", "fake", "--out", "other"]) == 2
    assert "out must be a new folder or that of a run, got 'other', which holds other files" in refused(capsys)
    for flag in ("--overwrite", "--resume"):
        assert main(["run", "fake", "--out", "other", flag]) == 2
        assert "holds other files" in refused(capsys)
    assert files(tmp_path) == ["other", "other/thesis.tex"]

    assert main(["run", "fake", "--out", "run"]) == 0
    capsys.readouterr()
    before = {name: (tmp_path / "run" / name).stat().st_mtime_ns for name in FILES}
    assert main(["run", "fake", "--out", "run"]) == 2
    assert "'run' holds a run already; --resume goes on with it, --overwrite replaces it, or give another --out" in refused(capsys)
    assert main(["run", "fake", "--out", "run", "--seed", "5", "--resume"]) == 2
    assert "'run' holds another run, with other seed; give another --out, or --overwrite" in refused(capsys)
    assert main(["run", "fake", "--out", "run", "--n", "5", "--eps", "0.3", "--resume"]) == 2
    assert "with other n, eps;" in refused(capsys)
    assert main(["run", "fake", "--out", "run", "--overwrite", "--resume"]) == 2
    assert "got both" in refused(capsys)
    assert main(["run", "fake", "--out", "run", "--resume"]) == 0
    assert "all 8 checks hold" in capsys.readouterr().out
    assert {name: (tmp_path / "run" / name).stat().st_mtime_ns for name in FILES} == before, "what is done is not done again"

    pathlib.Path("run", "notes.txt").write_text("in the folder of a run")
    assert main(["run", "fake", "--out", "run", "--seed", "5", "--overwrite"]) == 0
    assert names(tmp_path / "run") == sorted([*FILES, "notes.txt"])
    assert json.loads(pathlib.Path("run", "claims.json").read_text())["seed"] == 5

    pathlib.Path("run", "run.json").write_text("{")
    capsys.readouterr()
    assert main(["run", "fake", "--out", "run", "--resume"]) == 2
    assert "is damaged" in refused(capsys)


def test_resume_where_nothing_is_begins(fake, tmp_path):
    assert main(["run", "fake", "--no-movie", "--out", str(tmp_path / "out"), "--resume"]) == 0
    # A kill may come before the folder says what it is of, or while a file is written.
    (tmp_path / "early").mkdir()
    for name in (".lock", f".{'0' * 32}", ".movie.part.mp4"):
        (tmp_path / "early" / name).write_text("")
    assert main(["run", "fake", "--no-movie", "--out", str(tmp_path / "early"), "--resume"]) == 0
    assert names(tmp_path / "early") == names(tmp_path / "out")


@pytest.mark.long
def test_a_folder_that_another_run_writes_to_is_refused(fake, start, tmp_path, capsys):
    out = tmp_path / "out"
    first = start("run", "fake", "--out", str(out), sleep=60.0)
    first.wait_for((out / "parts").is_dir)
    for flag in ("--resume", "--overwrite"):
        assert main(["run", "fake", "--out", str(out), flag]) == 2
        assert "another run writes to" in refused_after_title(capsys)
    assert first.process.poll() is None
    first.process.kill()
    first.process.wait()
    assert main(["run", "fake", "--out", str(out), "--resume"]) == 0, "a lock dies with its process"


def test_ctrl_c_keeps_what_is_done(fake, start, tmp_path, capsys):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main(["run", "fake", "--out", str(whole)]) == 0
    begun = start("run", "fake", "--out", "cut", sleep=0.3)
    begun.wait_for((cut / "parts" / "draws-1.npz").is_file)
    code, _, err = begun.stop(signal.SIGINT)
    assert (code, err) == (130, "attnflow: interrupted; what is done is in 'cut', --resume goes on with it\n")
    done = len(list((cut / "parts").glob("*.npz")))
    assert 2 <= done < 6
    assert float((cut / "parts" / "seconds").read_text()) > 0.5
    assert main(["run", "fake", "--out", str(cut)]) == 2
    capsys.readouterr()
    assert main(["run", "fake", "--out", str(cut), "--resume"]) == 0
    assert names(cut) == FILES
    assert same(whole, cut)
    record = json.loads((cut / "claims.json").read_text())
    assert record["seconds"] > 0.5, "the time before counts too"
    assert {**record, "seconds": 0, "command": ""} == {**json.loads((whole / "claims.json").read_text()), "seconds": 0, "command": ""}


def test_ctrl_c_while_it_is_written_keeps_what_is_done(fake, tmp_path, monkeypatch, capsys):
    def interrupted(result):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fake, "figure", interrupted)
        assert main(["run", "fake", "--out", str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err.startswith("attnflow: interrupted; what is done is in ")
    assert len(list((tmp_path / "out" / "parts").glob("*.npz"))) == 6
    assert main(["run", "fake", "--out", str(tmp_path / "out"), "--resume"]) == 0
    assert names(tmp_path / "out") == FILES


def killed(start, argv: list[str], out: pathlib.Path, delays: list[float], **how) -> int:
    """Begin a run and kill it, again and again, so many seconds after it has taken hold of the folder; how often it was cut off."""
    cut = 0
    for delay in delays:
        command = start(*argv, "--out", str(out), "--resume", **how)
        lock = out / ".lock"
        before = lock.stat().st_mtime_ns if lock.exists() else 0
        command.wait_for(lambda lock=lock, before=before: lock.exists() and lock.stat().st_mtime_ns != before)
        time.sleep(delay)
        cut += command.stop(signal.SIGKILL)[0] == -signal.SIGKILL
    return cut


@pytest.mark.long
def test_a_run_that_is_killed_goes_on_to_the_same_numbers(fake, start, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main(["run", "fake", "--out", str(whole)]) == 0
    rng = random.Random(4)
    assert killed(start, ["run", "fake"], cut, [0.0, rng.uniform(0.1, 0.5), rng.uniform(0.5, 1.0)], sleep=0.2) == 3
    assert main(["run", "fake", "--out", str(cut), "--resume"]) == 0
    assert names(cut) == FILES
    assert same(whole, cut)


@pytest.mark.slow
def test_a_real_study_that_is_killed_ten_times_goes_on_to_the_same_numbers(start, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    argv = ["run", "normalization", "--fast"]
    first = start(*argv, "--out", str(whole), real=True)
    assert first.process.wait(600) == 0
    rng = random.Random(5)
    assert killed(start, argv, cut, [rng.uniform(0, 8) for _ in range(10)], real=True) >= 5
    last = start(*argv, "--out", str(cut), "--resume", real=True)
    assert last.process.wait(600) == 0
    assert names(cut) == names(whole)
    assert same(whole, cut)


@pytest.mark.parametrize("wrong", [BadInput, ValueError])
def test_a_spec_found_wrong_by_the_run_is_one_line_and_exit_2(fake, wrong, tmp_path, monkeypatch, capsys):
    assert main(["run", "fake", "--n", "13", "--out", str(tmp_path / "new" / "out")]) == 2
    assert "n must not be 13, got 13" in refused_after_title(capsys)
    assert files(tmp_path) == [], "what was made for it is taken away"

    def run(spec, progress):
        raise wrong("two\nlines")

    monkeypatch.setattr(fake, "run", run)
    (tmp_path / "empty").mkdir()
    assert main(["run", "fake", "--out", str(tmp_path / "empty")]) == 2
    assert refused_after_title(capsys) == "attnflow: two lines\n"
    assert files(tmp_path) == ["empty"], "a folder that was there stays"


def refused_after_title(capsys) -> str:
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "the commands are list, run, demo, simulate, spec, model, claims, bench, completion, version, got none"),
        (["dmeo"], "got 'dmeo'; attnflow --help says more"),
        (["run"], "demo, depth, equiangular"),
        (["run", "warm"], "got 'warm'; attnflow list says more"),
        (["run", "heat", "--steps", "4", "many"], "--steps"),
        (["run", "heat", "--steps", "4", "8"], "steps must be at least three whole numbers of at least 1, all different, got [4, 8]"),
        (["run", "mixture", "--eps", "0"], "eps must be positive and finite, got 0.0"),
        (["run", "mixture", "--out", "file"], "out must be a folder, got 'file': 'file' is a file"),
        (["run", "mixture", "--resume", "--overwrite"], "got both; give one of them"),
        (["list", "all"], "list takes no options, got 'all'"),
        (["list", "--json", "all"], "list takes no options, got '--json'"),
        (["demo", "--n", "0"], "n must be at least 1, got 0"),
        (["demo", "--n", "many"], "--n: invalid literal"),
        (["demo", "--n"], "--n"),
        (["demo", "--beta", "-1"], "beta must be positive and finite, got -1.0"),
        (["demo", "--beta", "nan"], "beta must be positive and finite, got nan"),
        (["demo", "--t1", "0"], "t1 must be positive and finite, got 0.0"),
        (["demo", "--frames", "1"], "frames must be at least 6, got 1"),
        (["demo", "--fast", "--frames", "1"], "frames must be at least 6, got 1"),
        (["demo", "--width", "3"], "--width"),
        (["demo", "stray"], "stray"),
        (["version", "now"], "now"),
        (["spec", "now"], "spec takes no options, got 'now'"),
        (["demo", "--out", "file"], "out must be a folder, got 'file': 'file' is a file"),
        (["demo", "--out", "file/folder"], "out must be a folder, got 'file/folder'"),
        (["completion"], "completion is for bash, zsh or fish, got none"),
        (["completion", "powershell"], "completion is for bash, zsh or fish, got powershell"),
        (["bench", "nothing"], "got 'nothing'"),
    ],
)
@pytest.mark.parametrize("terminal", [False, True])
def test_bad_input_is_one_line_exit_2_and_writes_nothing(argv, message, terminal, tmp_path, monkeypatch, capsys, settings):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("file").write_text("kept")
    if terminal:
        # On a terminal the parser writes in color.
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main(argv) == 2
    assert message in refused(capsys)
    assert files(tmp_path) == ["file"]
    assert pathlib.Path("file").read_text() == "kept"
    assert files(settings) == []


@pytest.mark.parametrize(("content", "message"), [(None, "install Debian's package"), ("text", "is no IDX file of bytes with 3 axes")])
def test_bad_data_are_one_line_exit_2_and_write_nothing(content, message, tmp_path, capsys):
    if content:
        (tmp_path / idx.IMAGES).write_text(content)
    before = files(tmp_path)
    assert main(["run", "fashion", "--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert message in refused_after_title(capsys)
    assert files(tmp_path) == before


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    configure()
    assert jax.config.jax_compilation_cache_dir is None


def test_the_users_own_cache_is_kept(tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    configure()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "own")


@pytest.mark.long
def test_the_demo_has_a_movie(tmp_path, capsys):
    import imageio_ffmpeg

    small = ["--n", "6", "--beta", "4", "--t1", "2", "--seed", "3", "--frames", "8"]
    assert main(["demo", "--out", str(tmp_path / "demo"), *small, "--json"]) == 0
    assert names(tmp_path / "demo") == FILES
    assert imageio_ffmpeg.count_frames_and_secs(str(tmp_path / "demo" / "movie.mp4"))[0] == 8
    record = json.loads(capsys.readouterr().out)
    assert record["measured"]["status"] == "reached at t = 2"
    assert [check["ok"] for check in record["checks"]] == [True] * 6
    assert record["checks"][4]["measured"] == pytest.approx(record["checks"][4]["expected"], rel=1e-6)
    states = demo.run(demo.Spec(n=6, beta=4.0, t1=2.0, seed=3, frames=8)).path.states
    found = next(values for name, values in arrays(tmp_path / "demo").items() if name.startswith("/path/") and values.shape == states.shape)
    np.testing.assert_array_equal(found, np.asarray(states))


def test_list_has_a_line_a_study(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(studies())
    assert "second-order scheme for the heat flow" in next(line for line in lines if line.startswith("heat"))


def test_list_as_json_has_the_parameters(capsys):
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["study"] for entry in found] == list(studies())
    (own,) = [entry["parameters"] for entry in found if entry["study"] == "demo"]
    assert own == {"n": 256, "beta": 9.0, "t1": 1000.0, "seed": 0, "frames": 720}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--help"], ["demo", "version", "run", "list", "simulate", "claims", "130"]),
        (["demo", "--help"], ["--beta", "--no-movie", "--fast", "--resume", "sphere"]),
        (["run", "--help"], ["heat", "fashion"]),
        (["run", "heat", "--help"], ["--plane-steps", "--out", "heat flow"]),
        (["run", "heat", "--fast", "--help"], ["--plane-steps"]),
        (["simulate", "--help"], ["--check", "--seed", "attnflow spec"]),
        (["claims", "--help"], ["--run", "--study"]),
        (["bench", "--help"], ["names are"]),
    ],
)
def test_help(argv, words, capsys):
    assert main(argv) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in words)


@pytest.mark.long
def test_a_reader_that_has_seen_enough_is_no_error(start):
    listing = start("list", "--json", real=True)
    listing.process.stdout.close()
    assert listing.process.wait(120) == 0
    assert listing.process.stderr.read() == ""


def test_arguments_come_from_the_shell_by_default(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["attnflow", "version"])
    assert main() == 0
    assert capsys.readouterr().out.startswith(f"attnflow {af.__version__}\n")


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["sim"], {"simulate"}),
        (["run", "norm"], {"normalization"}),
        (["run", "normalization", "--sw"], {"--switch"}),
        (["run", "normalization", "--ov"], {"--overwrite"}),
        (["run", "normalization", "--no"], {"--no-movie"}),
        (["demo", "--fr"], {"--frames"}),
        (["simulate", "--ch"], {"--check"}),
        (["simulate", "mine"], {"mine.toml"}),
        (["claims", "--st"], {"--study"}),
        (["completion", "z"], {"zsh"}),
    ],
)
def test_bash_completes(typed, expected, tmp_path, capsys):
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    (tmp_path / "mine.toml").write_text("")
    words = " ".join(["attnflow", *typed])
    script += f'\nCOMP_WORDS=({words}) COMP_CWORD={len(typed)}\n_attnflow\nprintf "%s\\n" "${{COMPREPLY[@]}}"\n'
    done = subprocess.run(["bash", "-u"], input=script, capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr == ""
    assert set(done.stdout.split()) == expected


def test_completion_for_other_shells(capsys):
    for shell, word in {"zsh": "bashcompinit", "fish": "__fish_use_subcommand"}.items():
        assert main(["completion", shell]) == 0
        assert word in capsys.readouterr().out


def test_a_lock_that_its_owner_takes_away_meanwhile_is_not_held(fake, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    monkeypatch.setattr("fcntl.flock", lambda lock, how: (out / ".lock").unlink())
    assert main(["run", "fake", "--out", str(out)]) == 2
    assert "another run writes to" in capsys.readouterr().err
    assert not (out / "run.json").exists()
