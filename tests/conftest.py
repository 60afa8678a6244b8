"""Double precision, no silent broadcasting, and every shape annotation checked while the tests run."""

import gc
import pathlib

import jax
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
install_import_hook("attnflow", "beartype.beartype")

import hypothesis  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

# Shapes vary between examples and each compiles, so examples are few; they are fixed, so a failure repeats.
hypothesis.settings.register_profile("repeatable", max_examples=3, deadline=None, derandomize=True)
hypothesis.settings.load_profile("repeatable")


# Tests of studies that run none.
NOTHING_RUN = ("test_bad_specs.py", "test_check.py")


def pytest_collection_modifyitems(items):
    """What `make test` leaves to `make check`: the tests that run studies and are not `quick`, and all cases but the first
    of a test that is marked `cases`."""
    met = set()
    for item in items:
        if "studies" in item.path.parts and item.path.name not in NOTHING_RUN:
            item.add_marker("study")
        if item.get_closest_marker("cases"):
            name = (item.path, item.originalname)
            if name in met:
                item.add_marker("long")
            met.add(name)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240)


@pytest.fixture
def key():
    return jax.random.key(7)


@pytest.fixture(autouse=True)
def few_programs():
    """Forget compiled programs when a worker holds many: each is some mappings of memory, and where the system's limit of those (65,530 on
    Linux) is reached, XLA crashes."""
    yield
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 25_000:
        jax.clear_caches()
        gc.collect()
