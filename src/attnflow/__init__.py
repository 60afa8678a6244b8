"""attnflow: self-attention as a flow of probability measures.

The public names. Each is loaded when it is first asked for, so that a script pays for what it uses.
"""

import importlib
from typing import TYPE_CHECKING, Any

from attnflow._version import __version__ as __version__

if TYPE_CHECKING:
    from attnflow import plot as plot
    from attnflow import theory as theory
    from attnflow._compiled import keep_compiled as keep_compiled
    from attnflow.attention.closure import closure_residual as closure_residual
    from attnflow.attention.heads import MultiHead as MultiHead
    from attnflow.attention.law import Attention as Attention
    from attnflow.attention.law import simple_attention as simple_attention
    from attnflow.attention.multi_head import multi_head as multi_head
    from attnflow.attention.normalisations.hardmax import Hardmax as Hardmax
    from attnflow.attention.normalisations.linear import Linear as Linear
    from attnflow.attention.normalisations.sigmoid import Sigmoid as Sigmoid
    from attnflow.attention.normalisations.sinkhorn import Sinkhorn as Sinkhorn
    from attnflow.attention.normalisations.softmax import Softmax as Softmax
    from attnflow.attention.normalisations.sparsemax import Sparsemax as Sparsemax
    from attnflow.attention.normalisations.unnormalized import Unnormalized as Unnormalized
    from attnflow.attention.zero_temperature import ZeroTemperature as ZeroTemperature
    from attnflow.flow.bifurcation import Bifurcation as Bifurcation
    from attnflow.flow.bifurcation import bifurcation as bifurcation
    from attnflow.flow.branch import Branch as Branch
    from attnflow.flow.branch import branch as branch
    from attnflow.flow.events import Consensus as Consensus
    from attnflow.flow.events import Steady as Steady
    from attnflow.flow.fields import Perceptron as Perceptron
    from attnflow.flow.fields import ResNet as ResNet
    from attnflow.flow.frames import normalised as normalised
    from attnflow.flow.frames import rescaled as rescaled
    from attnflow.flow.gradient import gradient_flow as gradient_flow
    from attnflow.flow.layers import layers as layers
    from attnflow.flow.normed import normed as normed
    from attnflow.flow.norms import LayerNorm as LayerNorm
    from attnflow.flow.norms import RMSNorm as RMSNorm
    from attnflow.flow.observe import Observed as Observed
    from attnflow.flow.observe import OnHost as OnHost
    from attnflow.flow.path import Path as Path
    from attnflow.flow.path import Status as Status
    from attnflow.flow.plan import plan as plan
    from attnflow.flow.record import load_path as load_path
    from attnflow.flow.schedules import Scheduled as Scheduled
    from attnflow.flow.schedules import piecewise as piecewise
    from attnflow.flow.schedules import resampled as resampled
    from attnflow.flow.solve import solve as solve
    from attnflow.flow.staircase import Staircase as Staircase
    from attnflow.flow.staircase import staircase as staircase
    from attnflow.flow.stationary import Stationary as Stationary
    from attnflow.flow.stationary import stationary as stationary
    from attnflow.flow.sweep import over_seeds as over_seeds
    from attnflow.flow.sweep import sweep as sweep
    from attnflow.measures import Affine as Affine
    from attnflow.measures import Circle as Circle
    from attnflow.measures import Field as Field
    from attnflow.measures import Gaussian as Gaussian
    from attnflow.measures import GaussianMixture as GaussianMixture
    from attnflow.measures import Grid as Grid
    from attnflow.measures import Icosphere as Icosphere
    from attnflow.measures import Interval as Interval
    from attnflow.measures import Order as Order
    from attnflow.measures import Particles as Particles
    from attnflow.measures import Velocity as Velocity
    from attnflow.measures import Zonal as Zonal
    from attnflow.measures import matrices as matrices
    from attnflow.measures import quadrature as quadrature
    from attnflow.measures import samplers as samplers
    from attnflow.observe.attention import attention_entropy as attention_entropy
    from attnflow.observe.clusters import Clusters as Clusters
    from attnflow.observe.clusters import clusters as clusters
    from attnflow.observe.concentration import misalignment as misalignment
    from attnflow.observe.density import entropy as entropy
    from attnflow.observe.density import fisher_information as fisher_information
    from attnflow.observe.density import log_density as log_density
    from attnflow.observe.dissipation import dissipation as dissipation
    from attnflow.observe.energy import energy as energy
    from attnflow.observe.hemisphere import in_hemisphere as in_hemisphere
    from attnflow.observe.hemisphere import renyi_centres as renyi_centres
    from attnflow.observe.leaders import attention_rank as attention_rank
    from attnflow.observe.leaders import leaders as leaders
    from attnflow.observe.limit_shape import Verdict as Verdict
    from attnflow.observe.limit_shape import limit_shape as limit_shape
    from attnflow.observe.lipschitz import linearisation as linearisation
    from attnflow.observe.lipschitz import local_lipschitz as local_lipschitz
    from attnflow.observe.lipschitz import lyapunov_exponents as lyapunov_exponents
    from attnflow.observe.order import cosine_histogram as cosine_histogram
    from attnflow.observe.order import effective_rank as effective_rank
    from attnflow.observe.order import mean_cosine as mean_cosine
    from attnflow.observe.order import order_parameter as order_parameter
    from attnflow.observe.stability import growth_rates as growth_rates
    from attnflow.spaces import Ellipsoid as Ellipsoid
    from attnflow.spaces import Euclidean as Euclidean
    from attnflow.spaces import Sphere as Sphere
    from attnflow.sums import ALiBi as ALiBi
    from attnflow.sums import Causal as Causal
    from attnflow.sums import Dense as Dense
    from attnflow.sums import Explicit as Explicit
    from attnflow.sums import Logit as Logit
    from attnflow.sums import Quadratic as Quadratic
    from attnflow.sums import Spectral as Spectral
    from attnflow.sums import Streamed as Streamed
    from attnflow.sums import Window as Window
    from attnflow.sums import dot_product as dot_product
    from attnflow.sums import rotary as rotary
    from attnflow.sums import squared_distance as squared_distance
    from attnflow.theory.limits import Prediction as Prediction
    from attnflow.theory.limits import predict_limit as predict_limit
    from attnflow.transport.bridge import bridge as bridge
    from attnflow.transport.bridge import self_bridge as self_bridge
    from attnflow.transport.choose import choose_eps as choose_eps
    from attnflow.transport.distances import bures as bures
    from attnflow.transport.distances import wasserstein2 as wasserstein2
    from attnflow.transport.divergence import sinkhorn_divergence as sinkhorn_divergence
    from attnflow.transport.exact import characteristics as characteristics
    from attnflow.transport.exact import heat_flow as heat_flow
    from attnflow.transport.exact import ornstein_uhlenbeck as ornstein_uhlenbeck
    from attnflow.transport.exact import quantiles as quantiles
    from attnflow.transport.kernel_distances import energy_distance as energy_distance
    from attnflow.transport.kernel_distances import mmd as mmd
    from attnflow.transport.scores import bridge_score as bridge_score
    from attnflow.transport.scores import kernel_score as kernel_score
    from attnflow.transport.scores import richardson_score as richardson_score
    from attnflow.transport.sliced import sliced_wasserstein2 as sliced_wasserstein2
    from attnflow.transport.steps import FokkerPlanck as FokkerPlanck
    from attnflow.transport.steps import Heat as Heat
    from attnflow.transport.steps import KullbackLeibler as KullbackLeibler
    from attnflow.transport.steps import ReverseHeat as ReverseHeat
    from attnflow.transport.steps import euler_step as euler_step
    from attnflow.transport.steps import sinkhorn_step as sinkhorn_step

