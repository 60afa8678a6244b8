r"""Sentences with formulas, as HTML: what is between dollars is LaTeX, and becomes MathML, which a browser draws without a script.

Claims, names of checks and titles have their formulas as `$...$`; a dollar itself is written `\$`. `to_html` shows what it cannot read as
it was typed: the title of a page may be anything. `pieces` and `mathml` are strict, for what is written in this package.
"""

import html
import itertools
import re
from xml.etree import ElementTree

# A line may break after these, and before those, outside brackets.
_RELATIONS, _SUMS = frozenset("=≤≥<>→←∼≈∈,;"), frozenset("+−")
_PRIMES, _PLAIN_BARS = frozenset("′″‴"), frozenset("|‖")
# Signs that are letters to TeX: upright, and without the spaces of an operator.
_LETTERS = frozenset("∂∇∞⊤…")
_OPEN, _CLOSE = frozenset("([{⟨"), frozenset(")]}⟩")
# \lvert and \rvert become the same sign, but the first one opens: they travel as private characters.
_BARS = {r"\lvert": "\ue000", r"\rvert": "\ue001", r"\lVert": "\ue002", r"\rVert": "\ue003"}
_FENCES = {"\ue000": ("|", "prefix"), "\ue001": ("|", "postfix"), "\ue002": ("‖", "prefix"), "\ue003": ("‖", "postfix")}
_FENCES |= {"⟨": ("⟨", "prefix"), "⟩": ("⟩", "postfix")}
# Anything else, such as a link, does not come from a formula of ours.
_ATTRIBUTES = frozenset(
    ("stretchy", "fence", "form", "minsize", "maxsize", "linethickness", "displaystyle", "scriptlevel", "mathvariant", "width")
)
# A formula with more signs than this may break, and what is left of it with more than that must.
_LONG, _TOO_LONG = 20, 26


def pieces(text: str) -> list[str]:
    """Text and formulas in turn, text first; `ValueError` if the dollars do not pair up."""
    found = re.split(r"(?<!\\)\${1,2}", text)
    if len(found) % 2 == 0:
        raise ValueError(rf"dollars must come in pairs, one before and one after a formula, got {text!r}; a dollar itself is \$")
    return [part if i % 2 else part.replace(r"\$", "$") for i, part in enumerate(found)]


def to_html(text: str) -> str:
    """The text escaped, with its formulas as MathML; as it was typed if it cannot be read."""
    try:
        parts = pieces(text)
        out = [_breakable(part) if i % 2 else html.escape(part) for i, part in enumerate(parts)]
    except ValueError:
        return html.escape(text)
    # A full stop stays with the formula before it, and so does a bracket with the one that follows.
    return re.sub(r"(\(?)(<math>(?:(?!<math>).)*</math>)([.,;:)]*)", _glued, "".join(out))


def displayed(formula: str) -> str:
    """The formula on a line of its own, as MathML; `ValueError` if it cannot be read."""
    return _written(list(mathml(formula, display=True)[0]), display=True)


def mathml(formula: str, display: bool = False) -> ElementTree.Element:
    """The formula as a `math` element, with one `mrow` in it; `ValueError` if it is not LaTeX, or a command is unknown."""
    from latex2mathml.converter import Converter

    latex = re.sub(r"\\[lr][vV]ert(?![A-Za-z])", lambda found: _BARS[found[0]] + " ", formula)
    try:
        depths = list(itertools.accumulate(1 if brace == "{" else -1 for brace in re.findall(r"(?<!\\)[{}]", formula)))
        if min(depths, default=0) < 0 or (depths and depths[-1] != 0):
            raise ValueError("braces must come in pairs")
        element = Converter(display="block" if display else "inline").convert_to_element(latex)
    # The library raises a dozen unrelated classes, and what its parser stumbles over.
    except Exception as error:
        raise ValueError(f"not a formula in LaTeX: {formula!r} ({str(error) or type(error).__name__})") from error
    for part in element.iter():
        part.text = html.unescape(part.text) if part.text else None
        part.attrib = {key: value for key, value in part.attrib.items() if key in _ATTRIBUTES}
        if "\\" in (part.text or ""):
            raise ValueError(f"no command of LaTeX that can be shown: {part.text} in {formula!r}")
        if part.tag == "mfrac" and len(part) != 2:
            raise ValueError(f"a fraction has two parts, got {formula!r}")
        _mend(part)
    for row in list(element.iter("mrow")):
        _lower(row)
        _pair(row)
        for before, part in zip([None, *row], list(row)):
            if part.text in _SUMS | _RELATIONS and part.tag == "mo":
                part.set("form", "prefix" if before is None or _is(before, _RELATIONS) or before.text in _OPEN else "infix")
        _space(row)
    return element


