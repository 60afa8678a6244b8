"""Formulas in sentences: MathML for a page, letters for a terminal, and that every formula of the studies is one."""

import pathlib
import re
from xml.etree import ElementTree

import pytest

from attnflow import ledger
from attnflow.report.letters import to_text
from attnflow.report.mathematics import displayed, mathml, pieces, to_html
from attnflow.studies import studies


def texts() -> list[str]:
    """All that is written with formulas: claims with what is printed and their sources, recorded checks, first lines of studies."""
    found = ledger.recorded()
    written = [text for entry in found for text in (entry.statement, entry.printed, entry.source)]
    shown = [entry.shown["name"] for entry in found if entry.shown is not None]
    return [*written, *shown, *((study.__doc__ or "").strip().splitlines()[0] for study in studies().values())]


def shape(part: ElementTree.Element) -> str:
    """An element as it would be written in short: rows in brackets, leaves as their text."""
    inside = "".join(map(shape, part)) or part.text or ""
    return {"mrow": f"[{inside}]", "math": inside, "mspace": " "}.get(part.tag, inside if not len(part) else f"{part.tag}({inside})")


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (r"\frac{1}{2\beta}", "[mfrac([1][2β])]"),
        (r"e^{-2t}", "[msup(e[−2t])]"),
        (r"x_i' = n \nabla_i E", "[msub(xi)′=nmsub(∇i)E]"),
        (r"(\log \rho)''", "[(log ρ)″]"),
        (r"\lvert x - y \rvert^2", "[|x−ymsup(|2)]"),
        (r"\langle v, w \rangle \le \lvert v \rvert^2", "[⟨v,w⟩≤|vmsup(|2)]"),
        (r"\sum_{k<d} \binom{n-1}{k}", "[msub(∑[k<d])(mfrac([n−1][k]))]"),
        (r"\sqrt{T/L}\; I_1", "[msqrt([T/L]) msub(I1)]"),
        (r"2\log n", "[2 log n]"),
        (r"\log(1 - g) \sin u", "[log(1−g) sin u]"),
        (r"\partial_t \rho + \operatorname{div}(\rho\, \Gamma_\rho) = 0", "[msub(∂t)ρ+div(ρ msub(Γρ))=0]"),
        (r"t/\text{depth}", "[t/depth]"),
    ],
)
def test_the_structure_of_mathml(formula, expected):
    assert shape(mathml(formula)) == expected


def test_operators_say_how_they_stand():
    parts = list(mathml(r"-\lvert x \rvert - y")[0])
    assert [(part.text, part.get("form")) for part in parts if part.tag == "mo"] == [
        ("−", "prefix"),
        ("|", "prefix"),
        ("|", "postfix"),
        ("−", "infix"),
    ]
    assert [part.tag for part in mathml(r"\Delta x / \operatorname{div}")[0]] == ["mi", "mi", "mo", "mi"]
    assert mathml(r"\Delta")[0][0].get("mathvariant") == "normal"
    assert mathml("x")[0][0].get("mathvariant") is None


def test_plain_bars_open_and_close_within_their_brackets():
    def forms(formula):
        return [part.get("form") for part in mathml(formula).iter("mo") if part.text == "|"]

    assert forms("|x - y|^2 + |z|") == ["prefix", "postfix", "prefix", "postfix"]
    assert forms("E[y|x] - |m|") == [None, "prefix", "postfix"]
    assert forms(r"H(l|\pi) + H(\pi|l)") == [None, None]
    # No line ends between the bars.
    broken = re.findall("<math>.*?</math>", to_html(r"$W = |x - y + z - x' - y' - z'|^2 + |m - n|^2 + c$"))
    assert [shape(ElementTree.fromstring(one)) for one in broken] == ["[W=]", "[|x−y+z−x′−y′−z′msup(|2)]", "[+|m−nmsup(|2)]", "[+c]"]


def test_a_formula_on_a_line_of_its_own_has_its_limits_above_and_below():
    written = ElementTree.fromstring(displayed(r"\sum_{k<d} x_k = 0"))
    assert written.attrib == {"display": "block"}
    assert shape(written) == "[munder(∑[k<d])msub(xk)=0]"
    with pytest.raises(ValueError, match="two parts"):
        displayed(r"\frac1")


def test_a_short_formula_is_one_element_and_a_long_one_breaks_at_its_signs():
    assert to_html("If $V = I$.") == (
        'If <span class="whole"><math><mrow><mi>V</mi><mo form="infix">=</mo><mi>I</mi></mrow></math>.</span>'
    )
    long = to_html(r"$(B - x)/\varepsilon = \tfrac12 \nabla \log \rho + \varepsilon \nabla (\Delta \log \rho + \lvert x \rvert^2) + \dots$")
    broken = [ElementTree.fromstring(one) for one in re.findall("<math>.*?</math>", long)]
    assert [shape(one) for one in broken] == [
        "[(B−x)/ε=]",
        "[mstyle(mfrac(12))∇ log ρ]",
        "[+ε∇(Δ log ρ+|xmsup(|2))]",
        "[+…]",
    ]
    assert broken[2][0][0].get("form") == "infix", "a sign that begins a line has its space all the same"


