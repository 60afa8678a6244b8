"""Optimal transport: the Sinkhorn scaling of a measure against itself."""

from attnflow.transport.sinkhorn import Scaling as Scaling
from attnflow.transport.sinkhorn import half_steps as half_steps
from attnflow.transport.sinkhorn import planned as planned
from attnflow.transport.sinkhorn import scale as scale
