"""A study for the command line, the command line in a process of its own, and the settings of JAX as they were."""

import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import jax
import pytest

from attnflow import studies

FILE = pathlib.Path(__file__).with_name("fake.py")


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


@pytest.fixture(scope="session")
def fake_module():
    if "attnflow_fake" not in sys.modules:
        spec = importlib.util.spec_from_file_location("attnflow_fake", FILE)
        sys.modules["attnflow_fake"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["attnflow_fake"])
    return sys.modules["attnflow_fake"]


@pytest.fixture
def fake(fake_module, monkeypatch):
    """The only study there is, named fake."""
    monkeypatch.setattr(studies, "studies", fake_module.studies_with_this)
    return fake_module


class Command:
    """A command in a process of its own."""

    def __init__(self, words: list[str], folder: pathlib.Path, environment: dict[str, str]):
        self.process = subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=os.environ | environment
        )

    def wait_for(self, happened: Callable[[], bool]) -> None:
        """Until something is there, or the command has ended."""
        end = time.monotonic() + 120
        while not happened() and self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.005)

    def stop(self, number: signal.Signals) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=120)
        return self.process.returncode, out, err


@pytest.fixture
def start(tmp_path):
    """Start the command line with the fake study alone, or with the real ones; what still runs at the end of the test is killed."""
    begun = []

    def started(*argv: str, real: bool = False, sleep: float = 0.0) -> Command:
        words = ["-m", "attnflow.cli"] if real else [str(FILE)]
        begun.append(Command([*words, *argv], tmp_path, {"FAKE_SLEEP": str(sleep)}))
        return begun[-1]

    yield started
    for command in begun:
        if command.process.poll() is None:
            command.process.kill()
        command.process.communicate()
