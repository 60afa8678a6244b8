"""What every study must be and do: the protocol, checks that hold, a check for every claim, figures, numbers and data for the record."""

import dataclasses
import io
import json
import re

import pytest

from attnflow.report.data import data_tree
from attnflow.report.plain import plain
from attnflow.studies import Study, figures, studies
from attnflow.studies.tools.constraints import Checked

# How many panels the figures of a study have at its small size, and how many checks it makes, where its own tests do not say it.
PANELS = {
    "blocks": 5,
    "bridges": 3,
    "centers": 3,
    "clustering": 3,
    "consensus": 3,
    "context": 2,
    "equiangular": 3,
    "gaussians": 2,
    "hemisphere": 2,
    "iterations": 2,
    "lipschitz": 3,
    "metastable": 4,
    "middle": 2,
    "normalization": 2,
    "particles": 8,
    "resnet": 3,
}
CHECKS = {"circle": 10, "demo": 6, "mixture": 5, "scores": 11}
# Studies that `make test` runs too: up to seven seconds of processor time each at the small size, as it compiles.
QUICK = {
    *("blocks", "bridges", "centers", "circle", "clustering", "consensus", "context", "equiangular", "fashion", "gaussians", "geometries"),
    *("heat", "hemisphere", "iterations", "langevin", "lipschitz", "metastable", "mixture", "particles", "resnet", "scores"),
}


@pytest.fixture(scope="module", params=[pytest.param(name, marks=[pytest.mark.quick] * (name in QUICK)) for name in studies()])
def study(request):
    return studies()[request.param]


@pytest.fixture
def name(study) -> str:
    return study.__name__.rpartition(".")[2]


def test_the_protocol(study):
    assert re.search(r"arXiv:\d{4}\.\d{4,5}", study.__doc__.splitlines()[0]), "it begins with its claim and citation"
    assert study.CLAIMS
    assert dataclasses.is_dataclass(study.Spec)
    assert issubclass(study.Spec, Checked)
    assert hash(study.Spec()) == hash(study.Spec()), "defaults that make sense, frozen"
    assert type(study.FAST) is study.Spec
    assert study.Spec() != study.FAST, "smaller than the source"
    assert isinstance(study, Study)


def test_every_check_holds_and_every_claim_has_one(study, name, small):
    checks = study.checks(small)
    assert [check for check in checks if not check.ok] == []
    assert {check.claim for check in checks} - {""} == set(study.CLAIMS)
    assert len(checks) == CHECKS.get(name, len(checks))


def test_the_figures_are_drawn(study, name, small):
    pages = figures(study, small).values()
    assert all(page.axes for page in pages)
    panels = sum(len(page.axes) for page in pages)
    assert panels == PANELS.get(name, panels)
    for page in pages:
        for ending, begins in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
            file = io.BytesIO()
            page.savefig(file, format=ending, dpi=50)
            assert file.getvalue().startswith(begins)


def test_the_numbers_and_the_data_of_the_record(study, small):
    assert json.loads(json.dumps(plain(study.measured(small)), allow_nan=False))
    assert any(node.data_vars for node in data_tree(small).subtree)


@pytest.mark.slow
def test_every_check_holds_at_full_size(study, full):
    assert [check for check in study.checks(full) if not check.ok] == []
