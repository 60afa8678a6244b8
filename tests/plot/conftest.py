"""Test files here share `drawn.py`, the paths that they draw."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
