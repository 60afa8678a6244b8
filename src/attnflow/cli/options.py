"""From arguments to typed values, by tyro; what it refuses becomes one line."""

import contextlib
import dataclasses
import io
import re
import sys
import typing
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

from attnflow.studies.tools.check import BadInput

# By name: type, default, help.
Options = dict[str, tuple[Any, Any, str]]
# The options of everything that writes a folder.
RUN: Options = {
    "resume": (bool, False, "continue the run in that folder where it was interrupted"),
    "overwrite": (bool, False, "replace the run in that folder"),
    "movie": (bool, True, "whether to make the movie, where there is one"),
    "json": (bool, False, "print the record as JSON and nothing else"),
}
OUT = "the folder to write to; it is created if need be"


def parse(prog: str, text: str, argv: Sequence[str], options: Options, spec: Any = None) -> Any | None:
    """The values of the options, and of the fields of `spec` if it is given, as attributes; `None` if help was asked for, which is printed.
    An option whose name is in capitals is positional; `...` marks what has no default. The defaults of the fields are those of `spec`."""
    import tyro

    fields: list[Any] = []
    for name, (kind, value, help_text) in options.items():
        marks: list[Any] = [tyro.conf.arg(help=help_text)] + [tyro.conf.Positional] * name.isupper()
        if typing.get_origin(kind) is tuple:
            # An option that is given twice has both values.
            marks.append(tyro.conf.UseAppendAction)
        annotated = kind
        for mark in marks:
            annotated = Annotated[annotated, mark]
        fields.append((name.lower(), annotated, dataclasses.field(default=value)) if value is not ... else (name.lower(), annotated))
    # The spec checks its values after the parser has done with them, so that its message is the user's.
    quiet: dict[str, Any] = {"__post_init__": lambda self: None, "__doc__": text}
    bases = () if spec is None else (type(spec),)
    form = dataclasses.make_dataclass("Options", fields, bases=bases, frozen=True, namespace=quiet, kw_only=True)
    default = {}
    if spec is not None:
        values = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
        default["default"] = form(**values, **{name.lower(): value for name, (_, value, _) in options.items()})
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(form, prog=prog, args=list(argv), **default)
    except SystemExit as stop:
        if not stop.code:
            return None
        raise BadInput(f"{_reason(complaint.getvalue())}; {prog} --help says more") from None


def _reason(complaint: str) -> str:
    """tyro draws a box of several parts; the first part says what was wrong."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", complaint)
    lines = [line.strip("│ ") for line in plain.splitlines()[1:]]
    end = next((i for i, line in enumerate(lines) if line.startswith(("─", "╰"))), len(lines))
    return " ".join(lines[:end]).removeprefix("Error parsing ").rstrip(".") or "bad arguments"


def no_more(command: str, argv: Sequence[str]) -> None:
    if argv:
        raise BadInput(f"{command} takes no options, got {argv[0]!r}")


def double_precision() -> None:
    import jax

    jax.config.update("jax_enable_x64", True)


def configure() -> None:
    """Double precision, and compiled programs kept from run to run where the user's cache can be written."""
    from attnflow._compiled import keep_compiled

    double_precision()
    with warnings.catch_warnings(record=True) as said:
        keep_compiled()
    for warning in said:
        print(f"attnflow: {warning.message}", file=sys.stderr)
