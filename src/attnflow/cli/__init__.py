"""The command line. Exit codes: 0, done and every claim holds; 1, one fails; 2, bad input, of which one line on stderr says what was wrong,
and nothing is written; 130, interrupted, and what is done is kept."""

from attnflow.cli.main import main as main
