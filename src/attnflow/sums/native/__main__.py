"""`python -m attnflow.sums.native`: compile the kernel now, and say in one line what came of it."""

from attnflow.sums.native import make, status
from attnflow.sums.native.build import compiler


def main() -> str:
    """Compile the kernel for this machine. That this cannot be done is no error: everything works without."""
    made = make()
    if made.file is None:
        return f"streamed sums run on XLA tiles: {made.why}"
    now = status()
    return f"built {made.file} with {compiler()}" + ("" if now.on else f"; it is not in use: {now.why}")


print(main())
