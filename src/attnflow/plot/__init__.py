"""One look for every figure."""

from attnflow.plot import notebook as notebook
from attnflow.plot.densities import densities as densities
from attnflow.plot.ellipses import ellipses as ellipses
from attnflow.plot.look import COLORS as COLORS
from attnflow.plot.look import COLUMN as COLUMN
from attnflow.plot.look import PAGE as PAGE
from attnflow.plot.look import look as look
from attnflow.plot.look import new_figure as new_figure
from attnflow.plot.movie import movie as movie
from attnflow.plot.rates import rates as rates
from attnflow.plot.summary import summary as summary
from attnflow.plot.tokens import tokens as tokens
from attnflow.plot.trained import attention as attention
from attnflow.plot.trained import layers as layers
from attnflow.plot.trained import tokenization as tokenization


def __getattr__(name: str) -> object:
    from attnflow._check import no_attribute

    raise no_attribute(__name__, name, globals())
