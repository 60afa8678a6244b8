"""Where tokens live. A space projects velocities onto its tangent spaces, moves points back to itself, and measures distances."""

from attnflow.spaces.base import Space as Space
from attnflow.spaces.base import space_from as space_from
from attnflow.spaces.ellipsoid import Ellipsoid as Ellipsoid
from attnflow.spaces.euclidean import Euclidean as Euclidean
from attnflow.spaces.sphere import Sphere as Sphere
from attnflow.spaces.surface import Body as Body
from attnflow.spaces.surface import Surface as Surface
