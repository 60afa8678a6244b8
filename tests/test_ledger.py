"""The ledger: how checks make a verdict, that its claims are in order, and the command that prints it."""

import dataclasses
import io
import itertools
import json
import sys
import types

import pytest
from markdown_it import MarkdownIt

from attnflow import ledger
from attnflow.cli import main
from attnflow.report.carry_out import judged
from attnflow.report.mathematics import pieces
from attnflow.studies import Check, Claim, studies
from attnflow.studies.tools.check import used_in_words

STUDY = types.SimpleNamespace(
    CLAIMS={
        "a": Claim("A holds.", "arXiv:0000.00001, Theorem 1", "proved"),
        "b": Claim("B holds | or not.", "arXiv:0000.00002", "misprint", "B is twice that", "B is a half of A.", "Quite sure"),
        "c": Claim("C holds.", "arXiv:0000.00003", "sharper than stated", "half of C"),
    }
)


def verdicts(*checks: Check) -> dict:
    return {claim["id"]: claim for claim in judged(STUDY, "made", list(checks))}


def test_the_check_closest_to_failing_is_shown():
    checks = [Check("far", 1.0, 1.1, 1.0, "a"), Check("close", 1.0, 1.1, 0.11, "a"), Check("exact", 2.0, 2.0, 0.0, "a")]
    found = verdicts(*checks, Check("of no claim", 1.0, 9.0, 0.1))["made/a"]
    assert (found["verdict"], found["checks"], found["shown"]["name"]) == ("holds", 3, "close")
    assert (found["statement"], found["status"], found["printed"]) == ("A holds.", "proved", "")


@pytest.mark.parametrize(
    "failing", [Check("b", 2.0, 1.0, 0.5, "a"), Check("b", float("nan"), 1.0, 9.0, "a"), Check("b", 1.1, 1.0, 0.0, "a")]
)
def test_all_checks_must_hold_and_the_failing_one_is_shown(failing):
    found = verdicts(Check("a", 1.0, 1.2, 0.3, "a"), failing, Check("c", 1.0, 1.0, 0.0, "a"))["made/a"]
    assert (found["verdict"], found["shown"]["name"]) == ("fails", "b")


def test_a_claim_without_a_check_was_not_measured():
    found = verdicts(Check("a", 1.0, 1.0, 0.0, "a"))
    assert found["made/a"]["verdict"] == "holds"
    assert (found["made/b"]["verdict"], found["made/b"]["checks"], found["made/b"]["shown"]) == ("not measured", 0, None)
    assert judged(types.SimpleNamespace(), "made", []) == []


def test_a_check_of_a_claim_that_is_not_there_is_an_error():
    with pytest.raises(KeyError, match="made has no claim 'd', its claims are a, b, c"):
        verdicts(Check("a", 1.0, 1.0, 0.0, "d"))


def test_a_claim_says_what_is_printed_just_if_that_is_something_else():
    for status, *words in (("misprint", "", "d", "s"), ("differs", "", "d", "s"), ("sharper than stated", ""), ("proved", "something")):
        with pytest.raises(ValueError, match="just a claim that is not as printed says what is printed"):
            Claim("A", "arXiv:0000.00001", status, *words)
    for status, *words in (
        ("misprint", "p"),
        ("differs", "p", "d"),
        ("misprint", "p", "", "s"),
        ("sharper than stated", "p", "d", "s"),
        ("proved", "", "d", "s"),
    ):
        with pytest.raises(ValueError, match="just a misprint or a difference has a derivation and how sure it is"):
            Claim("A", "arXiv:0000.00001", status, *words)


def test_every_claim_is_in_order():
    found = ledger.claims()
    names = [entry.id for entry in found]
    assert len(set(names)) == len(names)
    assert len(names) >= 45
    assert {name.split("/")[0] for name in names} <= studies().keys()
    for entry in found:
        assert entry.status in ("proved", "conjectured", "numerics", "sharper than stated", "misprint", "differs"), entry.id
        assert bool(entry.printed) == (entry.status in ("sharper than stated", "misprint", "differs")), entry.id
        assert bool(entry.derived) == bool(entry.sure) == (entry.status in ("misprint", "differs")), entry.id
        assert entry.statement.strip(), entry.id
        assert entry.source.strip(), entry.id
        assert "\n" not in entry.statement + entry.source + entry.printed + entry.derived + entry.sure, entry.id
        assert entry.verdict == "not measured"
    # Second order does not refute a proof of first order.
    assert {entry.id: entry.status for entry in found}["heat/bridge"] == "sharper than stated"


def entries() -> list[ledger.Entry]:
    checks = [Check("rate", 1.0, 1.25, 0.5, "a"), Check("other", 1.0, 1.0, 0.5, "a"), Check("lost", float("nan"), 1.0, 0.5, "b")]
    return [ledger.Entry(**claim) for claim in json.loads(json.dumps(ledger.plain(judged(STUDY, "made", checks))))]


