r"""Formulas as MathML: `$\Gamma_\mu(x)$` is typeset when the site is built, and a page needs no script and no font from outside.

latex2mathml translates; here are the few things that it leaves: what it does not know becomes an error, names such as $\log$ get their
thin spaces, bars do not stretch, and a long formula in a line of text may be broken after a relation, a comma or a sign.
"""

import itertools
import re
import xml.etree.ElementTree as ET

from latex2mathml.converter import convert

MATHML = "http://www.w3.org/1998/Math/MathML"
CAPITALS = set("ΓΔΘΛΞΠΣΦΨΩ")
ORDINARY = {"∞", "⊤", "∂", "∇", "…"}
BREAKS = set("=<>≤≥≈≠∼≪≫←→∈,;∝↦")
SIGNS = set("+−·×±")
OPENING, CLOSING = set("([{⟨⌈⌊"), set(")]}⟩⌉⌋")
# Leaves of a formula up to which it is never broken.
SHORT = 14


def typeset(latex: str, display: bool = False) -> str:
    """`<math>` elements for a formula: one if displayed or short, else one for each piece between which a line may end."""
    root = _tree(latex, display)
    row = root[0]
    if display or len(list(_leaves(row))) <= SHORT:
        return _written(root)
    return "<wbr>".join(_written(_math(piece)) for piece in _pieces(list(row)))


def _tree(latex: str, display: bool) -> ET.Element:
    """The formula as a tree; ValueError for what cannot be typeset."""
    if not latex.strip() or _depth(latex) != 0:
        raise ValueError(f"a formula has braces that match, got ${latex}$")
    try:
        root = ET.fromstring(convert(latex, display="block" if display else "inline"))
    except Exception as error:
        raise ValueError(f"${latex}$ cannot be typeset: {error or type(error).__name__}") from error
    for element in root.iter():
        element.tag = element.tag.rsplit("}", 1)[-1]
    for element in root.iter():
        _mend_leaf(element)
        if (element.text or "").startswith("\\") or (element.tag == "mfrac" and len(element) != 2):
            raise ValueError(f"${latex}$ has {element.text or 'a fraction without its parts'}, which is not known here")
    for element in root.iter():
        if element.tag in {"mrow", "mtd"}:
            _mark_signs(element)
            _space_names(element)
    return root


def _depth(latex: str) -> int:
    """Open braces that are not closed, or -1 if one is closed before it was opened; `\\{` is a sign and not a brace."""
    depth = 0
    for brace in re.sub(r"\\.", "", latex):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return -1
    return depth


def _mend_leaf(element: ET.Element) -> None:
    text = element.text or ""
    if element.tag == "mi" and text == "~":
        element.tag, element.text = "mo", "∼"
    elif element.tag == "mi" and text == "±":
        element.tag = "mo"
    elif element.tag == "mo" and (text in ORDINARY or text.isalpha()):
        element.tag = "mi"
        if len(text) == 1:
            element.set("mathvariant", "normal")
    elif element.tag == "mo" and text in {"|", "‖"} and element.get("stretchy") != "true":
        # A bar between two things is no operator here: it takes no space, and stays as high as the line.
        element.attrib.update(stretchy="false", lspace="0", rspace="0")
    elif element.tag == "mo" and text in {"/", "."}:
        element.attrib.update(lspace="0", rspace="0")
    elif element.tag == "mi" and text in CAPITALS:
        element.set("mathvariant", "normal")


def _mark_signs(row: ET.Element) -> None:
    """A minus after a relation, a comma or an opening bracket is that of a number."""
    for last, element in itertools.pairwise(row):
        if element.tag == "mo" and element.text in {"+", "−", "±"} and last.tag == "mo" and last.text not in CLOSING | {"|", "‖"}:
            element.set("form", "prefix")


def _space_names(row: ET.Element) -> None:
    r"""Thin spaces around $\log$, $\max$, $\operatorname{div}$: before what they act on unless it is in brackets, and after a factor."""
    spaced: list[ET.Element] = []
    for element in row:
        last = spaced[-1] if spaced else ET.Element("mspace")
        acts = _is_name(last) and element.tag not in {"mo", "mspace"}
        follows = _is_name(element) and (last.tag not in {"mo", "mspace"} or last.text in CLOSING)
        spaced += [ET.Element("mspace", width="0.167em"), element] if acts or follows else [element]
    row[:] = spaced


def _base(element: ET.Element) -> ET.Element:
    """What carries the indices and exponents."""
    return _base(element[0]) if element.tag in {"msub", "msup", "msubsup", "munder", "mover", "munderover"} and len(element) else element


def _is_name(element: ET.Element) -> bool:
    base = _base(element)
    return base.tag == "mi" and len(base.text or "") > 1 and (base.text or "").replace("\u2006", "").isalpha()


def _leaves(element: ET.Element):
    return (leaf for leaf in element.iter() if len(leaf) == 0 and leaf.tag != "mspace")


def _pieces(row: list[ET.Element]) -> list[list[ET.Element]]:
    """The row cut after relations, commas and signs that stand outside of all brackets and bars."""
    pieces, piece, depth, bars = [], [], 0, False
    for element in row:
        text = _base(element).text or ""
        bars ^= depth == 0 and text in {"|", "‖"}
        depth += (text in OPENING) - (text in CLOSING)
        binary = text in SIGNS and bool(piece) and piece[-1].tag != "mo"
        piece.append(element)
        if depth == 0 and not bars and element.tag == "mo" and (text in BREAKS or binary):
            # At the end of a piece a sign would take the spaces of a suffix.
            element.set("form", "infix")
            pieces, piece = [*pieces, piece], []
    return [*pieces, piece] if piece else pieces


def _math(row: list[ET.Element]) -> ET.Element:
    root = ET.Element("math", display="inline")
    ET.SubElement(root, "mrow").extend(row)
    return root


def _written(root: ET.Element) -> str:
    root.set("xmlns", MATHML)
    return ET.tostring(root, encoding="unicode")
