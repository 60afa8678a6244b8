r"""Sentences with formulas, for a terminal: `$\tfrac12 \nabla \log \rho$` is printed as 1/2 ∇ log ρ."""

import re
from collections.abc import Iterator

from attnflow.report.mathematics import pieces

_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\s+|.", re.DOTALL)
_SPACES = {",": " ", ";": " ", ":": " ", " ": " ", "!": "", "quad": " ", "qquad": " "}
# Marks, gone in the end: where a space is wanted only between letters, and where none is.
_APART, _CLOSE = "\ue000", "\ue001"
# Sizes of brackets, and what comes out better than as the sign that Unicode has for it.
_SIGNS: dict[str, str] = dict.fromkeys(("left", "right", "bigl", "bigr", "Bigl", "Bigr", "displaystyle"), "")
_SIGNS |= {"mid": "|", "lvert": f"|{_CLOSE}", "rvert": f"{_CLOSE}|", "langle": f"⟨{_CLOSE}", "rangle": f"{_CLOSE}⟩", "top": "T"}
_RAISED = str.maketrans("0123456789+-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻")
_LOWERED = str.maketrans("0123456789+-", "₀₁₂₃₄₅₆₇₈₉₊₋")
_ATOM = re.compile(r"(\d+(\.\d+)?|[^\W\d])([⁰¹²³⁴-⁹⁻₀-₉']|[_^](\w|\{[^{}]*\}))*|\([^()]*\)")


def to_text(text: str) -> str:
    """The text with its formulas in Unicode, as it was typed if its dollars do not pair up."""
    try:
        parts = pieces(text)
    except ValueError:
        return text
    return "".join(_line(iter(_TOKEN.findall(part))).strip() if i % 2 else part for i, part in enumerate(parts))


def _line(tokens: Iterator[str], end: str = "") -> str:
    """What the tokens up to `end` say."""
    out = ""
    for token in tokens:
        if token == end:
            break
        out += _one(token, tokens)
    out = re.sub(rf"\s*{_CLOSE}\s*", "", out)
    out = re.sub(rf"(?<=[\w)⟩|]){_APART}+(?=[^\W_])(?![⁰¹²³⁴-⁹₀-₉])", " ", out).replace(_APART, "")
    return re.sub(r"\s+", " ", out)


def _one(token: str, tokens: Iterator[str]) -> str:
    """A token with its arguments."""
    if token == "{":
        return _line(tokens, "}")
    if token in "^_":
        return _script(token, _argument(tokens))
    if not token.startswith("\\"):
        return token
    name = token[1:]
    if name in _SPACES:
        return _SPACES[name]
    if name in ("frac", "tfrac", "dfrac"):
        above, below = _argument(tokens), _argument(tokens)
        return f"{f'({above})' if re.search('[-+=]', _outside(above)) else above}/{_factor(below)}"
    if name == "sqrt":
        return f"√{_factor(_argument(tokens))}"
    if name == "binom":
        return f"C({_argument(tokens)}, {_argument(tokens)})"
    if name == "operatorname":
        return f"{_APART}{_argument(tokens)}{_APART}"
    if name in ("text", "mathrm", "mathcal", "mathbf"):
        return _argument(tokens)
    if name == "mathbb":
        return {"R": "ℝ"}.get(letter := _argument(tokens), letter)
    return _SIGNS[name] if name in _SIGNS else _sign(token)


def _sign(command: str) -> str:
    """The character of a command, or its name: `\\beta` is β, `\\log` is log."""
    from latex2mathml.symbols_parser import convert_symbol

    code = convert_symbol(command)
    return chr(int(code, 16)) if code else f"{_APART}{command[1:]}{_APART}"


def _argument(tokens: Iterator[str]) -> str:
    """The next group, or the next token; of a number, as in `\\tfrac12`, one digit."""
    token = next((token for token in tokens if not token.isspace()), "")
    return _one(token, tokens).strip() if token else ""


def _script(kind: str, text: str) -> str:
    """A power or an index: digits are raised or lowered, anything longer than a letter is in braces."""
    if text and set(text) <= set("0123456789+-"):
        return text.translate(_RAISED if kind == "^" else _LOWERED)
    return f"{kind}{text}" if len(text) <= 1 else f"{kind}{{{text}}}"


def _factor(text: str) -> str:
    """In brackets unless it is one letter or number, with its powers."""
    return text if _ATOM.fullmatch(text) else f"({text})"


def _outside(text: str) -> str:
    """The text without what is in brackets."""
    while (less := re.sub(r"\([^()]*\)|\{[^{}]*\}|⟨[^⟨⟩]*⟩", "", text)) != text:
        text = less
    return text
