"""`python -m attnflow.sums.native`: compile the kernel now, and print in one line how it ended."""

from attnflow.sums.native import make, status
from attnflow.sums.native.build import compiler


def main() -> None:
    """Compile the kernel for this machine. If that is impossible it is no error: everything works without it."""
    cxx = compiler()
    made = make()
    if made.on:
        now = status()
        print(f"built {made.file} with {cxx}" + ("" if now.on else f"; it is not in use: {now.why}"))
    elif cxx is None:
        # Any other failure was printed to stderr.
        print(f"attnflow: its kernel is not compiled, XLA's tiles serve: {made.why}")


main()
