"""`python -m attnflow.sums.native`: compile the kernel now, and say in one line what came of it."""

from attnflow.sums.native import make, status
from attnflow.sums.native.build import compiler


def main() -> None:
    """Compile the kernel for this machine. That this cannot be done is no error: everything works without."""
    cxx = compiler()
    made = make()
    if made.on:
        now = status()
        print(f"built {made.file} with {cxx}" + ("" if now.on else f"; it is not in use: {now.why}"))
    elif cxx is None:
        # What else went wrong was said on stderr.
        print(f"attnflow: its kernel is not compiled, XLA's tiles serve: {made.why}")


main()