_MODULES = {"matrices": "measures.matrices", "plot": "plot", "samplers": "measures.samplers", "theory": "theory"}
_NAMES = {
    "_compiled": ("keep_compiled",),
    "spaces": ("Ellipsoid", "Euclidean", "Sphere"),
    "measures": (
        *("Affine", "Circle", "Field", "Gaussian", "GaussianMixture", "Grid", "Icosphere", "Interval", "Order", "Particles", "Velocity"),
        *("Zonal", "quadrature"),
    ),
    "sums": (
        *("ALiBi", "Causal", "Dense", "Explicit", "Logit", "Quadratic", "Spectral", "Streamed", "Window"),
        *("dot_product", "rotary", "squared_distance"),
    ),
    "transport.bridge": ("bridge", "self_bridge"),
    "transport.choose": ("choose_eps",),
    "transport.distances": ("bures", "wasserstein2"),
    "transport.kernel_distances": ("energy_distance", "mmd"),
    "transport.sliced": ("sliced_wasserstein2",),
    "transport.exact": ("characteristics", "heat_flow", "ornstein_uhlenbeck", "quantiles"),
    "transport.scores": ("bridge_score", "kernel_score", "richardson_score"),
    "transport.divergence": ("sinkhorn_divergence",),
    "transport.steps": ("FokkerPlanck", "Heat", "KullbackLeibler", "ReverseHeat", "euler_step", "sinkhorn_step"),
    "attention.law": ("Attention", "simple_attention"),
    "attention.heads": ("MultiHead",),
    "attention.multi_head": ("multi_head",),
    "attention.closure": ("closure_residual",),
    "attention.normalisations.hardmax": ("Hardmax",),
    "attention.normalisations.linear": ("Linear",),
    "attention.normalisations.sigmoid": ("Sigmoid",),
    "attention.normalisations.sinkhorn": ("Sinkhorn",),
    "attention.normalisations.softmax": ("Softmax",),
    "attention.normalisations.sparsemax": ("Sparsemax",),
    "attention.normalisations.unnormalized": ("Unnormalized",),
    "attention.zero_temperature": ("ZeroTemperature",),
    "flow.bifurcation": ("Bifurcation", "bifurcation"),
    "flow.branch": ("Branch", "branch"),
    "flow.events": ("Consensus", "Steady"),
    "flow.fields": ("Perceptron", "ResNet"),
    "flow.frames": ("normalised", "rescaled"),
    "flow.gradient": ("gradient_flow",),
    "flow.layers": ("layers",),
    "flow.norms": ("LayerNorm", "RMSNorm"),
    "flow.observe": ("Observed", "OnHost"),
    "flow.path": ("Path", "Status"),
    "flow.plan": ("plan",),
    "flow.record": ("load_path",),
    "flow.schedules": ("Scheduled", "piecewise", "resampled"),
    "flow.solve": ("solve",),
    "flow.stationary": ("Stationary", "stationary"),
    "flow.sweep": ("over_seeds", "sweep"),
    "observe.density": ("entropy", "fisher_information", "log_density"),
    "observe.energy": ("energy",),
    "observe.leaders": ("attention_rank", "leaders"),
    "observe.limit_shape": ("Verdict", "limit_shape"),
    "observe.stability": ("growth_rates",),
    "theory.limits": ("Prediction", "predict_limit"),
    "observe.attention": ("attention_entropy",),
    "observe.clusters": ("Clusters", "clusters"),
    "observe.concentration": ("misalignment",),
    "observe.dissipation": ("dissipation",),
    "observe.hemisphere": ("in_hemisphere", "renyi_centres"),
    "observe.lipschitz": ("linearisation", "local_lipschitz", "lyapunov_exponents"),
    "observe.order": ("cosine_histogram", "effective_rank", "mean_cosine", "order_parameter"),
    "flow.staircase": ("Staircase", "staircase"),
    "flow.normed": ("normed",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        found = importlib.import_module(f"attnflow.{_MODULES[name]}")
    elif name in _HOME:
        found = getattr(importlib.import_module(f"attnflow.{_HOME[name]}"), name)
    else:
        from attnflow._check import no_attribute

        raise no_attribute("attnflow", name, [*_MODULES, *_HOME])
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_HOME} - {"importlib", "TYPE_CHECKING", "Any"})