def test_text_is_escaped_and_formulas_have_no_attributes_of_their_own():
    assert to_html("a < b & \"c\" 'd'") == "a &lt; b &amp; &quot;c&quot; &#x27;d&#x27;"
    assert "<script" not in to_html(r"$\text{<script>alert(1)</script>}$")
    assert to_html(r"$\href{javascript:alert(1)}{b}$").count("javascript") == 0


@pytest.mark.parametrize("text", ["a$b.toml", "$", "a$$b", "$x$ and $y", r"$\frac{a$", r"$\nosuchcommand$", "$a_$", "$x^2^3$", "$a}{b$"])
def test_what_is_no_formula_is_shown_as_it_is(text):
    assert to_html(text) == text
    with pytest.raises(ValueError, match=r"dollars must come in pairs|not a formula in LaTeX|no command of LaTeX"):
        [mathml(formula) for formula in pieces(text)[1::2]]


def test_a_dollar_is_written_with_a_backslash():
    assert pieces(r"\$5 for $x$") == ["$5 for ", "x", ""]
    assert to_html(r"a\$b\$.toml") == to_text(r"a\$b\$.toml") == "a$b$.toml"


@pytest.mark.parametrize(
    ("latex", "expected"),
    [
        (r"$\tfrac12 \nabla \log \rho$", "1/2 ∇ log ρ"),
        (r"$\frac{e^{2t} - 1}{e^{2t} + n - 1}$", "(e^{2t} - 1)/(e^{2t} + n - 1)"),
        (r"$\frac{k (k + 1)}{2\beta}$", "k (k + 1)/(2β)"),
        (r"$\frac{\varepsilon^4}{72} \int (V'')^2\, d\rho$", "ε⁴/72 ∫ (V'')² dρ"),
        (r"$\lvert x_i - x_j \rvert^2 \le 3$", "|x_i - x_j|² ≤ 3"),
        (r"$S_0^{-1} A^T W_{ij}$", "S₀⁻¹ A^T W_{ij}"),
        (r"$1/\sin^2(\delta/2)$", "1/sin²(δ/2)"),
        (r"$2\log\log\beta$", "2 log log β"),
        (r"$\sqrt{3}\, \sqrt{T L}$", "√3 √(T L)"),
        (r"$E[y \mid x] \to \infty$", "E[y | x] → ∞"),
        (r"$\binom{n-1}{k} \langle x, y \rangle$", "C(n-1, k) ⟨x, y⟩"),
        (r"$\bigl(\operatorname{div} x\bigr) \times \mathbb{R}^8$", "(div x) × ℝ⁸"),
        (r"A line$$\sum_{i,j} a_{ij}$$more", "A line∑_{i,j} a_{ij}more"),
        ("two $x\n= y$", "two x = y"),
        ("no formula", "no formula"),
        ("a$b", "a$b"),
    ],
)
def test_letters(latex, expected):
    assert to_text(latex) == expected


def test_every_formula_of_claims_checks_and_titles_is_one():
    found = texts()
    assert sum("$" in text for text in found) > 150
    for text in found:
        for formula in pieces(text)[1::2]:
            ElementTree.fromstring(ElementTree.tostring(mathml(formula)))
            assert "|" not in formula, f"a bar would end the cell of a table, write \\lvert, \\rvert or \\mid: {text}"
        assert "$" not in to_html(text), text
        said = to_text(text)
        assert not set(said) & set("$\\"), said
        # What a reader would still have to decode.
        left = re.findall(r"\b(?:lvert|rvert|mid|frac|tfrac|text|operatorname|bigl|bigr|varepsilon|langle|quad|mathrm)\b", said)
        assert left == [], said


def test_nothing_is_left_in_ascii():
    for entry in ledger.claims():
        plain = " ".join(part for text in (entry.statement, entry.printed) for part in pieces(text)[::2])
        assert not re.search(r"[\^_=<>|]|\b(?:beta|eps|rho|grad|sqrt|tau|delta|gamma|sigma|Laplace|W2)\b", plain), entry.id


def test_every_check_of_a_study_is_written_with_pairs_of_dollars():
    """Names of checks are made while a study runs; their source shows whether the dollars pair up."""
    names = []
    for file in pathlib.Path(ledger.__file__).with_name("studies").glob("*.py"):
        names += re.findall(r"Check\(\s*r?f?\"([^\"\n]*)\"", file.read_text(encoding="utf-8"))
    assert len(names) > 100
    for name in names:
        assert len(re.findall(r"\$", name)) % 2 == 0, name
