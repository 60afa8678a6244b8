"""What flows: probability measures in several pictures, each with its own evolving state."""

from attnflow.measures import samplers as samplers
from attnflow.measures.base import Measure as Measure
from attnflow.measures.field import Field as Field
from attnflow.measures.flowing import FlowingMeasure as FlowingMeasure
from attnflow.measures.flowing import Noise as Noise
from attnflow.measures.gaussians.gaussian import Gaussian as Gaussian
from attnflow.measures.gaussians.mixture import GaussianMixture as GaussianMixture
from attnflow.measures.grid.axes import Axis as Axis
from attnflow.measures.grid.axes import axes_from as axes_from
from attnflow.measures.grid.grid import Grid as Grid
from attnflow.measures.grid.icosphere import Icosphere as Icosphere
from attnflow.measures.grid.intervals import Circle as Circle
from attnflow.measures.grid.intervals import Interval as Interval
from attnflow.measures.grid.intervals import Order as Order
from attnflow.measures.grid.zonal import Zonal as Zonal
from attnflow.measures.particles import Particles as Particles
from attnflow.measures.quadrature import quadrature as quadrature
from attnflow.measures.tilt import Tilt as Tilt
from attnflow.measures.velocity import Affine as Affine
from attnflow.measures.velocity import Velocity as Velocity
from attnflow.measures.velocity import velocity_of as velocity_of
