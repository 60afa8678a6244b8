"""attnflow: self-attention as a flow of probability measures."""

import importlib
from typing import TYPE_CHECKING, Any

from attnflow._version import __version__ as __version__
from attnflow.attention import Attention as Attention
from attnflow.attention import Field as Field
from attnflow.attention import Hardmax as Hardmax
from attnflow.attention import Linear as Linear
from attnflow.attention import MultiHead as MultiHead
from attnflow.attention import Sigmoid as Sigmoid
from attnflow.attention import Sinkhorn as Sinkhorn
from attnflow.attention import Softmax as Softmax
from attnflow.attention import Unnormalized as Unnormalized
from attnflow.attention import closure_residual as closure_residual
from attnflow.attention import simple_attention as simple_attention
from attnflow.flow.events import Consensus as Consensus
from attnflow.flow.events import Steady as Steady
from attnflow.flow.observe import Observed as Observed
from attnflow.flow.observe import OnHost as OnHost
from attnflow.flow.path import Path as Path
from attnflow.flow.path import Status as Status
from attnflow.flow.record import load_path as load_path
from attnflow.flow.solve import solve as solve
from attnflow.measures import Affine as Affine
from attnflow.measures import Gaussian as Gaussian
from attnflow.measures import GaussianMixture as GaussianMixture
from attnflow.measures import Particles as Particles
from attnflow.measures import samplers as samplers
from attnflow.observe import energy as energy
from attnflow.spaces import Euclidean as Euclidean
from attnflow.spaces import Sphere as Sphere
from attnflow.sums import ALiBi as ALiBi
from attnflow.sums import Causal as Causal
from attnflow.sums import Dense as Dense
from attnflow.sums import Explicit as Explicit
from attnflow.sums import Logit as Logit
from attnflow.sums import Streamed as Streamed
from attnflow.sums import Window as Window
from attnflow.sums import dot_product as dot_product
from attnflow.sums import squared_distance as squared_distance

# What not every script needs is loaded when it is first asked for, so that `import attnflow` stays light.
if TYPE_CHECKING:
    from attnflow import plot as plot
    from attnflow import theory as theory
    from attnflow.flow.fields import Perceptron as Perceptron
    from attnflow.flow.fields import ResNet as ResNet
    from attnflow.flow.frames import normalised as normalised
    from attnflow.flow.frames import rescaled as rescaled
    from attnflow.flow.layers import layers as layers
    from attnflow.flow.norms import LayerNorm as LayerNorm
    from attnflow.flow.norms import RMSNorm as RMSNorm
    from attnflow.flow.schedules import Scheduled as Scheduled
    from attnflow.flow.schedules import piecewise as piecewise
    from attnflow.flow.schedules import resampled as resampled
    from attnflow.measures import matrices as matrices

_LATER = {
    "LayerNorm": "attnflow.flow.norms",
    "Perceptron": "attnflow.flow.fields",
    "RMSNorm": "attnflow.flow.norms",
    "ResNet": "attnflow.flow.fields",
    "Scheduled": "attnflow.flow.schedules",
    "layers": "attnflow.flow.layers",
    "matrices": "attnflow.measures.matrices",
    "normalised": "attnflow.flow.frames",
    "piecewise": "attnflow.flow.schedules",
    "plot": "attnflow.plot",
    "resampled": "attnflow.flow.schedules",
    "rescaled": "attnflow.flow.frames",
    "theory": "attnflow.theory",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"attnflow has no {name!r}")
    module = importlib.import_module(_LATER[name])
    found = getattr(module, name, module)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER} - {"importlib", "TYPE_CHECKING", "Any"})
