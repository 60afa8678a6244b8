"""The kernel is compiled when it is first needed, never without need, and whatever goes wrong XLA's tiles serve."""

import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import pytest

import attnflow as af
from attnflow.sums import native
from attnflow.sums.engines.choose import choose
from attnflow.sums.native import build

REAL = native.status().file if native.available() else None
needs_kernel = pytest.mark.skipif(REAL is None, reason=f"the compiled kernel is off: {native.status().why}")
KEYS = itertools.count()
SAID = r"attnflow: compiling its kernel, once \.\.\. "


def compiler(folder: pathlib.Path, library: str) -> str:
    """A program that takes the arguments of a compiler, counts its calls, and makes what this shell command writes to "$out"."""
    script = folder / f"cxx-{len(list(folder.glob('cxx-*')))}"
    script.write_text(
        f'#!/bin/sh\necho x >> "{folder}/calls"\n'
        'linked=\nwhile [ $# -gt 0 ]; do case "$1" in -o) shift; out="$1" ;; -shared) linked=yes ;; esac; shift; done\n'
        f'if [ "$linked" ]; then {library}; else : > "$out"; fi\n'
    )
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine on which the kernel was never compiled, and whose compiler is quick: the folder of its kernels. The key is of this test
    alone, as XLA takes a name only once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", compiler(tmp_path, f'cp "{REAL}" "$out"'))
    monkeypatch.delenv("ATTNFLOW_NATIVE", raising=False)
    monkeypatch.setattr(native, "_found", None)
    key = f"test{next(KEYS):012d}"
    monkeypatch.setattr(build, "key", lambda: key)
    return tmp_path / "cache" / "attnflow" / "native"


def calls(tmp_path) -> int:
    return len((tmp_path / "calls").read_text().split()) if (tmp_path / "calls").exists() else 0


@needs_kernel
def test_it_is_compiled_at_first_use_with_one_line(bare, tmp_path, capfd):
    before = native.status()
    assert before.pending
    assert "the first run that needs it does so" in before.why
    assert not bare.parent.exists()
    assert native.available()
    assert re.fullmatch(SAID + r"\d+ seconds\n", capfd.readouterr().err)
    assert [native.status().file] == list(bare.iterdir()) == build.built()
    assert native.available()
    assert af.Streamed(native=True) == choose(10, 10, af.Streamed())
    # One call per source, and one that links.
    assert calls(tmp_path) == 3
    assert capfd.readouterr().err == ""


@needs_kernel
@pytest.mark.parametrize("kind", ["half of it", "not a library", "nothing"])
def test_a_bad_file_is_made_anew(kind, bare):
    content = {"half of it": REAL.read_bytes()[: REAL.stat().st_size // 2], "not a library": b"not a library", "nothing": b""}[kind]
    bare.mkdir(parents=True)
    whole = bare / f"native-{build.key()}-{REAL.stem.rpartition('-')[2]}.so"
    bad = whole
    if kind == "not a library":
        # Its bytes are those that its name promises, but it cannot be loaded.
        (bare / "file").write_bytes(content)
        bad = bare / f"native-{build.key()}-{build._digest(bare / 'file')}.so"
    bad.write_bytes(content)
    assert not native.status().on
    assert native.available()
    assert native.status().file == whole
    assert whole.read_bytes() == REAL.read_bytes()


@needs_kernel
def test_two_may_compile_at_once(bare):
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: build.build(), range(4)))
    assert set(made) == set(bare.iterdir())
    assert made[0].read_bytes() == REAL.read_bytes()


@needs_kernel
def test_other_machines_and_versions_keep_their_files(bare):
    bare.mkdir(parents=True)
    other = bare / "native-0123456789abcdef-0123456789abcdef.so"
    other.write_bytes(b"for another processor")
    assert native.available()
    assert other.read_bytes() == b"for another processor"