def _mend(part: ElementTree.Element) -> None:
    """What latex2mathml leaves out: brackets open or close; names of functions and letters are not operators; a slash and a prime
    have no space around them; Greek capitals are upright."""
    text = part.text or ""
    if text in _FENCES:
        part.tag, (part.text, form) = "mo", _FENCES[text]
        part.attrib |= {"form": form, "stretchy": "false"}
    elif part.tag == "mo" and (text in _LETTERS or (text.isalpha() and text.isascii())):
        part.tag = "mi"
    elif text in ("/", ".") or text in _PRIMES:
        part.tag = "mo"
        part.attrib |= {"lspace": "0", "rspace": "0"}
    elif text == "~":
        part.tag, part.text = "mo", "∼"
    elif text == "±":
        part.tag = "mo"
    if part.tag == "mi" and (text in _LETTERS or "Α" <= text <= "Ω"):
        part.set("mathvariant", "normal")


def _lower(row: ElementTree.Element) -> None:
    """Primes stand beside their letter: fonts raise them by themselves, and in a power they would be raised twice, and tiny."""
    for i, part in reversed(list(enumerate(row))):
        if part.tag in ("msup", "msubsup") and part[-1].text in _PRIMES:
            row.insert(i + 1, part[-1])
            part.remove(part[-1])
            if part.tag == "msup":
                row[i] = part[0]
            else:
                part.tag = "msub"


def _pair(row: ElementTree.Element) -> None:
    """Plain bars open and close in turn, as in |x - y|, within each pair of brackets; a lone one, as in E[y|x], stands between."""
    levels: list[list[ElementTree.Element]] = [[]]
    closed = []
    for base in map(_base, row):
        if base.text in _OPEN:
            levels.append([])
        elif base.text in _CLOSE and len(levels) > 1:
            closed.append(levels.pop())
        elif base.text in _PLAIN_BARS and "form" not in base.attrib:
            base.tag = "mo"
            base.attrib |= {"stretchy": "false", "lspace": "0", "rspace": "0"}
            levels[-1].append(base)
    for bars in (bars for bars in levels + closed if len(bars) % 2 == 0):
        for bar, form in zip(bars, itertools.cycle(("prefix", "postfix"))):
            bar.set("form", form)


def _space(row: ElementTree.Element) -> None:
    """Thin spaces around the names of functions, as in 2 log n, but none before a bracket."""
    for before, after in itertools.pairwise(list(row)):
        left, right = _base(before), _base(after)
        begins = right.tag not in ("mo", "mspace") or right.get("form") == "prefix"
        ends = left.tag not in ("mo", "mspace") or left.text in _CLOSE or left.get("form") == "postfix"
        if (_named(left) and begins) or (_named(right) and ends):
            row.insert(list(row).index(after), ElementTree.Element("mspace", width="0.167em"))


def _base(part: ElementTree.Element) -> ElementTree.Element:
    """What a power or an index stands at."""
    while part.tag in ("msub", "msup", "msubsup", "munder", "mstyle") and len(part):
        part = part[0]
    return part


def _named(part: ElementTree.Element) -> bool:
    return part.tag == "mi" and len(part.text or "") > 1


def _breakable(formula: str) -> str:
    """The formula, a long one as several elements: a browser breaks lines between elements, and never in one. Breaks are outside brackets;
    what is too long for a telephone even so breaks before its sums."""
    row = mathml(formula)[0]
    if _width(row) <= _LONG:
        return _written(list(row))
    groups: list[list[ElementTree.Element]] = [[]]
    depth = 0
    for part in row:
        base = _base(part)
        if base.tag == "mo":
            bar = base.get("form") if base.text in _PLAIN_BARS else None
            depth += base.text in _OPEN or bar == "prefix"
            depth -= base.text in _CLOSE or bar == "postfix"
        if depth == 0 and _is(part, _SUMS):
            groups.append([])
        groups[-1].append(part)
        if depth == 0 and _is(part, _RELATIONS):
            groups.append([])
    return "".join(_written(piece) for group in groups for piece in _shorter(group) if piece)


def _shorter(group: list[ElementTree.Element]) -> list[list[ElementTree.Element]]:
    """The group itself if it is short, else as pieces that begin with a sum."""
    if sum(map(_width, group)) <= _TOO_LONG:
        return [group]
    cuts = [i for i, part in enumerate(group) if i and _is(part, _SUMS)]
    return [group[i:j] for i, j in zip([0, *cuts], [*cuts, len(group)])]


def _is(part: ElementTree.Element, signs: frozenset[str]) -> bool:
    return part.tag == "mo" and part.text in signs and part.get("form") != "prefix"


def _width(part: ElementTree.Element) -> int:
    return len("".join(part.itertext()))


def _written(parts: list[ElementTree.Element], display: bool = False) -> str:
    element = ElementTree.Element("math", {"display": "block"} if display else {})
    ElementTree.SubElement(element, "mrow").extend(parts)
    return ElementTree.tostring(element, encoding="unicode", short_empty_elements=False)


def _glued(found: re.Match[str]) -> str:
    before, formula, after = found.groups()
    return f'<span class="whole">{before}{formula}{after}</span>' if before or after else formula
