"""What a study is, and that only the studies that are asked for are imported."""

import ast
import inspect
import subprocess
import sys

from attnflow.simulate.simulation import Simulation
from attnflow.studies import Experiment, Study, studies, titles
from attnflow.studies.tools import conforming

RUN = """
import sys
from attnflow.cli import main
code = main({argv})
loaded = {{name.split(".")[2] for name in sys.modules if name.startswith("attnflow.studies.")}}
print(code, sorted(loaded - {{"tools"}}), "jax" in sys.modules, file=sys.stderr)
"""


def imported(*argv: str) -> str:
    """The exit code, the studies that a command imports, and whether it imports JAX."""
    done = subprocess.run([sys.executable, "-c", RUN.format(argv=list(argv))], capture_output=True, text=True, check=True)
    return done.stderr.splitlines()[-1]


def test_only_the_study_that_is_asked_for_is_imported(tmp_path):
    assert imported("run", "context", "--fast", "--out", str(tmp_path / "context")).startswith("0 ['context'] ")
    assert imported("run", "heat", "--nodes", "1").startswith("2 ['heat'] ")


def test_none_is_imported_for_their_names():
    assert imported("list") == "0 [] False"
    assert imported("run", "--help") == "0 [] False"
    assert imported("run", "warm") == "2 [] False"


def test_titles_are_the_first_lines_of_docstrings():
    assert titles() == {name: (inspect.getdoc(study) or "").splitlines()[0] for name, study in studies().items()}


def test_a_study_that_is_not_there_is_a_key_error():
    found = studies()
    assert "tools" not in found
    assert found.get("tools") is None
    assert len(found) == len(list(found))


def test_the_type_checker_sees_every_study():
    tree = ast.parse(inspect.getsource(conforming))
    calls = [node.args[0].id for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert calls == list(studies())


def test_a_simulation_is_an_experiment_and_not_a_study(tmp_path):
    simulation = Simulation(tmp_path, "A title")
    assert isinstance(simulation, Experiment)
    assert not isinstance(simulation, Study)
    assert simulation.__doc__ == "A title"