@pytest.mark.parametrize(
    ("library", "message"),
    [
        ('echo "softmax.cpp:1: error: no such thing" >&2; exit 1', "could not compile it, and said: softmax.cpp:1: error: no such thing"),
        ("exit 1", "could not compile it, and said: nothing"),
        (":", "could not compile it, and said: nothing"),
        ('echo text > "$out"', "does not load"),
    ],
)
def test_a_compiler_that_fails_is_tried_once(library, message, bare, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("CXX", compiler(tmp_path, library))
    assert not native.available()
    line = capfd.readouterr().err
    assert re.fullmatch(SAID + r"not done, XLA's tiles serve: .*\n", line)
    assert message in line
    assert line.rstrip().endswith(build.COMMAND)
    tried = calls(tmp_path)
    # The next process.
    monkeypatch.setattr(native, "_found", None)
    assert not native.available()
    assert calls(tmp_path) == tried
    assert capfd.readouterr().err == ""
    assert native.status().why in line
    with pytest.raises(ValueError, match=re.escape(f"native=True needs the compiled kernel: {native.status().why}")):
        af.Streamed(native=True)
    if REAL is not None:
        # Another compiler is another chance.
        monkeypatch.setattr(native, "_found", None)
        monkeypatch.setenv("CXX", compiler(tmp_path, f'cp "{REAL}" "$out"'))
        assert native.available()
        assert not list(bare.glob("*.txt"))


def test_without_a_compiler_nothing_is_said(bare, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "")
    assert not native.available()
    assert capfd.readouterr().err == ""
    assert "there is no C++ compiler (CXX, c++, g++, clang++); install one" in native.status().why
    assert not native.status().pending
    assert not bare.parent.exists()


def test_no_compiler_is_no_error_when_asked_to_compile(tmp_path):
    env = os.environ | {"PATH": str(tmp_path), "CXX": "", "XDG_CACHE_HOME": str(tmp_path)}
    out = subprocess.run([sys.executable, "-m", "attnflow.sums.native"], capture_output=True, text=True, env=env, check=True)
    assert out.stdout.startswith("attnflow: its kernel is not compiled, XLA's tiles serve: there is no C++ compiler")
    assert out.stdout.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["a file", "read-only"])
def test_a_folder_that_cannot_be_written_is_one_line(kind, bare, tmp_path, monkeypatch, capfd):
    place = tmp_path / "place"
    if kind == "a file":
        place.write_text("")
    else:
        place.mkdir(mode=0o500)
        if os.access(place, os.W_OK):
            pytest.skip("nothing is read-only for root")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    assert "cannot be written" in native.status().why
    assert not native.status().pending
    assert not native.available()
    err = capfd.readouterr().err
    assert re.fullmatch(
        SAID + r"not done, XLA's tiles serve: .*place/attnflow/native cannot be written \(.*\); set XDG_CACHE_HOME.*\n", err
    )
    assert calls(tmp_path) == 0


def test_small_runs_do_not_ask_for_it(rng, monkeypatch):
    def needless(compiling):
        raise AssertionError("the kernel was asked for")

    monkeypatch.setattr(native, "_find", needless)
    mu = af.Particles(rng.normal(size=(64, 3)))
    assert choose(64, 64) == af.Dense()
    assert jax.eval_shape(lambda x: af.simple_attention(9.0, 3).at(mu)(x), mu.points).shape == (64, 3)
    # A sweep of a few tokens off the circle, as far as its first look.
    with pytest.raises(ValueError, match="looked"):
        af.sweep(lambda key, x: (af.simple_attention(1.0, 2), af.Particles(x * jnp.eye(2))), {"x": [1.0]}, 1, t1=0.1, observe={"y": look})


def look(mu):
    raise ValueError("looked")


@pytest.mark.long
@pytest.mark.skipif(build.compiler() is None, reason="there is no C++ compiler")
def test_a_real_compiler_makes_it_from_an_installed_copy(tmp_path):
    """From a package without its own folder's permission, by its command; then it serves."""
    shutil.copytree(pathlib.Path(af.__file__).parent, tmp_path / "lib" / "attnflow", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "lib" / "attnflow" / "sums" / "native").chmod(0o555)
    env = os.environ | {"PYTHONPATH": str(tmp_path / "lib"), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    run = lambda *words: subprocess.run([sys.executable, *words], capture_output=True, text=True, env=env, check=True, cwd=tmp_path)  # noqa: E731
    built = run("-m", "attnflow.sums.native")
    (file,) = (tmp_path / "cache" / "attnflow" / "native").iterdir()
    assert built.stdout == f"built {file} with {build.compiler()}\n"
    assert re.fullmatch(SAID + r"\d+ seconds\n", built.stderr)
    assert f"compiled kernel: on, {file}\n" in run("-m", "attnflow.cli", "version").stdout
