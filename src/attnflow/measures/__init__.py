"""What flows: probability measures in several pictures, each with its own evolving state."""

from attnflow.measures import samplers as samplers
from attnflow.measures.axes import Axis as Axis
from attnflow.measures.axes import axes_from as axes_from
from attnflow.measures.base import FlowingMeasure as FlowingMeasure
from attnflow.measures.base import Measure as Measure
from attnflow.measures.base import Noise as Noise
from attnflow.measures.field import Field as Field
from attnflow.measures.gaussian import Gaussian as Gaussian
from attnflow.measures.grid import Grid as Grid
from attnflow.measures.icosphere import Icosphere as Icosphere
from attnflow.measures.intervals import Circle as Circle
from attnflow.measures.intervals import Interval as Interval
from attnflow.measures.intervals import Order as Order
from attnflow.measures.mixture import GaussianMixture as GaussianMixture
from attnflow.measures.particles import Particles as Particles
from attnflow.measures.quadrature import quadrature as quadrature
from attnflow.measures.tilt import Tilt as Tilt
from attnflow.measures.velocity import Affine as Affine
from attnflow.measures.velocity import Velocity as Velocity
from attnflow.measures.velocity import velocity_of as velocity_of
from attnflow.measures.zonal import Zonal as Zonal
