"""Every study is run once at its small size, and all tests that are about it share the result.

A file `test_blocks.py` is about the study `blocks`; a file about several has a fixture `study` with their names as parameters.
"""

import functools
import pathlib
from collections.abc import Hashable
from types import ModuleType

import pytest

from attnflow.studies import studies
from attnflow.studies.tools import idx

HERE = pathlib.Path(__file__).parent
STUDIES = studies()


def about(item: pytest.Item) -> str:
    """The name of the study that a test is about; empty if there is none."""
    if item.path.parent != HERE:
        return ""
    call = getattr(item, "callspec", None)
    name = call.params.get("study", "") if call else ""
    name = name or item.path.stem.removeprefix("test_")
    return name if name in STUDIES else ""


# First, because a worker of xdist reads the groups in its own hook of this name.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]):
    """The tests of a study follow each other, and with `--dist loadgroup` run in one worker."""
    items.sort(key=about)
    for item in items:
        if name := about(item):
            item.add_marker(pytest.mark.xdist_group(name))


# One study at a time, its small and its full size: results of studies before it need no memory.
@functools.lru_cache(maxsize=2)
def ran(study: ModuleType, spec: Hashable) -> object:
    if study is STUDIES["fashion"] and not idx.FASHION.is_dir():
        pytest.skip("FashionMNIST is not installed: apt-get install dataset-fashion-mnist")
    return study.run(spec)


@pytest.fixture(scope="module")
def study(request) -> ModuleType:
    return STUDIES[request.path.stem.removeprefix("test_")]


@pytest.fixture(scope="module")
def small(study) -> object:
    """The result at the small size."""
    return ran(study, study.FAST)


@pytest.fixture(scope="module")
def full(study) -> object:
    """The result at the size of the source, for tests that are marked as slow."""
    return ran(study, study.Spec())


@pytest.fixture(scope="module")
def result(small) -> object:
    """What the tests of a study look at: its result at the small size, unless its file says otherwise."""
    return small
