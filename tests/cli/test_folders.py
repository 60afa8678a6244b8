"""The folder of a run: what is taken away with it is its own, what is in it runs nothing, and links lead nowhere."""

import json
import pathlib
import pickle

import pytest

from attnflow.cli import main


def tree(folder: pathlib.Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if not file.is_dir() or file.is_symlink()}


def run(out: pathlib.Path, *options: str) -> int:
    return main(["run", "fake", "--out", str(out), *options])


@pytest.fixture
def out(fake, tmp_path) -> pathlib.Path:
    """The folder of a run that is done."""
    assert run(tmp_path / "out", "--seed", "3") == 0
    return tmp_path / "out"


def test_overwrite_takes_away_what_the_run_wrote_and_all_of_it(out, monkeypatch, fake):
    before = tree(out)
    page = fake.figure
    monkeypatch.setattr(fake, "figure", lambda result: {"a": page(result), "b": page(result)})
    assert run(out, "--overwrite", "--no-movie", "--seed", "4") == 0
    names = {"a.png", "a.pdf", "b.png", "b.pdf"}
    assert tree(out) == before - {"figure.png", "figure.pdf", "movie.mp4"} | names
    assert set(json.loads((out / "run.json").read_text())["files"]) == names | {"claims.json", "report.html"}
    monkeypatch.undo()
    monkeypatch.setattr("attnflow.studies.studies", fake.studies_with_this)
    assert run(out, "--overwrite", "--seed", "3") == 0
    assert tree(out) == before


def test_overwrite_of_nothing_is_a_run(fake, tmp_path):
    """As `make demo` in a fresh clone."""
    assert run(tmp_path / "new" / "out", "--overwrite") == 0
    assert (tmp_path / "new" / "out" / "report.html").is_file()


def test_overwrite_keeps_the_users_own_files(out, tmp_path):
    before = tree(out)
    own = ["notes.txt", "paper/figure.png", "paper/data.zarr/zarr.json", "thesis.pdf", "run.json.bak", ".hidden", "movie.mp4.txt"]
    for name in own:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("mine")
    (out / "empty").mkdir()
    for options in (["--seed", "5"], ["--seed", "6", "--no-movie"]):
        assert run(out, "--overwrite", *options) == 0
        assert tree(out) - {"movie.mp4"} == (before | set(own)) - {"movie.mp4"}
        assert {(out / name).read_text() for name in own} == {"mine"}
        assert json.loads((out / "claims.json").read_text())["seed"] == int(options[1])
    assert (out / "empty").is_dir()


@pytest.mark.cases
@pytest.mark.parametrize("name", ["data.zarr/notes.txt", "data.zarr/values/c/notes.txt", "parts/table.npz", "path/blocks/notes.txt"])
def test_a_file_of_the_user_where_a_run_writes_is_refused_and_nothing_is_taken_away(name, out, capsys):
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    (out / name).write_text("mine")
    before = {file: (out / file).read_bytes() for file in tree(out)}
    for flag in ("--overwrite", "--resume"):
        capsys.readouterr()
        assert run(out, flag, "--seed", "3") == 2
        message = f"'{name}' was not written by a run, and is where one writes; move it away, or give another --out"
        assert message in capsys.readouterr().err.replace(f"{out}/", "")
        assert {file: (out / file).read_bytes() for file in tree(out)} == before


def test_what_a_kill_leaves_is_of_the_run(out):
    before = tree(out)
    (out / "parts").mkdir()
    (out / "path" / "blocks" / f".{'a' * 32}").mkdir(parents=True)
    for name in (f"zarr.{'0' * 32}.partial", f"values/c/0/1.{'f' * 32}.partial", f"spec/seed/c.{'1' * 32}.partial"):
        (out / "data.zarr" / name).write_text("")
    for name in (f"parts/.{'0' * 32}", "parts/draws-0.npz", f"path/blocks/.{'a' * 32}/zarr.json", "path/carry-000001.npz"):
        (out / name).write_text("")
    assert run(out, "--overwrite", "--seed", "3") == 0
    assert tree(out) == before
    assert not (out / "path").exists()


def test_a_file_of_the_user_is_not_written_over(out, capsys):
    assert run(out, "--overwrite", "--no-movie") == 0
    (out / "movie.mp4").write_text("mine")
    capsys.readouterr()
    assert run(out, "--overwrite") == 2
    assert "'movie.mp4' is not of this run" in capsys.readouterr().err.replace(f"{out}/", "")
    assert (out / "movie.mp4").read_text() == "mine"
    (out / "movie.mp4").rename(out / "mine.mp4")
    assert run(out, "--resume") == 0
    assert (out / "mine.mp4").read_text() == "mine"
    assert (out / "movie.mp4").read_bytes() == b"frames"


