"""Time: the one solver, and the path of measures it returns."""

from attnflow.flow.path import Path as Path
from attnflow.flow.path import Status as Status
from attnflow.flow.solve import Field as Field
from attnflow.flow.solve import solve as solve
