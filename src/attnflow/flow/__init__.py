"""Time: the one solver, and the path of measures it returns."""

from attnflow.flow.events import Consensus as Consensus
from attnflow.flow.events import Steady as Steady
from attnflow.flow.fields import Perceptron as Perceptron
from attnflow.flow.fields import ResNet as ResNet
from attnflow.flow.observe import Observed as Observed
from attnflow.flow.observe import OnHost as OnHost
from attnflow.flow.path import Path as Path
from attnflow.flow.path import Status as Status
from attnflow.flow.record import load_path as load_path
from attnflow.flow.schedules import Scheduled as Scheduled
from attnflow.flow.schedules import piecewise as piecewise
from attnflow.flow.schedules import resampled as resampled
from attnflow.flow.solve import solve as solve
