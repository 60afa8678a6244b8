"""`attnflow version` prints what is installed, which engine is in use, and how to get what is missing."""

import json
import pathlib
import platform
import sys
from importlib import metadata

import jax
import pytest

import attnflow as af
from attnflow.cli import main
from attnflow.cli.version import how_to_install, missing
from attnflow.sums import native


@pytest.fixture
def said(monkeypatch, capsys):
    """What it says of a kernel."""

    def of(kernel: native.Kernel, *argv: str) -> str:
        monkeypatch.setattr(native, "status", lambda: kernel)
        assert main([*(argv or ["version"])]) == 0
        return capsys.readouterr().out

    return of


@pytest.mark.parametrize("word", ["version", "--version"])
def test_the_first_line_is_the_version(word, said):
    lines = said(native.Kernel(pathlib.Path("/there/native.so")), word).splitlines()
    assert lines[0] == f"attnflow {af.__version__}"
    assert lines[1] == f"Python {platform.python_version()}, jax {jax.__version__}, jaxlib {metadata.version('jaxlib')}"
    assert lines[2] == "compiled kernel: on, /there/native.so"
    assert lines[3].startswith("large softmax sums: native, in")


def test_without_a_kernel_it_says_why_and_what_serves(said):
    assert "kernel: off, the reason; the cure\nlarge softmax sums: XLA's tiles" in said(native.Kernel(None, "the reason; the cure"))
    pending = said(native.Kernel(None, "not compiled yet; the command", pending=True))
    assert "kernel: off, not compiled yet; the command\nlarge softmax sums: native, once" in pending


def test_where_compiled_programs_are(said, settings, tmp_path, monkeypatch):
    on = native.Kernel(pathlib.Path("native.so"))
    assert f"compiled programs: in {settings / 'attnflow'} by the command line" in said(on)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "compiled programs: not kept, " in said(on)
    assert f"({tmp_path / 'file'} is not a folder); set XDG_CACHE_HOME to a folder that can" in said(on)
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    assert f"compiled programs: in {tmp_path / 'own'}" in said(on)


def test_as_json(said, settings):
    record = json.loads(said(native.Kernel(None, "the reason"), "version", "--json"))
    assert record["attnflow"] == af.__version__
    assert record["kernel"] == {"on": False, "file": None, "why": "the reason"}
    assert record["engine"] == "xla"
    assert record["programs"] == {"folder": str(settings / "attnflow"), "why": None}
    assert record["missing"].keys() <= {"", "test", "bench", "docs", "lint"}


def test_what_is_missing_is_told_with_its_cure(said, monkeypatch):
    monkeypatch.setattr("attnflow.cli.version._requirements", lambda: ["no-such-peer[all]>=2; extra == 'bench'", "numpy>=2.0"])
    last = said(native.Kernel(None, "the reason")).splitlines()[-1]
    assert last.startswith(
        f"missing for the benchmarks: no-such-peer; run cd {pathlib.Path(__file__).parents[2]}; {sys.executable} -m pip install"
    )
    assert last.endswith('--editable ".[bench]"')


def test_an_installed_package_is_told_by_its_name(monkeypatch, tmp_path):
    monkeypatch.setattr("attnflow.cli.version._CHECKOUT", tmp_path)
    assert how_to_install("bench") == f'{sys.executable} -m pip install "attnflow[bench]"'
    assert how_to_install("") == f'{sys.executable} -m pip install "attnflow"'


def test_missing_by_extra():
    lines = [
        "no-core>=1",
        "no-peer>=2; extra == 'bench'",
        'no-peer>=2; extra == "test"',
        "no-peer; extra == 'dev'",
        "no-new; extra == 'new'",
    ]
    assert missing([*lines, "numpy>=2", "attnflow[test]; extra == 'lint'"]) == {
        "": ["no-core"],
        "test": ["no-peer"],
        "bench": ["no-peer"],
        "new": ["no-new"],
    }


def test_nothing_is_compiled_or_written_for_it(settings, monkeypatch, capfd):
    def compiled():
        raise AssertionError("the kernel was compiled")

    monkeypatch.setattr(native, "_found", None)
    monkeypatch.setattr(native, "make", compiled)
    assert main(["version"]) == 0
    assert capfd.readouterr().err == ""
    assert not list(settings.iterdir())
