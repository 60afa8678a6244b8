"""The faults of `make bite` can still be put in: their lines are in the source, once, and their tests are in the files that they name."""

import pathlib
import re
import tomllib

import pytest

TESTS = pathlib.Path(__file__).parent
FAULTS = tomllib.loads((TESTS / "faults.toml").read_text(encoding="utf-8"))["fault"]


def test_twenty_at_least():
    assert len({fault["what"] for fault in FAULTS}) == len(FAULTS) >= 20


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["what"])
def test_a_fault_can_be_put_in(fault):
    source = (TESTS.parent / "src" / "attnflow" / fault["file"]).read_text(encoding="utf-8")
    assert source.count(fault["old"]) == 1
    assert fault["new"] != fault["old"]
    for test in fault["tests"]:
        file, _, name = test.partition("::")
        assert not name or re.search(rf"^def {name}\(", (TESTS / file).read_text(encoding="utf-8"), flags=re.MULTILINE), test
