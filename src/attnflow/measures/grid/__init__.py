"""A density: the masses of the cells of a grid, and how mass passes between them."""

from attnflow.measures.grid.axes import Axis as Axis
from attnflow.measures.grid.axes import axes_from as axes_from
from attnflow.measures.grid.grid import Grid as Grid
from attnflow.measures.grid.icosphere import Icosphere as Icosphere
from attnflow.measures.grid.intervals import Circle as Circle
from attnflow.measures.grid.intervals import Interval as Interval
from attnflow.measures.grid.intervals import Order as Order
from attnflow.measures.grid.zonal import Zonal as Zonal
