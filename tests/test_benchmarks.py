"""Benchmarks run without the peers that are missing, and say what to install."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINE = 'torch is missing, rows against it are left out: pip install "attnflow[bench]", or pip install torch\n'
ATTNFLOW = ["-c", "import sys; from attnflow.cli import main; sys.exit(main())"]


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        pytest.param(["-m", "benchmarks", "engines", "sweep", "streamed_velocity"], "peak memory added", marks=pytest.mark.long),
        ([*ATTNFLOW, "bench", "engines", "sweep"], "target"),
    ],
)
def test_a_missing_peer_is_one_line_and_the_rest_runs(command, kept, tmp_path):
    """torch is made unimportable: `engines` and `sweep` are against it alone, `streamed_velocity` has a row without it."""
    (tmp_path / "torch.py").write_text("raise ImportError('not there')\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src"), str(ROOT)])
    ran = subprocess.run([sys.executable, *command], cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("is missing") == 1
    assert LINE in ran.stdout
    assert kept in ran.stdout


def test_the_package_of_a_peer_is_named_once(monkeypatch, capsys):
    """Where module and package have different names, it is the package that can be installed."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setitem(sys.modules, "ott", None)
    from benchmarks import peers, transport

    peers.has.cache_clear()
    assert transport.many(65_536) == transport.wide() == []
    assert peers.has("math")
    assert capsys.readouterr().out == LINE.replace("torch", "ott-jax")
    peers.has.cache_clear()
