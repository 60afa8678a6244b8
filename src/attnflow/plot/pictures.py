"""Which drawing a measure gets, in movies, summaries and notebooks."""

import functools
from typing import Any

from attnflow._check import did_you_mean
from attnflow.measures import Grid, Measure, Particles
from attnflow.plot.densities import density_picture
from attnflow.plot.ellipses import Ellipses
from attnflow.plot.frames import Frames, Picture
from attnflow.plot.tokens import Tokens


@functools.singledispatch
def kind(mu: Measure) -> type[Picture]:
    """The class that draws measures like `mu`: one registered for their type, else the ellipses of the covariance, which all have."""
    return Ellipses


@kind.register
def _(mu: Particles) -> type[Picture]:
    return Tokens


@kind.register
def _(mu: Grid) -> type[Picture]:
    return density_picture(mu) or Ellipses


def picture(frames: Frames, **options: Any) -> Picture:
    """The drawing of these frames, with what a user says of it."""
    drawn = kind(frames[0])
    for name in options.keys() - set(drawn.options):
        known = f"the options {', '.join(drawn.options)}" if drawn.options else "no options"
        close = did_you_mean(name, drawn.options)
        raise TypeError(f"a drawing of {type(frames[0]).__name__} has {known}, got {name!r}{close and '; '}{close}")
    return drawn(frames, **options)