def test_the_page_of_a_record_is_stable():
    page = ledger.markdown(entries())
    assert page == ledger.markdown(entries())
    assert page.splitlines()[-3:] == [
        "| `made/a` A holds.<br>*arXiv:0000.00001, Theorem 1*<br>rate, the closest of 2 checks | proved | 1 | 1.25 | 0.5 | 50 % | holds |",
        "| `made/b` B holds \\| or not.<br>*Printed:* B is twice that<br>*arXiv:0000.00002*<br>lost | misprint "
        "| not finite | 1 | 0.5 | > 100 % | fails |",
        "| `made/c` C holds.<br>*Printed:* half of C<br>*arXiv:0000.00003* | sharper than stated | | | | | not measured |",
    ]
    assert "3 claims; 1 hold of 2 measured; sharper than stated: 1, misprint: 1, differs: 0." in page
    assert "Measured by `attnflow run made`." in page
    empty = dataclasses.replace(entries()[0], verdict="not measured", checks=0, shown=None)
    assert ledger.markdown([empty]).splitlines()[-1].endswith("| proved | | | | | not measured |")


def test_every_misprint_and_difference_has_its_paragraph_and_no_other_claim_has():
    page = ledger.errata(entries())
    assert page.splitlines()[-5:] == [
        "## Misprints",
        "",
        "`made/b`, arXiv:0000.00002. Printed: B is twice that. B is a half of A. "
        "We measure (lost) not finite, and predict 1 within 0.5: our statement fails. Quite sure.",
        "",
        "## Differences",
    ]
    found = ledger.recorded()
    file = ledger.RECORD.parents[2] / "docs" / "errata.md"
    assert file.read_text() == ledger.errata(found), "attnflow claims --run --fast --save writes it"
    named = [line.split("`")[1] for line in file.read_text().splitlines() if line.startswith("`")]
    assert sorted(named) == sorted(entry.id for entry in found if entry.status in ("misprint", "differs"))
    assert len(named) >= 8


@pytest.mark.parametrize(
    ("check", "used", "words"),
    [
        (Check("half", 1.0, 1.25, 0.5), 0.5, "50 %"),
        (Check("little", 0.0, 1e-9, 1e-3), 1e-6, "< 0.1 %"),
        (Check("exact", 2.0, 2.0, 0.0), 0.0, "exact"),
        (Check("fails", 3.0, 2.0, 0.5), 2.0, "2e+02 %"),
        (Check("off", 3.0, 2.0, 0.0), float("inf"), "> 100 %"),
        (Check("lost", float("nan"), 2.0, 9.0), float("inf"), "> 100 %"),
    ],
)
def test_how_much_of_a_tolerance_is_used(check, used, words):
    assert check.used == pytest.approx(used)
    assert used_in_words(check.used, check.tolerance) == words
    assert used_in_words(None, 1.0) == "> 100 %"


def test_a_record_is_written_and_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "studies", lambda: {"made": types.SimpleNamespace(**vars(STUDY), FAST=Check("spec", 1.0, 2.0, 3.0))})
    monkeypatch.setattr(ledger, "RECORD", tmp_path / "ledger.json")
    assert [entry.verdict for entry in ledger.recorded()] == ["not measured"] * 3, "no record, nothing measured"
    ledger.save(entries())
    assert ledger.recorded() == entries()
    assert json.loads((tmp_path / "ledger.json").read_text())["specs"]["made"]["expected"] == 2.0
    first = (tmp_path / "ledger.json").read_bytes()
    ledger.save(ledger.recorded())
    assert (tmp_path / "ledger.json").read_bytes() == first
    ledger.save([])
    assert (tmp_path / "ledger.json").read_bytes() == first, "what was not measured again stays"
    # Words are those of the study, numbers those of the record; a claim that is gone is gone.
    content = json.loads(first)
    content["claims"][0]["statement"] = "as it was once"
    content["claims"].append(content["claims"][0] | {"id": "made/gone"})
    (tmp_path / "ledger.json").write_text(json.dumps(content))
    assert ledger.recorded() == entries()


