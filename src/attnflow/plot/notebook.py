"""A path or a measure as the last line of a cell: a line of text and a figure."""

import base64
import html as markup
import io
import warnings

from attnflow.plot.frames import Frames, Shown
from attnflow.plot.look import PAGE
from attnflow.plot.summary import page

# A figure that is drawn in a moment: frames, tokens, and pixels across.
_FRAMES, _TOKENS, _PIXELS = 60, 400, 1000
_LETTERS = 200


def html(shown: Shown) -> str:
    """A fragment of HTML for `_repr_html_`: the `repr` on one line, and `af.plot.summary` of at most 60 frames and about 400 tokens, on
    white in a dark notebook too. What cannot be drawn has the line alone: in a notebook nothing is raised."""
    try:
        line = " ".join(repr(shown).split())
    except Exception:
        line = type(shown).__name__
    text = f"<code>{markup.escape(line if len(line) <= _LETTERS else line[: _LETTERS - 3] + '...')}</code>"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            figure = page(Frames(shown, most=_FRAMES, tokens=_TOKENS), getattr(shown, "observed", {}))
            image = io.BytesIO()
            figure.savefig(image, format="png", dpi=_PIXELS / PAGE)
    except Exception:
        return f"<div>{text}</div>"
    source = f"data:image/png;base64,{base64.b64encode(image.getvalue()).decode()}"
    style = "display: block; width: 100%; max-width: 44em; margin-top: 0.5em; padding: 0.5em; background: #fff; border-radius: 4px"
    return f'<div>{text}<img alt="" src="{source}" style="{style}; box-sizing: border-box"></div>'
