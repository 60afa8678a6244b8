"""The way in: `make` on a machine that lacks something says so in one line and leaves nothing behind; the package carries what it needs."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKE = shutil.which("make")
needs_make = pytest.mark.skipif(MAKE is None, reason="there is no make")


@pytest.fixture
def checkout(tmp_path):
    """The files that `make` looks at, and a folder of programs that is the whole path."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "bin").mkdir()
    for name in ("rm", "touch", "mkdir"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    return tmp_path


def program(file: pathlib.Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def python(file: pathlib.Path, first: str) -> None:
    """A Python that runs this before what it is given with -c."""
    program(file, f"""exec "{sys.executable}" -c 'import sys; {first}; exec(sys.argv[2])' "$@" """)


def make(folder: pathlib.Path, *words: str) -> tuple[int, str, str]:
    environment = {"PATH": str(folder / "bin"), "HOME": str(folder)}
    done = subprocess.run([MAKE, *words], cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@needs_make
@pytest.mark.parametrize(
    ("first", "message"),
    [
        (None, "found no python3"),
        ('sys.version_info = (3, 10, 13); sys.version = "3.10.13 (main)"', "python3 is 3.10.13"),
        ("sys.exit(1)", "python3 is broken"),
        ('sys.modules["ensurepip"] = None', r"python3 comes without venv \(on Debian: apt install python3-venv\)"),
    ],
)
@pytest.mark.parametrize("target", ["demo", "test", "check"])
def test_a_python_that_will_not_do_is_one_line(target, first, message, checkout):
    if first:
        python(checkout / "bin" / "python3", first)
    code, out, err = make(checkout, target)
    assert code == 2
    assert out == ""
    assert re.fullmatch(rf"Makefile:\d+: \*\*\* attnflow needs Python 3\.11 or later: {message}; .*make PYTHON=/path.*\n", err)
    assert not (checkout / ".venv").exists()


@needs_make
def test_an_environment_that_could_not_be_finished_is_taken_away(checkout):
    program(checkout / "bin" / "python3", 'case "$*" in *"-m venv"*) mkdir -p .venv/bin; : > .venv/bin/python; exit 1 ;; esac')
    for _ in range(2):
        code, _, err = make(checkout, "demo")
        assert code == 2
        assert "Error 1" in err
        assert not (checkout / ".venv").exists()


@needs_make
def test_one_that_was_cut_off_is_begun_again(checkout):
    """A kill leaves a Python without pip, which no recipe could take away."""
    log = checkout / "log"
    made = f'echo "$*" >> {log}; exit 0'
    program(checkout / ".venv" / "bin" / "python", 'case "$*" in *"import pip"*) exit 1 ;; esac; ' + made)
    program(checkout / ".venv" / "bin" / "attnflow", made)
    program(checkout / "bin" / "python3", made)
    assert make(checkout, "demo")[0] == 0
    begun, installed, kernel, demo = log.read_text().splitlines()
    assert begun == "-m venv --clear .venv"
    assert installed.startswith("-m pip install")
    assert kernel == "-m attnflow.sums.native"
    assert demo == "demo --out demo --overwrite"


@needs_make
@pytest.mark.parametrize("had", [False, True])
def test_peers_that_cannot_be_had_are_done_without(had, checkout):
    log = checkout / "log"
    refuse = "" if had else 'case "$*" in *"[dev]"*) echo "no torch" >&2; exit 1 ;; esac; '
    program(checkout / ".venv" / "bin" / "python", f'{refuse}echo "$*" >> {log}')
    code, out, err = make(checkout, "--silent", "bench")
    assert code == 0
    assert err == ("" if had else "no torch\n")
    assert bool(re.fullmatch(r"attnflow: the peers of extra bench could not be installed .*\n", out)) != had
    assert log.read_text().splitlines()[-1] == "-m benchmarks"
    assert (checkout / ".venv" / "dev").exists() == had


@needs_make
def test_the_targets(checkout):
    for target in ("demo", "test", "check", "lint", "format", "bench", "studies", "docs", "bite", "clean"):
        code, _, err = make(checkout, "-n", target, f"PYTHON={sys.executable}")
        assert (code, err) == (0, ""), target
    # The demo needs neither torch nor any other peer.
    assert "[dev]" not in make(checkout, "-n", "demo", f"PYTHON={sys.executable}")[1]
    everything = make(checkout, "-n", "check", f"PYTHON={sys.executable}")[1]
    for part in (
        "ruff check",
        "pyright",
        "lint-imports",
        '"not slow and not study"',
        '"study and not slow"',
        "sphinx-build",
    ):
        assert part in everything
    # Little optimization is for the quick tests alone.
    quick = make(checkout, "-n", "test", f"PYTHON={sys.executable}")[1]
    assert "JAX_DISABLE_MOST_OPTIMIZATIONS=1" in quick
    assert '"not slow and not long and (quick or not study)"' in quick
    assert "JAX_DISABLE_MOST_OPTIMIZATIONS" not in everything


def test_the_readme_of_the_index_has_no_relative_link():
    text = (ROOT / "README.md").read_text()
    links = r"\]\(([^)]+)\)"
    relative = [link for link in re.findall(links, text) if not link.startswith("http")]
    assert "docs/images/tokens.png" in relative
    assert all((ROOT / link).exists() for link in relative)
    for rule in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    found = re.findall(links, text)
    assert len(found) >= len(relative)
    assert all(re.match(r"https://(raw\.githubusercontent|github)\.com/attnflow/attnflow/", link) for link in found if "attnflow" in link)
    assert all(link.startswith("https://") for link in found)
    assert "(https://raw.githubusercontent.com/attnflow/attnflow/main/docs/images/tokens.png)" in text


def test_the_package_is_typed():
    assert (ROOT / "src" / "attnflow" / "py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["project"]["classifiers"]


@pytest.mark.slow
def test_a_wheel_runs_elsewhere(tmp_path):
    """Built, installed in an environment of its own, and run from another folder without a compiler."""

    def run(*words, env=None):
        return subprocess.run(list(map(str, words)), check=True, cwd=tmp_path, capture_output=True, text=True, env=env)

    run(sys.executable, "-m", "venv", "venv")
    pip = [tmp_path / "venv" / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-deps", "--wheel-dir", "dist", ROOT)
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    run(*pip, "install", "--constraint", ROOT / "constraints.txt", wheel)
    bare = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    said = run(tmp_path / "venv" / "bin" / "attnflow", "version", env=bare).stdout
    assert "off, there is no C++ compiler" in said
    assert 'pip install "attnflow[bench]"' in said
    done = run(tmp_path / "venv" / "bin" / "attnflow", "run", "equiangular", "--fast", env=bare).stdout
    assert "checks hold" in done
    assert os.listdir(tmp_path / "results") == ["equiangular"]
