"""Which command is wanted."""

import importlib
import io
import os
import sys
from collections.abc import Sequence

from attnflow.studies.tools.check import BadInput

HELP = """usage: attnflow COMMAND

Self-attention as a flow of probability measures.

  attnflow list                              the studies, one per line
  attnflow run STUDY [options] [--out DIR]   a study: claims, data, figures, a report
  attnflow demo [options] [--out DIR]        tokens that cluster on the sphere, a movie
  attnflow simulate SPEC.toml [--out DIR]    a law of your own; --check only validates
  attnflow spec                              a file for simulate, every key explained
  attnflow model FOLDER --text TEXT          a prompt through a trained transformer
  attnflow claims [--run] [--fast]           the ledger of claims; measure them again
  attnflow bench [NAME ...]                  how fast it is, next to its peers
  attnflow completion bash|zsh|fish          completion for your shell
  attnflow version                           version, engine in use, what is missing

Each command says more with --help. run, demo, simulate, model and claims take --json.
Exit codes: 0, every claim holds; 1, one fails; 2, bad input, nothing is written;
130, interrupted."""

# The module of each command; its function there has the same name with an underscore after it.
COMMANDS = {
    "list": "study",
    "run": "study",
    "demo": "study",
    "simulate": "simulation",
    "spec": "simulation",
    "model": "model",
    "claims": "claims",
    "bench": "tools",
    "completion": "tools",
    "version": "version",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    first, *rest = (sys.argv[1:] if argv is None else list(argv)) or [""]
    first = first.removeprefix("--") if first == "--version" else first
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal or a file that cannot encode Greek letters gets question marks.
        sys.stdout.reconfigure(errors="replace")
    try:
        if first in ("-h", "--help", "help"):
            print(HELP)
            return 0
        if first not in COMMANDS:
            names = ", ".join(COMMANDS)
            raise BadInput(f"the commands are {names}, got {repr(first) if first else 'none'}; attnflow --help says more")
        code = getattr(importlib.import_module(f"attnflow.cli.{COMMANDS[first]}"), f"{first}_")(rest)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader, such as head, has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (BadInput, OSError) as error:
        print(f"attnflow: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"attnflow: interrupted{stop.args[0] if stop.args else ''}", file=sys.stderr)
        return 130
