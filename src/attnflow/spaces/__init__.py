"""Where tokens live. A space projects velocities to its tangent, brings points back to itself, and measures distance."""

from attnflow.spaces.base import Space as Space
from attnflow.spaces.euclidean import Euclidean as Euclidean
from attnflow.spaces.sphere import Sphere as Sphere
