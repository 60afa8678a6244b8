"""One page per run: figures, movie, claims, checks, the spec and how to repeat it, in a single file that asks for nothing outside."""

import base64
import html
import pathlib
from collections.abc import Iterator
from typing import Any

from attnflow.report.letters import to_text
from attnflow.report.mathematics import to_html
from attnflow.studies.tools.check import used_in_words

_STYLE = """
:root { --ink: #1b1e23; --faint: #5c6470; --line: #d9dde3; --good: #00694b; --bad: #a03a00; --back: #ffffff; --soft: #f5f6f8 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e7e9ec; --faint: #a4abb6; --line: #3a404a; --good: #5fd3ab; --bad: #f0a35e; --back: #16181c; --soft: #1f2228 } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 60rem; color: var(--ink); background: var(--back);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .25rem } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem }
p.sub { color: var(--faint); margin: 0 0 1rem } p.verdict { font-size: 1.05rem; font-weight: 600 }
figure { margin: 1rem 0 } img, video { width: 100%; height: auto; background: #fff; border: 1px solid var(--line); border-radius: 4px }
video { max-width: 32rem; display: block }
.scroll { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem .4rem 0; border-bottom: 1px solid var(--line) }
th { color: var(--faint); font-weight: 600 } .number + :not(.number) { padding-left: 1.2rem } .scroll th { width: 30%; font-weight: 400 }
td.number { text-align: right; white-space: nowrap } th.number { text-align: right }
.holds { color: var(--good) } .fails { color: var(--bad); font-weight: 600 } small { color: var(--faint) }
h1, td { overflow-wrap: break-word } .scroll td { overflow-wrap: anywhere } td.number { padding-left: .8rem }
math { font-family: "STIX Two Math", "Cambria Math", "Latin Modern Math", "Libertinus Math", "DejaVu Math TeX Gyre", math, serif;
  font-size: 1.05em }
.whole { white-space: nowrap }
pre { background: var(--soft); padding: .8rem; overflow-x: auto; border-radius: 4px; font-size: .85rem }
@media (max-width: 40rem) { h1 { font-size: 1.25rem } td.number,
  .number + :not(.number) { padding-left: 0 }
  table.cards thead { display: none } table.cards tr { display: block; border-bottom: 1px solid var(--line); padding: .5rem 0 }
  table.cards td { display: block; border: 0; padding: .1rem 0; text-align: left }
  table.cards td[data-name]::before { content: attr(data-name) ": "; color: var(--faint) } }
"""


def page(record: dict[str, Any], images: list[pathlib.Path], films: list[pathlib.Path]) -> str:
    """The page as text; images and films are read and put into it."""
    failed = sum(not check["ok"] for check in record["checks"])
    count = len(record["checks"])
    verdict = f"{failed} of {count} checks fail" if failed else f"all {count} checks hold" if count else "nothing to check"
    sections = [
        *(f'<figure><img alt="{_text(to_text(record["title"]))}: {_text(file.stem)}" src="{_inline(file)}"></figure>' for file in images),
        *(f'<figure><video controls loop muted playsinline src="{_inline(file)}"></video></figure>' for file in films),
        _claims(record["claims"]),
        _checks(record["checks"]),
        _rows("Parameters", record["parameters"]),
        _rows("Measured", record["measured"]),
        f"<h2>How to repeat it</h2><pre>{_text(record['command'])}</pre>",
        _rows("Versions", record["versions"] | {"machine": record["machine"], "seconds": record["seconds"]}),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Without this a browser asks the server for an icon.
        '<link rel="icon" href="data:,">\n'
        f"<title>{_text(record['study'])} · attnflow</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{to_html(record['title'])}</h1>\n"
        f'<p class="sub">attnflow {_text(record["versions"]["attnflow"])}, {_text(record["study"])}</p>\n'
        f'<p class="verdict {"fails" if failed else "holds"}">{verdict}</p>\n'
        + "\n".join(part for part in sections if part)
        + "\n</body>\n</html>\n"
    )


def _claims(claims: list[dict[str, Any]]) -> str:
    rows = []
    for claim in claims:
        printed = f"<br><small>printed: {to_html(claim['printed'])}</small>" if claim["printed"] else ""
        said = f"{to_html(claim['statement'])}{printed}<br><small>{to_html(claim['source'])}</small>"
        verdict, shown = claim["verdict"], claim["shown"]
        used = "" if shown is None else _text(used_in_words(shown["used"], shown["tolerance"]))
        rows.append(
            f'<tr><td>{said}</td><td data-name="status">{_text(claim["status"])}</td><td data-name="closest check uses">{used}</td>'
            f'<td data-name="verdict" class="{verdict if verdict in ("holds", "fails") else ""}">{verdict}</td></tr>'
        )
    note = "<p><small>The verdict is about the sentence of the row; where a source prints something else, the status says how.</small></p>"
    return _table("Claims", ("claim", "status in the literature", "closest check uses", "verdict"), rows) + (note if rows else "")


def _checks(checks: list[dict[str, Any]]) -> str:
    rows = []
    for check in checks:
        numbers = "".join(
            f'<td class="number" data-name="{key}">{_number(check[key])}</td>' for key in ("measured", "expected", "tolerance")
        )
        numbers += f'<td class="number" data-name="used">{_text(used_in_words(check["used"], check["tolerance"]))}</td>'
        verdict = "holds" if check["ok"] else "fails"
        rows.append(f'<tr><td>{to_html(check["name"])}</td>{numbers}<td data-name="verdict" class="{verdict}">{verdict}</td></tr>')
    return _table("Checks", ("check", "measured", "expected", "tolerance", "used", "verdict"), rows)


def _table(title: str, heads: tuple[str, ...], rows: list[str]) -> str:
    if not rows:
        return ""
    numeric = ("measured", "expected", "tolerance", "used")
    head = "".join(f"<th{' class=number' if name in numeric else ''}>{name}</th>" for name in heads)
    return f'<h2>{title}</h2><table class="cards"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _rows(title: str, values: dict[str, Any]) -> str:
    if not values:
        return ""
    rows = "".join(f"<tr><th>{_text(key)}</th><td>{_text(_shown(value))}</td></tr>" for key, value in _leaves(values))
    return f'<h2>{title}</h2><div class="scroll"><table>{rows}</table></div>'


def _leaves(values: dict[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """Nested tables as one, with names such as `measure.n`."""
    for key, value in values.items():
        if isinstance(value, list) and any(isinstance(item, dict) for item in value):
            value = {str(i): item for i, item in enumerate(value)}
        if isinstance(value, dict):
            yield from _leaves(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value


def _shown(value: object) -> str:
    """A value in one line; long lists are cut."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(map(_shown, value[:12])) + (f", ... ({len(value)})" if len(value) > 12 else "")
    return str(value)


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.6g}"


def _text(value: object) -> str:
    return html.escape(str(value))


def _inline(file: pathlib.Path) -> str:
    kind = {".png": "image/png", ".gif": "image/gif", ".mp4": "video/mp4"}[file.suffix]
    return f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"
