"""Predictions: one theorem a function, with its statement and source."""

from attnflow.theory.cold import cold_limit as cold_limit
from attnflow.theory.cold import laplace_mean as laplace_mean
from attnflow.theory.cold import spectral_projector as spectral_projector
from attnflow.theory.cold import uniform_mean as uniform_mean
from attnflow.theory.equiangular import equiangular as equiangular
from attnflow.theory.equiangular import equiangular_rate as equiangular_rate
from attnflow.theory.gaussian import softmax_blow_up_time as softmax_blow_up_time
from attnflow.theory.gaussian import softmax_covariance as softmax_covariance
from attnflow.theory.langevin import fisher_information as fisher_information
from attnflow.theory.langevin import langevin_constant as langevin_constant
from attnflow.theory.langevin import langevin_divergence as langevin_divergence
from attnflow.theory.langevin import langevin_potential as langevin_potential
from attnflow.theory.support import support_radius as support_radius
from attnflow.theory.uniform import branch_curvature as branch_curvature
from attnflow.theory.uniform import critical_beta as critical_beta
from attnflow.theory.uniform import critical_noise as critical_noise
from attnflow.theory.uniform import mode_growth as mode_growth
