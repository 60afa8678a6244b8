"""Double precision, no silent broadcasting, and every shape annotation checked while the tests run."""

import os
import pathlib

# Most of the time of a test is XLA's: what is compiled once is kept, for both workers, the programs they start, and the next run.
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "attnflow" / "tests"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

import jax  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
install_import_hook("attnflow", "beartype.beartype")

import hypothesis  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

# Shapes vary between examples and each compiles, so examples are few; they are fixed, so a failure repeats.
hypothesis.settings.register_profile("repeatable", max_examples=3, deadline=None, derandomize=True)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240)


@pytest.fixture
def key():
    return jax.random.key(7)
