"""`python -m attnflow.sums.native`: build the kernel, and say in one line what came of it."""

from attnflow.sums.native import available
from attnflow.sums.native.build import build, compiler


def main() -> None:
    """Build the kernel for this machine. That there is no compiler is no error: everything works without."""
    file = build()
    if file is None:
        print("no C++ compiler found (CXX, c++, g++, clang++): streamed sums run on XLA tiles")
    else:
        print(f"built {file} with {compiler()}" + ("" if available() else "; it is not in use here (ATTNFLOW_NATIVE=0, or no CPU backend)"))


main()