def test_links_are_taken_away_and_never_what_they_lead_to(out, tmp_path, capsys):
    before, outside = tree(out), tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    for name in ("figure.png", "thesis.tex", "folder/zarr.json", "folder/draws-0.npz"):
        (outside / name).write_text("mine")
    safe = tree(outside)

    def link(name: str, to: str) -> None:
        if (out / name).is_file():
            (out / name).unlink()
        (out / name).symlink_to(outside / to)

    link("figure.png", "figure.png")
    link("report.html", "thesis.tex")
    link("parts", "folder")
    link("mine", "folder")
    assert run(out, "--overwrite", "--seed", "3") == 0
    assert tree(out) == before | {"mine"}
    assert not any((out / name).is_symlink() for name in before)
    (out / "report.html").unlink()
    for name, to, message in (
        ("parts", "folder", "is a link, and a run writes to its own folder only; take it away"),
        ("data.zarr/linked", "folder", "was not written by a run"),
        (".lock", "thesis.tex", "cannot be opened"),
    ):
        link(name, to)
        capsys.readouterr()
        assert run(out, "--resume", "--seed", "3") == 2
        assert message in capsys.readouterr().err
        (out / name).unlink()
    link("figure.png", "thesis.tex")
    assert run(out, "--resume", "--seed", "3") == 0
    assert tree(out) == before | {"mine"}
    assert tree(outside) == safe
    assert {(outside / name).read_text() for name in safe} == {"mine"}


@pytest.mark.long
def test_a_list_that_leads_out_of_the_folder_is_not_followed(out, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    (out / "paper").mkdir()
    (out / "paper" / "thesis.tex").write_text("mine")
    mark = json.loads((out / "run.json").read_text())
    for files in (["../thesis.tex", str(tmp_path / "thesis.tex"), "paper/thesis.tex", "paper", "..", "", 7, None], "thesis.tex", None):
        (out / "run.json").write_text(json.dumps(mark | {"files": files}))
        assert run(out, "--overwrite") in (0, 2)
        assert (tmp_path / "thesis.tex").read_text() == "mine"
        assert (out / "paper" / "thesis.tex").read_text() == "mine"


@pytest.mark.long
def test_a_run_of_before_is_taken_away_too(out):
    mark = json.loads((out / "run.json").read_text())
    before = tree(out)
    (out / "run.json").write_text(json.dumps({key: mark[key] for key in ("study", "parameters", "versions")}))
    (out / "notes.txt").write_text("mine")
    assert run(out, "--overwrite", "--seed", "3") == 0
    assert tree(out) == before | {"notes.txt"}


def test_a_strangers_folder_with_pickles_runs_nothing(out, tmp_path, capsys):
    class Hostile:
        def __reduce__(self):
            return pathlib.Path.touch, (tmp_path / "ran",)

    code = pickle.dumps(Hostile())
    values = json.loads((out / "claims.json").read_text())["measured"]
    (out / "report.html").unlink()
    (out / "parts").mkdir()
    for name in ("draws-0.part", "draws-1.part", "seconds"):
        (out / "parts" / name).write_bytes(code)
    assert run(out, "--resume", "--seed", "3") == 0
    assert json.loads((out / "claims.json").read_text())["measured"] == values
    (out / "report.html").unlink()
    (out / "parts").mkdir()
    (out / "parts" / "draws-3.npz").write_bytes(code)
    capsys.readouterr()
    assert run(out, "--resume", "--seed", "3") == 2
    assert "draws-3.npz' is not a part of this run, or is damaged" in capsys.readouterr().err
    (out / "parts" / "draws-3.npz").unlink()
    assert run(out, "--resume", "--seed", "3") == 0
    assert json.loads((out / "claims.json").read_text())["measured"] == values
    for content in ("{", "[]", '{"checks": 3}', '{"checks": [{}]}'):
        (out / "claims.json").write_text(content)
        capsys.readouterr()
        assert run(out, "--resume", "--seed", "3") == 2
        assert "claims.json' is damaged" in capsys.readouterr().err
    (out / "run.json").write_text("[]")
    assert run(out, "--resume", "--seed", "3") == 2
    assert "run.json' is damaged" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