def test_the_ledger_is_printed(capsys):
    code = main(["claims", "--study", "normalization"])
    said = capsys.readouterr().out
    assert code in (0, 1)
    assert "normalization/post  proved" in said
    assert "Under Post-LN tokens collapse exponentially" in said
    assert "4 claims" in said
    main(["claims", "--study", "normalization", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [entry["id"] for entry in found] == [f"normalization/{key}" for key in ("post", "pre", "ngpt", "sqrt")]
    main(["claims", "--study", "context", "--study", "demo", "--json"])
    assert {entry["id"].split("/")[0] for entry in json.loads(capsys.readouterr().out)} == {"context", "demo"}
    main(["claims", "--json"])
    assert len(json.loads(capsys.readouterr().out)) == len(ledger.claims())


def test_formulas_are_letters_in_a_terminal_and_latex_in_json(capsys):
    main(["claims"])
    said = capsys.readouterr().out
    assert not set(said) & set("$\\")
    assert "(B - x)/ε tends to 1/2 ∇ log ρ as ε tends to 0." in said
    main(["claims", "--study", "bridges", "--json"])
    assert r"$(B - x)/\varepsilon$ tends to $\tfrac12 \nabla \log \rho$" in json.loads(capsys.readouterr().out)[1]["statement"]


def test_a_terminal_without_greek_letters_gets_question_marks(monkeypatch):
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    assert main(["claims", "--study", "bridges"]) == 0
    narrow.seek(0)
    assert "(B - x)/? tends to 1/2 ? log ? as ? tends to 0." in narrow.read()


def test_formulas_survive_the_tables_of_the_page():
    """Markdown ends a cell at a bar, also within a formula."""
    found = ledger.recorded()
    tokens = MarkdownIt("commonmark").enable("table").parse(ledger.markdown(found))
    cells = [inner.content for token, inner in itertools.pairwise(tokens) if token.type == "td_open"]
    rows = [cells[i : i + 7] for i in range(0, len(cells), 7)]
    assert len(rows) == len(found)
    for entry, row in zip(found, rows):
        assert (row[1], row[6]) == (entry.status, entry.verdict)
        said = (entry.statement, entry.printed, entry.source, entry.shown["name"] if entry.shown else "")
        assert pieces(row[0])[1::2] == [formula for text in said for formula in pieces(text)[1::2]], entry.id


def test_a_failing_claim_is_exit_1(monkeypatch, capsys):
    monkeypatch.setattr(ledger, "recorded", lambda: [dataclasses.replace(entry, id=f"demo/{entry.id[5:]}") for entry in entries()])
    assert main(["claims"]) == 1
    # A terminal breaks lines.
    said = " ".join(capsys.readouterr().out.split())
    assert "3 claims, 2 measured, 1 fail; sharper than stated: 1, misprint: 1, differs: 0" in said
    assert "measured 1, predicted 1.25 within 0.5, used 50 %: rate, the closest of 2 checks" in said
    assert "measured not finite, predicted 1 within 0.5, used > 100 %: lost" in said
    assert "by attnflow run demo" in said
    assert "printed: B is twice that" in said
    assert main(["claims", "--json"]) == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--fast"], "--fast, --out, --resume and --save go with --run"),
        (["--out", "here"], "go with --run"),
        (["--resume"], "go with --run"),
        (["--save"], "go with --run"),
        (["--run", "--save"], "--save is for small sizes, those of the ledger; give --run --fast --save"),
        (["--run", "--resume"], "--resume needs the folder to go on with; give --out"),
        (["--study", "nothing"], "got 'nothing'"),
        (["--color"], "--color"),
        (["--run", "--fast", "--study", "demo", "--out", "file"], "is a file"),
        (["--run", "--fast", "--study", "demo", "--out", "other"], "holds other files"),
    ],
)
def test_what_makes_no_sense_is_refused(argv, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "other" / "demo").mkdir(parents=True)
    (tmp_path / "other" / "demo" / "thesis.tex").write_text("kept")
    before = sorted(tmp_path.rglob("*"))
    assert main(["claims", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert message in err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.long
def test_the_claims_of_a_study_are_measured_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(["claims", "--run", "--fast", "--study", "context", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {entry["id"] for entry in found} == {entry.id for entry in ledger.claims() if entry.id.startswith("context/")}
    assert {entry["verdict"] for entry in found} == {"holds"}

    words = ["claims", "--run", "--fast", "--study", "context", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert "0 fail" in capsys.readouterr().out
    assert (tmp_path / "out" / "context" / "report.html").is_file()
    assert json.loads((tmp_path / "out" / "context" / "claims.json").read_text())["claims"] == found
    assert main(words) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert main([*words, "--resume"]) == 0


def test_the_record_that_ships_has_every_claim_and_the_page_is_made_from_it(tmp_path):
    found = ledger.recorded()
    ledger.save([], tmp_path / "ledger.json")
    assert ledger.RECORD.read_bytes() == (tmp_path / "ledger.json").read_bytes(), "its words and specs are those of the studies"
    assert [entry.id for entry in found if entry.verdict != "holds"] == [], "attnflow claims --run --fast --save measures them"
    page = ledger.RECORD.parents[2] / "docs" / "ledger.md"
    assert page.read_text() == ledger.markdown(found)
    assert not any(" " in entry.id for entry in found)
