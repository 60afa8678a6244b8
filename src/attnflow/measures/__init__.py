"""What flows: probability measures in several pictures, each with its own evolving state."""

from importlib import import_module
from typing import TYPE_CHECKING

from attnflow._check import no_attribute
from attnflow.measures import samplers as samplers
from attnflow.measures.base import Measure as Measure
from attnflow.measures.field import Field as Field
from attnflow.measures.flowing import FlowingMeasure as FlowingMeasure
from attnflow.measures.flowing import Noise as Noise
from attnflow.measures.gaussians.gaussian import Gaussian as Gaussian
from attnflow.measures.gaussians.mixture import GaussianMixture as GaussianMixture
from attnflow.measures.particles import Particles as Particles
from attnflow.measures.quadrature import quadrature as quadrature
from attnflow.measures.tilt import Tilt as Tilt
from attnflow.measures.velocity import Affine as Affine
from attnflow.measures.velocity import Velocity as Velocity
from attnflow.measures.velocity import velocity_of as velocity_of

if TYPE_CHECKING:
    from attnflow.measures.grid import Axis as Axis
    from attnflow.measures.grid import Circle as Circle
    from attnflow.measures.grid import Grid as Grid
    from attnflow.measures.grid import Icosphere as Icosphere
    from attnflow.measures.grid import Interval as Interval
    from attnflow.measures.grid import Order as Order
    from attnflow.measures.grid import Zonal as Zonal
    from attnflow.measures.grid import axes_from as axes_from


def __getattr__(name: str) -> object:
    """Densities on cells are loaded when they are first used: a script about tokens does not wait for them."""
    found = getattr(import_module("attnflow.measures.grid"), name, None)
    if found is None:
        raise no_attribute(__name__, name, globals())
    globals()[name] = found
    return found
