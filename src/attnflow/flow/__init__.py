"""Time: the one solver, the discrete stack of layers, and the path of measures they return."""

from attnflow.flow.events import Consensus as Consensus
from attnflow.flow.events import Steady as Steady
from attnflow.flow.fields import Perceptron as Perceptron
from attnflow.flow.fields import ResNet as ResNet
from attnflow.flow.frames import normalised as normalised
from attnflow.flow.frames import rescaled as rescaled
from attnflow.flow.layers import layers as layers
from attnflow.flow.norms import LayerNorm as LayerNorm
from attnflow.flow.norms import RMSNorm as RMSNorm
from attnflow.flow.observe import Observed as Observed
from attnflow.flow.observe import OnHost as OnHost
from attnflow.flow.path import Path as Path
from attnflow.flow.path import Status as Status
from attnflow.flow.record import load_path as load_path
from attnflow.flow.schedules import Scheduled as Scheduled
from attnflow.flow.schedules import piecewise as piecewise
from attnflow.flow.schedules import resampled as resampled
from attnflow.flow.solve import solve as solve
