"""Errors a person can act on: one line that names the argument, what was got, and the cure; never a traceback of a library below."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Half a minute: thousands of calls, in a process of their own.
pytestmark = pytest.mark.long

SCRIPT = Path(__file__).parent / "wrong_calls.py"
# What is said to each of these calls, word for word; "nothing" where what is the user's own must pass.
SAID = json.loads(SCRIPT.with_suffix(".json").read_text())
# Each makes arrays in double precision under 32-bit JAX, some deep inside the library.
PLACES = [
    "af.Particles(np.ones((2, 2)))",
    "af.Gaussian(np.zeros(2), np.eye(2))",
    "af.dot_product(np.eye(2), np.eye(2))",
    "af.simple_attention(np.float64(1.0), 2)",
    "af.LayerNorm(np.ones(2))",
    "af.Affine(jnp.eye(2), jnp.zeros(2))(np.ones((3, 2)))",
    "list(map(af.Particles, [np.ones((2, 2))]))",
]


def run(*arguments: str, given: str = "") -> str:
    """The script in a process of its own, without the type checks of the tests: it meets what users meet."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], input=given, capture_output=True, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def report() -> dict:
    return json.loads(run(given=json.dumps({"said": list(SAID), "places": PLACES})))


def test_every_public_callable_has_a_row_with_all_its_parameters(report):
    assert report["missing"] == []
    assert report["uncovered"] == []


def test_every_wrong_call_is_refused_in_one_line_of_ours(report):
    assert report["calls"] >= 1000
    assert report["failures"] == []


def test_what_is_said(report):
    assert report["said"] == SAID


def test_the_warning_of_single_precision_points_to_the_line_of_the_user(report):
    assert report["places"] == dict.fromkeys(PLACES, "of_a_user.py:3")


def test_the_right_calls_of_the_table_are_right():
    """What is mutated is right as it stands, so that a refusal is of the mutation."""
    assert json.loads(run("--right")) == []
