"""What flows: probability measures in several pictures, each with its own evolving state."""

from attnflow.measures import samplers as samplers
from attnflow.measures.affine import Affine as Affine
from attnflow.measures.axes import Circle as Circle
from attnflow.measures.axes import Icosphere as Icosphere
from attnflow.measures.axes import Interval as Interval
from attnflow.measures.axes import Order as Order
from attnflow.measures.axes import Zonal as Zonal
from attnflow.measures.base import FlowingMeasure as FlowingMeasure
from attnflow.measures.base import Measure as Measure
from attnflow.measures.base import Noise as Noise
from attnflow.measures.gaussian import Gaussian as Gaussian
from attnflow.measures.grid import Grid as Grid
from attnflow.measures.mixture import GaussianMixture as GaussianMixture
from attnflow.measures.particles import Particles as Particles
from attnflow.measures.quadrature import quadrature as quadrature
