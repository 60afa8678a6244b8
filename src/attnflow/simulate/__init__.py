"""A simulation from a file: the law, the measure, the times and what to write, in TOML."""

from attnflow.simulate.example import EXAMPLE as EXAMPLE
from attnflow.simulate.read import read as read
from attnflow.simulate.spec import Spec as Spec
