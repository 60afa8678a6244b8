"""Predictions: every function is one theorem, with its statement and its source.

All of them return arrays of JAX, a number as a 0-d array, in the precision of the arguments or by default in that of JAX. Elementary
formulas are traced by `jit` and `grad`. What rests on SciPy's Bessel functions (`mode_growth`, `critical_noise`, `branch_curvature`), on a
quadrature, or on a decomposition that may be refused (`spectral_projector` and what uses it) needs arguments with known values.
`predict_limit` returns a `Prediction`: which theorem applies, in words.
"""

from attnflow.theory.chance import cap_mass as cap_mass
from attnflow.theory.chance import strong_centers as strong_centers
from attnflow.theory.chance import wendel as wendel
from attnflow.theory.cold import cold_limit as cold_limit
from attnflow.theory.cold import concentration_rate as concentration_rate
from attnflow.theory.cold import laplace_mean as laplace_mean
from attnflow.theory.cold import spectral_projector as spectral_projector
from attnflow.theory.cold import uniform_mean as uniform_mean
from attnflow.theory.equiangular import equiangular as equiangular
from attnflow.theory.equiangular import equiangular_rate as equiangular_rate
from attnflow.theory.gaussian import softmax_blow_up_time as softmax_blow_up_time
from attnflow.theory.gaussian import softmax_covariance as softmax_covariance
from attnflow.theory.langevin import langevin_constant as langevin_constant
from attnflow.theory.langevin import langevin_divergence as langevin_divergence
from attnflow.theory.langevin import langevin_potential as langevin_potential
from attnflow.theory.limits import Prediction as Prediction
from attnflow.theory.limits import predict_limit as predict_limit
from attnflow.theory.lipschitz import lipschitz_bound as lipschitz_bound
from attnflow.theory.lipschitz import stability_constant as stability_constant
from attnflow.theory.long_context import context_cosine as context_cosine
from attnflow.theory.long_context import context_limit as context_limit
from attnflow.theory.long_context import critical_sharpness as critical_sharpness
from attnflow.theory.metastable import merger_log_time as merger_log_time
from attnflow.theory.metastable import window_time as window_time
from attnflow.theory.support import support_radius as support_radius
from attnflow.theory.uniform import branch_curvature as branch_curvature
from attnflow.theory.uniform import critical_beta as critical_beta
from attnflow.theory.uniform import critical_noise as critical_noise
from attnflow.theory.uniform import mode_growth as mode_growth


def __getattr__(name: str) -> object:
    from attnflow._check import no_attribute

    raise no_attribute(__name__, name, globals())
