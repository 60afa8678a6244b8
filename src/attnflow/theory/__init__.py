"""Predictions: one theorem a function, with its statement and source."""

from attnflow.theory.equiangular import equiangular as equiangular
from attnflow.theory.equiangular import equiangular_rate as equiangular_rate
from attnflow.theory.gaussian import softmax_blow_up_time as softmax_blow_up_time
from attnflow.theory.gaussian import softmax_covariance as softmax_covariance
from attnflow.theory.langevin import fisher_information as fisher_information
from attnflow.theory.langevin import langevin_constant as langevin_constant
from attnflow.theory.langevin import langevin_divergence as langevin_divergence
from attnflow.theory.langevin import langevin_potential as langevin_potential
