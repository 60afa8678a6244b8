"""`attnflow bench`, `attnflow completion SHELL`."""

import dataclasses
import pathlib
import subprocess
import sys

from attnflow.cli.main import COMMANDS
from attnflow.cli.options import RUN
from attnflow.studies.tools.check import BadInput

_BASH = """_attnflow() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words="{commands}"
  case "${{COMP_WORDS[1]}}" in
    run) words="{studies}"; [ "$COMP_CWORD" -gt 2 ] && case "${{COMP_WORDS[2]}}" in
{options}
    esac ;;
    demo) words="{demo}" ;;
    simulate) words="--out --check --seed {run}" ;;
    claims) words="--run --fast --study --out --resume --save --json" ;;
    completion) words="bash zsh fish" ;;
    version) words="--json" ;;
  esac
  [ "$COMP_CWORD" -eq 1 ] && words="{commands}"
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  [ ${{#COMPREPLY[@]}} -eq 0 ] && COMPREPLY=($(compgen -f -- "$current"))
}}
complete -o filenames -F _attnflow attnflow
"""


def bench_(argv: list[str]) -> int:
    """The benchmarks, which come with the sources and need the developers' tools."""
    root = pathlib.Path(__file__).parents[3]
    if not (root / "benchmarks" / "__main__.py").is_file():
        raise BadInput("benchmarks come with the sources, and this is an installed package; clone the repository and run make bench")
    # One file per question; the other files are what these share.
    known = sorted(file.stem for file in (root / "benchmarks").glob("*.py") if "\ndef run(" in file.read_text(encoding="utf-8"))
    if argv in (["-h"], ["--help"]):
        print(f"usage: attnflow bench [NAME ...]\n\nHow fast it is, next to its peers in the same run. The names are {', '.join(known)}.")
        return 0
    if unknown := [name for name in argv if name not in known]:
        raise BadInput(f"the benchmarks are {', '.join(known)}, got {unknown[0]!r}")
    return subprocess.run([sys.executable, "-m", "benchmarks", *argv], cwd=root).returncode


def completion_(argv: list[str]) -> int:
    """A script for the shell: eval "$(attnflow completion bash)"."""
    from attnflow.studies import studies

    if len(argv) != 1 or argv[0] not in ("bash", "zsh", "fish"):
        raise BadInput(f"completion is for bash, zsh or fish, got {' '.join(argv) or 'none'}")
    run = " ".join(f"--no-{name}" if default else f"--{name}" for name, (_, default, _) in RUN.items())
    options = {
        name: " ".join([*(f"--{f.name.replace('_', '-')}" for f in dataclasses.fields(s.Spec)), "--out --fast", run])
        for name, s in studies().items()
    }
    if argv[0] == "fish":
        print(f"complete -c attnflow -f -n '__fish_use_subcommand' -a '{' '.join(COMMANDS)}'")
        print(f"complete -c attnflow -f -n '__fish_seen_subcommand_from run' -a '{' '.join(options)}'")
        for name, words in options.items():
            for word in words.split():
                print(f"complete -c attnflow -n '__fish_seen_subcommand_from {name}' -l {word.removeprefix('--')}")
        return 0
    cases = "\n".join(f'      {name}) words="{words}" ;;' for name, words in options.items())
    script = _BASH.format(commands=" ".join(COMMANDS), studies=" ".join(options), options=cases, demo=options["demo"], run=run)
    print(("autoload -U +X bashcompinit && bashcompinit\n" if argv[0] == "zsh" else "") + script, end="")
    return 0
