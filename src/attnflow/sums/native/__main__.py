"""`python -m attnflow.sums.native`: build the kernel, and say in one line what came of it."""

from attnflow.sums.native import available
from attnflow.sums.native.build import build, compiler


def main() -> str:
    """Build the kernel for this machine. That it cannot be built is no error: everything works without."""
    try:
        file = build()
    except (RuntimeError, OSError) as error:
        return f"streamed sums run on XLA tiles: {error}"
    if file is None:
        return "streamed sums run on XLA tiles: no C++ compiler found (CXX, c++, g++, clang++)"
    return f"built {file} with {compiler()}" + ("" if available() else "; it is not in use here (ATTNFLOW_NATIVE=0, or no CPU backend)")


print(main())
