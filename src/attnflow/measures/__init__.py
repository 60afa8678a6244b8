"""What flows: probability measures in several pictures, each with its own evolving state."""

from attnflow.measures import samplers as samplers
from attnflow.measures.affine import Affine as Affine
from attnflow.measures.base import FlowingMeasure as FlowingMeasure
from attnflow.measures.base import Measure as Measure
from attnflow.measures.gaussian import Gaussian as Gaussian
from attnflow.measures.mixture import GaussianMixture as GaussianMixture
from attnflow.measures.particles import Particles as Particles
from attnflow.measures.quadrature import quadrature as quadrature
