"""The site: Markdown by MyST, the look of Furo, nothing asked for outside."""

import pathlib
import re
import sys

from docutils import nodes
from sphinx.util import logging

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))

import api  # noqa: E402

import attnflow as af  # noqa: E402
from attnflow.report import mathematics  # noqa: E402

project = "attnflow"
author = "The attnflow developers"
copyright = author
version = release = af.__version__

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "dollarmath", "amsmath"]
myst_heading_anchors = 3
html_math_renderer = "mathml"
exclude_patterns = ["_build", "images"]
# Quotes, dots and dashes stay as they are; blocks without a language are text.
smartquotes = False
highlight_language = "none"
pygments_style, pygments_dark_style = "default", "monokai"

html_theme = "furo"
html_title = "attnflow"
html_copy_source = html_show_sourcelink = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

OUTSIDE = re.compile(
    # Tags that fetch, scripts that import, and style sheets that fetch fonts, pictures or other style sheets.
    r"""<(?:script|img|link|iframe|video|audio|source|track|object|embed|image|use)\b[^>]*?\b(?:src|srcset|href|data|poster)\s*=\s*["'](?:https?:)?//[^"']*"""
    r"""|url\(\s*["']?(?:https?:)?//[^)]*|@import\s*["'](?:https?:)?//[^"']*|\bimport\s*\(?\s*["'](?:https?:)?//[^"']*""",
    re.IGNORECASE,
)
NAME = re.compile(r"(af\.)?((?:theory\.|samplers\.|matrices\.|plot\.)?[A-Za-z_]\w*)(\(.*\))?")


def link_names(app, doctree, page):
    """A code span that is a public name leads to its entry: `af.name`, `name(...)`, or `Name` in capitals."""
    objects = app.env.get_domain("py").objects
    for span in list(doctree.findall(nodes.literal)):
        found = NAME.fullmatch(span.astext())
        if not found or isinstance(span.parent, nodes.reference):
            continue
        prefix, name, call = found.groups()
        entry = objects.get(f"af.{name}")
        if entry is None or not (prefix or call or name[0].isupper()) or entry.docname == page:
            continue
        target = app.builder.get_relative_uri(page, entry.docname) + f"#{entry.node_id}"
        span.replace_self(nodes.reference("", "", span.deepcopy(), refuri=target, internal=True))


def typeset(page, node, display):
    """A formula as MathML, in a line or on its own; one that cannot be read is a warning, at which the build fails."""
    formula = node.astext()
    try:
        mathematics.mathml(formula)
    except ValueError as error:
        logging.getLogger(__name__).warning(str(error), location=node)
    else:
        inline = mathematics.to_html(f"${formula}${node.get('after', '')}")
        page.body.append(
            f'<div class="math">{mathematics.displayed(formula)}</div>\n' if display else f'<span class="math">{inline}</span>'
        )
    raise nodes.SkipNode


def keep_signs(app, doctree, page):
    """A comma or a full stop goes with the formula before it, so that no line begins with one."""
    for formula in doctree.findall(nodes.math):
        rest = formula.next_node(nodes.Text, descend=False, siblings=True)
        if rest is not None and formula.parent.index(rest) == formula.parent.index(formula) + 1:
            formula["after"] = re.match(r"[.,;:)]*", rest).group()
            formula.parent.replace(rest, nodes.Text(rest.removeprefix(formula["after"])))


def check_pages(app, error):
    """A page, script or style sheet that asks for something outside is an error."""
    for page in [] if error else (p for p in pathlib.Path(app.outdir).rglob("*") if p.suffix in {".html", ".css", ".js"}):
        if found := OUTSIDE.search(page.read_text(encoding="utf-8")):
            raise RuntimeError(f"{page.name} asks for something outside: {found.group()}")


def setup(app):
    app.add_html_math_renderer(
        "mathml", (lambda page, node: typeset(page, node, False), None), (lambda page, node: typeset(page, node, True), None)
    )
    app.connect("builder-inited", lambda app: api.write(HERE / "api"))
    app.connect("doctree-resolved", link_names)
    app.connect("doctree-resolved", keep_signs)
    app.connect("build-finished", check_pages)
